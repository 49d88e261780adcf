package cuda_test

import (
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// gauged opens an emulated GPU with second-level caches of so many KiB.
func gauged(t *testing.T, caches ...int) (kernels.Device, *emulated.Driver) {
	gpu, driver := testdevice.GPU(t, emulated.Options{Gauge: caches})
	if driver == nil {
		t.Skip("a real GPU does not tell what it moves")
	}
	return gpu, driver
}

// moved runs a pass and returns what it moved, per kernel.
func moved(t *testing.T, driver *emulated.Driver, run func()) ([]emulated.Moved, emulated.Calls) {
	driver.Calls()
	if _, err := driver.Moved(); err != nil {
		t.Fatal(err)
	}
	run()
	all, err := driver.Moved()
	if err != nil {
		t.Fatal(err)
	}
	return all, driver.Calls()
}

// TestTraffic: with the second-level cache of an Orin a pass moves at most 1.1 times what it needs, its weights, keys and values, and
// activations once each. A larger cache than the model, such as those of a GB10 and an H200, is there to compare.
func TestTraffic(t *testing.T) {
	const context, most = 700, 1.1
	for _, c := range []struct {
		name  string
		shape kerneltest.Shape
	}{
		{"dense", kerneltest.Shape{Layers: 1, Dim: 768, Heads: 12, KVHeads: 4, Inner: 6144, Vocab: 512, Type: kernels.Q8_0}},
		{"experts", kerneltest.Shape{Layers: 1, Dim: 512, Heads: 8, KVHeads: 2, Inner: 768, Vocab: 512, Experts: 16, Used: 4,
			Type: kernels.Q8_0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			gpu, driver := gauged(t, 4<<10, 24<<10, 50<<10)
			m := kerneltest.NewDeep(t, gpu, c.shape, 64)
			m.Run(1, context)
			t.Log("rows | weights, keys and values, activations (MB) | moved ÷ these with 4, 24, 50 MB | near MB | launches")
			for _, rows := range []int{1, 8, 16, 64} {
				all, calls := moved(t, driver, func() { m.Run(rows, context) })
				weights, keys, activations := m.Least(rows, context)
				least := float64(weights + keys + activations)
				var ratio [3]float64
				near, launches, kernel := int64(0), int64(0), ""
				for _, k := range all {
					for i := range ratio {
						ratio[i] += float64(k.Read[i]+k.Written[i]) / least
					}
					near, launches = near+k.NearRead+k.NearWritten, launches+k.Launches
					kernel += fmt.Sprintf("\n\t%d %s: %d blocks, %.2f MB near, %.2f MB read and %.2f written with 4 MB", k.Launches,
						k.Kernel, k.Blocks, float64(k.NearRead+k.NearWritten)/1e6, float64(k.Read[0])/1e6, float64(k.Written[0])/1e6)
				}
				t.Logf("%d | %.2f %.2f %.2f | %.2f %.2f %.2f | %.1f | %d%s", rows, float64(weights)/1e6, float64(keys)/1e6,
					float64(activations)/1e6, ratio[0], ratio[1], ratio[2], float64(near)/1e6, launches, kernel)
				if ratio[0] > most {
					t.Errorf("a pass of %d rows moves %.3f times what it needs, at most %.1f", rows, ratio[0], most)
				}
				if calls.Allocs != 0 || calls.Waits > 1 {
					t.Errorf("a pass of %d rows: %+v, want no allocation and one wait", rows, calls)
				}
			}
		})
	}
}

// TestLaunches: a layer takes few launches, what a round accepts one, and neither allocates memory or waits.
func TestLaunches(t *testing.T) {
	small := kerneltest.Shape{Layers: 1, Dim: 64, Heads: 2, KVHeads: 1, Inner: 96, Vocab: 64, Type: kernels.Q8_0}
	for _, c := range []struct {
		name string
		of   func(*kerneltest.Shape)
		most int64
	}{
		{"plain", func(*kerneltest.Shape) {}, 5},
		{"biased", func(s *kerneltest.Shape) { s.Bias = true }, 5},
		{"normed heads", func(s *kerneltest.Shape) {
			s.HeadNorm, s.Type = true, kernels.Q4_K
			s.Dim, s.Heads, s.Inner = 256, 4, 256
		}, 5},
		{"experts", func(s *kerneltest.Shape) { s.Experts, s.Used = 4, 2 }, 9},
	} {
		var launches [2]int64
		for i := range launches {
			gpu, driver := gauged(t, 4<<10)
			shape := small
			c.of(&shape)
			shape.Layers = 1 + i
			m := kerneltest.NewDeep(t, gpu, shape, 8)
			m.Run(8, 100)
			all, calls := moved(t, driver, func() { m.Run(8, 100) })
			for _, k := range all {
				launches[i] += k.Launches
			}
			if calls.Graphs != 1 || calls.Launches != 0 || calls.Allocs != 0 || calls.Waits != 1 {
				t.Errorf("%s: a pass of %d layers: %+v, want one graph and one wait", c.name, shape.Layers, calls)
			}
			_, calls = moved(t, driver, func() { m.Accept([]kernels.Cell{1, 2}, []kernels.Cell{5, 9}) })
			if calls.Launches != 1 || calls.Allocs != 0 || calls.Waits != 0 {
				t.Errorf("%s: accepting: %+v, want one launch and no wait", c.name, calls)
			}
		}
		if got := launches[1] - launches[0]; got > c.most {
			t.Errorf("%s: a layer takes %d launches, at most %d", c.name, got, c.most)
		}
		t.Logf("%s: %d launches a layer, %d beside", c.name, launches[1]-launches[0], 2*launches[0]-launches[1])
	}
}
