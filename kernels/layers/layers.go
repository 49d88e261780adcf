// Package layers is a device made of two: whole layers of a model run on one of them, as many as a budget of its memory holds, and
// the rest on the other (Dovetail's target layers in spare GPU memory). A pass goes there once and comes back once.
//
// The two are called far, which has layers, and near, which has everything else: the embedding, later layers and the output. Each has only
// the weights and the keys and values of its own layers.
package layers

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

const name = "layers"

// near and far are the two sides.
const (
	near = 0
	far  = 1
)

// Config says what a Device is made of. The devices stay the caller's, and must stay open as long as the Device is used.
type Config struct {
	Near, Far kernels.Device
	Budget    int64             // bytes of Far's memory for its layers: their weights, keys and values, and buffers
	Tell      func(p Placement) // called after weights were reserved on Far; nil: nothing is called
}

// Placement tells where the layers of a model are, and what those on the far device take of its memory, in bytes.
type Placement struct {
	Far     string // the device with the first layers
	Layers  int    // how many it has
	Of      int    // how many the model has
	Weights int64
	KV      int64 // keys and values, and states of recurrent layers
	Buffers int64
	Budget  int64 // Config.Budget
}

func (p Placement) String() string {
	return fmt.Sprintf("%d of %d layers run on %s and take %s of %s (weights %s, KV cache %s, buffers %s)", p.Layers, p.Of, p.Far,
		kernels.Bytes(p.Weights+p.KV+p.Buffers), kernels.Bytes(p.Budget), kernels.Bytes(p.Weights), kernels.Bytes(p.KV),
		kernels.Bytes(p.Buffers))
}

// Device is a kernels.Device made of two. Of a Device by New nothing runs on the far one: Fit and With return devices that have layers
// there. Like any kernels.Device, it may be used by several goroutines.
type Device struct {
	Config
	layers int       // the first so many are far
	placed Placement // by Fit
}

var (
	_ kernels.Fitter       = (*Device)(nil)
	_ kernels.MemoryOwner  = (*Device)(nil)
	_ kernels.ThreadSetter = (*Device)(nil)
)

// New returns a device without layers on c.Far: see Fit.
func New(c Config) *Device { return &Device{Config: c} }

// With returns a copy of d with the first n layers of every program on the far device, and those that read these layers' keys.
func (d *Device) With(n int) *Device { return &Device{Config: d.Config, layers: n} }

func (d *Device) sides() [2]kernels.Device { return [2]kernels.Device{d.Near, d.Far} }

// Fit returns a copy of d with as many layers of p on the far device as the budget holds, their part of a KV cache of so many pages
// included. It allocates nothing. Errors: not even one layer fits; the far device has less free memory than the budget; as for Footprint.
func (d *Device) Fit(p *kernels.Program, pages int) (kernels.Device, error) {
	if apart, ok := d.Far.(kernels.MemoryOwner); ok {
		free, of, err := apart.Free()
		if err != nil {
			return nil, d.of(far, err)
		}
		if d.Budget > free {
			return nil, fmt.Errorf("layers: --gpu-memory is %s, but %s has %s free: want at most that", kernels.Bytes(d.Budget), of,
				kernels.Bytes(free))
		}
	}
	if len(p.KV.Layers) == 0 {
		return nil, fmt.Errorf("layers: a program without layers has none for %s", d.name(far))
	}
	var needs kernels.Space // of as many layers as there are, at last of the fewest
	for n := len(p.KV.Layers); n > 0; n-- {
		with := d.With(n)
		h, err := with.divide(p)
		if err != nil {
			return nil, err
		}
		if h[far].empty() || shares(p.KV, n) {
			continue
		}
		f, err := d.Far.Footprint(h[far].p)
		if err != nil {
			return nil, d.of(far, err)
		}
		needs = f.With(kernels.Footprint{Space: f.Own}).Space
		if needs.Total(pages) > d.Budget {
			continue
		}
		with.placed = Placement{Far: d.name(far), Layers: n, Of: len(p.KV.Layers), Weights: needs.Weights,
			KV: int64(pages)*needs.Page + needs.States, Buffers: needs.Buffers, Budget: d.Budget}
		return with, nil
	}
	return nil, fmt.Errorf("layers: --gpu-memory is %s, which holds no layer: one takes %s (weights %s, KV cache %s, buffers %s)",
		kernels.Bytes(d.Budget), kernels.Bytes(needs.Total(pages)), kernels.Bytes(needs.Weights),
		kernels.Bytes(int64(pages)*needs.Page+needs.States), kernels.Bytes(needs.Buffers))
}

