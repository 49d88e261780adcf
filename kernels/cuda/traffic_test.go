package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// gauged opens an emulated GPU with second-level caches of so many KiB.
func gauged(t *testing.T, o emulated.Options, caches ...int) (kernels.Device, *emulated.Driver) {
	o.Gauge = caches
	gpu, driver := testdevice.GPU(t, o)
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

// dense and experts are layers of models that people use.
var (
	dense   = kerneltest.Shape{Layers: 1, Dim: 768, Heads: 12, KVHeads: 4, Inner: 6144, Vocab: 512, Type: kernels.Q8_0}
	experts = kerneltest.Shape{Layers: 1, Dim: 512, Heads: 8, KVHeads: 2, Inner: 768, Vocab: 512, Experts: 16, Used: 4,
		Type: kernels.Q8_0}
)

// TestTraffic: with the second-level cache of an Orin a pass moves at most 1.1 times what it needs, its weights, keys and values, and
// activations once each. A larger cache than the model, such as those of a GB10 and an H200, is there to compare.
func TestTraffic(t *testing.T) {
	for name, shape := range map[string]kerneltest.Shape{"dense": dense, "experts": experts} {
		t.Run(name, func(t *testing.T) {
			gpu, driver := gauged(t, emulated.Options{}, 4<<10, 24<<10, 50<<10)
			m := kerneltest.NewDeep(t, gpu, shape, 64)
			traffic(t, driver, m, 1, func(int) float64 { return 1.1 })
		})
	}
}

// TestCoupleTraffic: so does the GPU's half of a pass that it divides with a processor. With many rows it is a little more: a gate is no
// tail, because it reads what the processor computes too. Of mapped memory, which a GPU may have in no cache, products read the weights of
// their half once.
func TestCoupleTraffic(t *testing.T) {
	for name, shape := range map[string]kerneltest.Shape{"dense": dense, "experts": experts} {
		t.Run(name, func(t *testing.T) {
			gpu, driver := gauged(t, emulated.Options{Integrated: true}, 4<<10, 24<<10, 50<<10)
			d := pair(t, gpu, testdevice.CPU(t, 1), kernels.Division{Rows: 1, Columns: 0.5, Blocks: 1})
			m := kerneltest.NewDeep(t, d, shape, 64)
			traffic(t, driver, m, 0.5, func(rows int) float64 {
				if rows > 16 {
					return 1.15
				}
				return 1.1
			})
		})
	}
}

// TestCoupleLaunches: the GPU's half of a layer takes few launches, with at most 6 meetings behind what they compute.
func TestCoupleLaunches(t *testing.T) {
	for name, c := range map[string]struct {
		shape kerneltest.Shape
		most  int64
	}{
		"dense": {kerneltest.Shape{Dim: 64, Heads: 2, KVHeads: 1, Inner: 96, Vocab: 64, Type: kernels.Q8_0}, 10},
		"experts": {kerneltest.Shape{Dim: 64, Heads: 2, KVHeads: 1, Inner: 96, Vocab: 64, Type: kernels.Q8_0, Experts: 4, Used: 2},
			13},
	} {
		var launches, meets [2]int64
		for i := range launches {
			gpu, driver := gauged(t, emulated.Options{Integrated: true}, 4<<10)
			shape := c.shape
			shape.Layers = 1 + i
			d := pair(t, gpu, testdevice.CPU(t, 1))
			m := kerneltest.NewDeep(t, d, shape, 8)
			m.Run(8, 100)
			all, calls := moved(t, driver, func() { m.Run(8, 100) })
			for _, k := range all {
				if launches[i] += k.Launches; k.Kernel == "meet" {
					meets[i] += k.Launches
				}
			}
			if calls.Graphs != 1 || calls.Launches != 0 || calls.Allocs != 0 || calls.Waits != 1 {
				t.Errorf("%s: a pass of %d layers: %+v, want one graph and one wait", name, shape.Layers, calls)
			}
		}
		n, alone := launches[1]-launches[0], meets[1]-meets[0]
		t.Logf("%s: %d launches a layer, of which %d only meet; %d beside", name, n, alone, 2*launches[0]-launches[1])
		if n > c.most || alone > 0 {
			t.Errorf("%s: a layer takes %d launches, and %d only meet: want at most %d and none", name, n, alone, c.most)
		}
	}
}

// traffic runs passes of a GPU that has a share of the weights, and compares what it moves with what it needs.
func traffic(t *testing.T, driver *emulated.Driver, m *kerneltest.Deep, share float64, most func(rows int) float64) {
	const context = 700
	m.Run(64, context) // as many parts of attention as there can be
	m.Run(8, context)  // leaves little of that in the caches
	t.Log("rows | weights, keys and values, activations (MB) | moved ÷ these with 4, 24, 50 MB | near MB, mapped of products | launches")
	for _, rows := range []int{1, 8, 16, 64} {
		all, calls := moved(t, driver, func() { m.Run(rows, context) })
		weights, keys, activations := m.Least(rows, context)
		own := share * float64(weights)
		least := own + float64(keys+activations)
		var ratio [3]float64
		near, mapped, launches, kernel := int64(0), int64(0), int64(0), ""
		for _, k := range all {
			for i := range ratio {
				ratio[i] += float64(k.Read[i]+k.Written[i]) / least
			}
			if strings.Contains(k.Kernel, "mm_") || strings.Contains(k.Kernel, "experts_q") {
				mapped += k.MappedRead
			}
			near, launches = near+k.NearRead+k.NearWritten, launches+k.Launches
			kernel += fmt.Sprintf("\n\t%d %s: %d blocks, %.2f MB near, of these %.2f mapped, %.2f MB read and %.2f written with 4 MB",
				k.Launches, k.Kernel, k.Blocks, float64(k.NearRead+k.NearWritten)/1e6, float64(k.MappedRead+k.MappedWritten)/1e6,
				float64(k.Read[0])/1e6, float64(k.Written[0])/1e6)
		}
		t.Logf("%d | %.2f %.2f %.2f | %.2f %.2f %.2f | %.1f %.1f | %d%s", rows, own/1e6, float64(keys)/1e6, float64(activations)/1e6,
			ratio[0], ratio[1], ratio[2], float64(near)/1e6, float64(mapped)/1e6, launches, kernel)
		if ratio[0] > most(rows) {
			t.Errorf("a pass of %d rows moves %.3f times what it needs, at most %.2f", rows, ratio[0], most(rows))
		}
		if share < 1 && (float64(mapped) > 1.1*own || float64(mapped) < 0.9*own) {
			t.Errorf("products of %d rows read %d bytes of mapped memory, want the half's weights once, %.0f", rows, mapped, own)
		}
		if calls.Allocs != 0 || calls.Waits > 1 {
			t.Errorf("a pass of %d rows: %+v, want no allocation and one wait", rows, calls)
		}
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
		{"experts", func(s *kerneltest.Shape) { s.Experts, s.Used = 4, 2 }, 6},
	} {
		var launches [2]int64
		for i := range launches {
			gpu, driver := gauged(t, emulated.Options{}, 4<<10)
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
