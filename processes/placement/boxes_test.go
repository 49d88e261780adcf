package placement

import (
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
)

// box is an emulated machine. Its figures are computed from what makers publish, and measured by nobody here: bytes a second of memory, and
// products of int8 a second. A side gets share of its memory's rate when it reads alone; assumed: 0.85 of GPUs, and of cores less where
// they are few for their memory.
type box struct {
	name     string
	cores    side
	gpu      side
	bus      float64       // bytes a second of the memory that both share; 0: each has its own
	gpuBytes float64       // memory of the GPU, or of both
	meeting  time.Duration // what the sides of a divided pass take to meet in a layer
	launch   time.Duration // of a kernel
}

// side is the processor or the GPU of a box.
type side struct{ read, macs float64 }

var boxes = []box{
	// NVIDIA, Jetson AGX Orin series data sheet (DS-10662-001): LPDDR5 of 204.8 GB/s for both, 12 Cortex-A78AE of 2.2 GHz (two dot products
	// of 16 bytes a cycle), 2,048 CUDA cores of 1.3 GHz (four products of a dp4a). Cores read a third of it.
	{"Orin", side{68e9, 0.84e12}, side{174e9, 10.6e12}, 204.8e9, 60e9, 12 * time.Microsecond, 5 * time.Microsecond},
	// NVIDIA, DGX Spark: LPDDR5X of 273 GB/s for both, 20 Arm cores (10 of them Cortex-X925 of 3.9 GHz), 6,144 CUDA cores of 2.4 GHz. Cores
	// read a half of it.
	{"Spark", side{136e9, 3.9e12}, side{232e9, 59e12}, 273e9, 120e9, 8 * time.Microsecond, 4 * time.Microsecond},
	// AMD, Ryzen AI Max+ 395: LPDDR5X-8000 of 256 GB/s for both, 16 Zen 5 of 3 GHz (VNNI, 128 products a cycle), 40 CUs of 2.9 GHz. Cores
	// read through links of about 115 GB/s. No CUDA: it stands for APUs.
	{"APU", side{115e9, 6.1e12}, side{218e9, 29e12}, 256e9, 96e9, 6 * time.Microsecond, 4 * time.Microsecond},
	// NVIDIA, H200 data sheet: HBM3e of 4.8 TB/s, 16,896 CUDA cores of 1.8 GHz. Intel, Xeon Platinum 8480+: 8 channels of DDR5-4800,
	// 307 GB/s, 56 cores of 2 GHz (VNNI). Meetings cross PCIe.
	{"H200", side{246e9, 28e12}, side{4.08e12, 122e12}, 0, 141e9, 30 * time.Microsecond, 3 * time.Microsecond},
	// NVIDIA, GeForce RTX 4060 laptop: GDDR6 of 256 GB/s, 8 GB, 3,072 CUDA cores of 2.4 GHz; two channels of DDR5-5600, 89.6 GB/s, 8 cores.
	{"laptop", side{67e9, 3e12}, side{218e9, 29e12}, 0, 7.5e9, 25 * time.Microsecond, 4 * time.Microsecond},
}

// madeModel is a model as its costs follow from it.
type madeModel struct {
	name   string
	bytes  float64 // that a pass reads
	macs   float64 // of a row
	layers int
}

type madePair struct {
	target, draft madeModel
	right         []float64
}

var pairs = []madePair{
	{madeModel{"1.1b", 1.2e9, 1.1e9, 22}, madeModel{"68m", 72e6, 68e6, 2}, []float64{0.65, 0.6, 0.55}},
	{madeModel{"7b", 7.8e9, 7.2e9, 28}, madeModel{"0.5b", 0.53e9, 0.49e9, 24}, []float64{0.8, 0.77, 0.75}},
	{madeModel{"7b", 7.8e9, 7.2e9, 28}, madeModel{"states", 0.3e9, 0.28e9, 1}, []float64{0.78, 0.75, 0.7}},
	{madeModel{"32b", 19e9, 32e9, 64}, madeModel{"1.5b", 1.6e9, 1.5e9, 28}, []float64{0.85, 0.82, 0.8}},
	{madeModel{"70b", 40e9, 70e9, 80}, madeModel{"8b", 8.6e9, 8e9, 32}, []float64{0.88, 0.85, 0.85}},
	{madeModel{"19m", 20e6, 19e6, 10}, madeModel{"3m", 3.4e6, 3e6, 2}, []float64{0.5, 0.4}}, // like those shipped
}

const launches = 6 // of a layer

// of returns the processor at a place.
func (b box) of(at device.Spec) side {
	if at.GPU != nil {
		return b.gpu
	}
	return b.cores
}

// pass returns the time of a pass on one processor, with nothing else on the box: reading or multiplying, and launches on a GPU.
func (b box) pass(at device.Spec, m madeModel, rows int) float64 {
	s, over := b.of(at), 0.0
	if at.GPU != nil {
		over = launches * float64(m.layers) * b.launch.Seconds()
	}
	return over + max(m.bytes/s.read, float64(rows)*m.macs/s.macs)
}