// shares reports whether a layer behind the first n reads the keys and values of one of them: they must be on one device.
func shares(s kernels.KVShape, n int) bool {
	return slices.ContainsFunc(s.Layers[n:], func(l kernels.KVLayer) bool { return l.Shared && l.Source < n })
}

// name is that of a side's hardware, or else of its kind.
func (d *Device) name(side int) string {
	if apart, ok := d.sides()[side].(kernels.MemoryOwner); ok {
		if _, of, err := apart.Free(); err == nil {
			return of
		}
	}
	return d.sides()[side].About().Name
}

// of names the side that an error comes from; an Unsupported error gets the name of the whole.
func (d *Device) of(side int, err error) error {
	if err == nil {
		return nil
	}
	if u := (*kernels.Unsupported)(nil); errors.As(err, &u) {
		return &kernels.Unsupported{Device: name, What: u.What}
	}
	return fmt.Errorf("layers: the %s device (%s): %w", [2]string{"near", "far"}[side], d.sides()[side].About().Name, err)
}

// About names both devices and says how many layers are on the far one. Threads are the near device's.
func (d *Device) About() kernels.About {
	a, b := d.Near.About(), d.Far.About()
	return kernels.About{Name: name, Threads: a.Threads,
		Kernels: fmt.Sprintf("%d on %s %s, the rest on %s %s", d.layers, b.Name, b.Kernels, a.Name, a.Kernels)}
}

// Layout returns the near device's layout. Layers on the far device keep their weights in that one's own layout.
func (d *Device) Layout(t kernels.Type) kernels.Layout { return d.Near.Layout(t) }

// NewProbe returns a probe of the near device.
func (d *Device) NewProbe(bytes int) (kernels.Probe, error) { return d.Near.NewProbe(bytes) }

// SetThreads sets the near device's threads. It is an error if that device has none.
func (d *Device) SetThreads(n int) error {
	t, ok := d.Near.(kernels.ThreadSetter)
	if !ok {
		return fmt.Errorf("layers: %d threads: %v has none", n, d.Near.About())
	}
	return t.SetThreads(n)
}

// Free returns the free bytes of the far device's own memory; the largest int64 if it has no memory of its own.
func (d *Device) Free() (int64, string, error) {
	if apart, ok := d.Far.(kernels.MemoryOwner); ok {
		return apart.Free()
	}
	return 1<<63 - 1, d.Far.About().Name, nil
}

// Gone implements kernels.Losable: the far device can be lost.
func (d *Device) Gone() <-chan struct{} {
	if m, ok := d.Far.(kernels.Losable); ok {
		return m.Gone()
	}
	return nil
}

// Lost implements kernels.Losable.
func (d *Device) Lost() error {
	if m, ok := d.Far.(kernels.Losable); ok {
		return d.of(far, m.Lost())
	}
	return nil
}

// Footprint returns the sum of what both devices take.
func (d *Device) Footprint(p *kernels.Program) (sum kernels.Footprint, err error) {
	halves, err := d.divide(p)
	if err != nil {
		return sum, err
	}
	for side, h := range halves {
		if h.empty() {
			continue
		}
		f, err := d.sides()[side].Footprint(h.p)
		if err != nil {
			return sum, d.of(side, err)
		}
		sum = sum.With(f)
	}
	return sum, nil
}

// shapes returns what the cache of each side keeps: of the other's layers nothing.
func (d *Device) shapes(s kernels.KVShape) (all [2]kernels.KVShape) {
	for side := range all {
		all[side] = kernels.KVShape{Type: s.Type, Layers: slices.Clone(s.Layers)}
		kept := false
		for i := range s.Layers {
			if d.sideOf(s, i) != side {
				all[side].Layers[i] = kernels.KVLayer{}
			}
			kept = kept || all[side].Layers[i] != kernels.KVLayer{}
		}
		states := slices.Clone(s.States)
		for i := range states {
			if d.sideOfState(states[i]) != side {
				states[i] = kernels.State{}
			}
		}
		if slices.ContainsFunc(states, func(x kernels.State) bool { return x != kernels.State{} }) {
			all[side].States, all[side].Slots, all[side].Records = states, s.Slots, s.Records
			kept = true
		}
		if !kept {
			all[side].Layers = nil
		}
	}
	return all
}

func (d *Device) sideOfState(x kernels.State) int {
	if x.Layer < d.layers {
		return far
	}
	return near
}

// sideOf returns where layer i is: with the layer whose keys and values it reads.
func (d *Device) sideOf(s kernels.KVShape, i int) int {
	if s.Kept(i) < d.layers {
		return far
	}
	return near
}