// part is m with a share of its weights and products.
func (m madeModel) part(share float64) madeModel {
	m.bytes, m.macs = m.bytes*share, m.macs*share
	return m
}

// divided returns the time of a pass that both divide, with the share of the GPU that is best for so many rows.
func (b box) divided(m madeModel, rows int) (seconds, share float64) {
	seconds = math.Inf(1)
	meet := launches * float64(m.layers) * b.meeting.Seconds()
	for x := 0.02; x < 1; x += 0.02 {
		t := max(b.pass(device.Spec{GPU: new(int)}, m.part(x), rows), b.pass(device.Spec{}, m.part(1-x), rows), b.reading(m, x))
		if t+meet < seconds {
			seconds, share = t+meet, x
		}
	}
	return seconds, share
}

// reading returns what both take to read their shares. The cores begin while the GPU launches. Then each has its part of the bus, if they
// have one, until one of them is done.
func (b box) reading(m madeModel, share float64) float64 {
	slower := 1.0
	if b.bus > 0 {
		slower = min(1, b.bus/(b.cores.read+b.gpu.read))
	}
	alone := launches * float64(m.layers) * b.launch.Seconds()
	cores, gpu := max(0, (1-share)*m.bytes/b.cores.read-alone), share*m.bytes/b.gpu.read // seconds without the other
	both := min(cores, gpu)
	return alone + both/slower + max(cores, gpu) - both
}

// onGPU is the share of a target's layers that the GPU has room for, beside a twentieth of it for what else is there; 1: all.
func (b box) onGPU(m madeModel) float64 {
	fit := math.Floor(0.95 * b.gpuBytes / (m.bytes / float64(m.layers)))
	return min(1, fit/float64(m.layers))
}

// timed returns a pass of the target at any place.
func (b box) timed(at device.Spec, m madeModel, rows int) float64 {
	switch {
	case at.Right != nil:
		t, _ := b.divided(m, rows)
		return t
	case at.Layers > 0:
		x := b.onGPU(m)
		far := m.part(x)
		far.layers = int(x * float64(m.layers))
		return b.pass(device.Spec{GPU: new(int)}, far, rows) + b.pass(device.Spec{}, m.part(1-x), rows) + 2*b.meeting.Seconds()
	}
	return b.pass(at, m, rows)
}

var (
	onCores = device.Spec{}
	onGPU   = device.Spec{GPU: new(int)}
	both    = device.Spec{GPU: new(int), Right: &device.Spec{}}
	layered = device.Spec{Layers: 1 << 30}
)

// measured returns what would be measured of a pair on the box.
func (b box) measured(p madePair) Measured {
	m := Measured{Right: p.right, Free: map[string]int64{"gpu": int64(b.gpuBytes)}}
	needs := func(at device.Spec, x madeModel) map[string]int64 {
		switch {
		case b.bus > 0 && at.Right != nil: // a copy for each
			return map[string]int64{"gpu": int64(2 * x.bytes)}
		case at.Layers > 0:
			return map[string]int64{"gpu": int64(b.onGPU(x) * x.bytes)}
		case b.bus > 0 || at.OnGPU():
			return map[string]int64{"gpu": int64(x.bytes)}
		}
		return nil
	}
	costs := func(time func(rows int) float64, rows ...int) (all []tandem.Cost) {
		for _, n := range rows {
			all = append(all, tandem.Cost{Rows: n, Context: 128, Time: seconds(time(n))})
		}
		return all
	}
	for _, at := range []device.Spec{onCores, onGPU, both, layered} {
		if at.Layers > 0 && (b.bus > 0 || b.onGPU(p.target) == 1) {
			continue
		}
		m.Targets = append(m.Targets, Timed{At: at, Needs: needs(at, p.target),
			Costs: costs(func(n int) float64 { return b.timed(at, p.target, n) }, 1, 2, 4, 6, 8, 12, 16, 24, 32)})
	}
	for _, at := range []device.Spec{onCores, onGPU} {
		d := Timed{At: at, Needs: needs(at, p.draft), Burden: map[string]float64{},
			Costs: costs(func(n int) float64 { return b.pass(at, p.draft, n) }, 1)}
		for _, t := range m.Targets {
			d.Burden[t.At.String()] = b.burden(at, p.draft, t.At)
		}
		m.Drafts = append(m.Drafts, d)
	}
	return m
}

// burden is the share of its rate that a processor loses while a draft computes on the other.
func (b box) burden(at device.Spec, draft madeModel, target device.Spec) float64 {
	if b.bus == 0 || at.Overlaps(target) {
		return 0
	}
	reads := draft.bytes / b.pass(at, draft, 1) // with the pauses between its launches
	return max(0, 1-b.bus/(b.of(target).read+reads))
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
