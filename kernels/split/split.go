// Package split is a device made of two: every matrix is divided by outputs, attention by whole blocks of 256 positions, and the bits stay
// (Ghidorah's HCMP, without an all-reduce). How a pass is divided is chosen for each pass by its rows and context: see kernels.Divider.
//
// Two devices that can share memory (kernels.Coupler) work in the same buffers and meet where one needs what the other has computed.
// Other pairs hand over rows after each divided operation.
package split

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

const name = "split"

// Device is a kernels.Device made of two.
type Device struct {
	left, right kernels.Device
	couple      kernels.Couple // nil: they exchange rows
	apart       error          // why
	divisions   atomic.Pointer[divisions]
}

var _ kernels.Divider = (*Device)(nil)

// New returns a device that divides passes between two others, which stay the caller's. The left one has the first outputs of a
// matrix and the first blocks of attention: the dense part. Divisions and errors: those of Divide.
func New(left, right kernels.Device, all []kernels.Division) (*Device, error) {
	d := &Device{left: left, right: right}
	if err := d.Divide(all); err != nil {
		return nil, err
	}
	for _, side := range d.sides() {
		c, ok := side.(kernels.Coupler)
		if !ok || d.couple != nil {
			continue
		}
		var err error
		if d.couple, err = c.Couple(left, right); err != nil {
			d.apart = err
		}
	}
	if d.couple == nil && d.apart == nil {
		d.apart = fmt.Errorf("split: neither %v nor %v can work in another device's memory", left.About(), right.About())
	}
	return d, nil
}

// Divide implements kernels.Divider.
func (d *Device) Divide(all []kernels.Division) error {
	if err := kernels.CheckDivisions(all); err != nil {
		return fmt.Errorf("split: %w", err)
	}
	d.divisions.Store(new(divisions(slices.Clone(all))))
	return nil
}

// Sides implements kernels.Divider.
func (d *Device) Sides() (left, right kernels.Device) { return d.left, d.right }

// Shared reports whether both devices work in the same memory.
func (d *Device) Shared() bool { return d.couple != nil }

// Apart implements kernels.Divider.
func (d *Device) Apart() error {
	if d.couple != nil {
		return nil
	}
	return d.apart
}

// Meetings returns how often the two sides meet in a pass of p: where one needs what the other has computed. 0 if they have memories of
// their own and hand over rows instead.
func (d *Device) Meetings(p *kernels.Program) (n int) {
	if d.couple == nil {
		return 0
	}
	for _, o := range divide(p)[0].Ops {
		if o == (kernels.Meet{}) {
			n++
		}
	}
	return n
}

// MeetingTime implements kernels.Divider by passes with nothing but meetings: the median of some.
func (d *Device) MeetingTime() (time.Duration, error) {
	if d.couple == nil {
		return 0, nil
	}
	const meetings, passes, enough = 200, 21, 200 * time.Millisecond
	p := kernels.NewProgram(1, 0)
	for range meetings {
		p.Add(kernels.Meet{})
	}
	r, err := d.couple.Compile(p, p, p, nil, nil)
	if err != nil {
		return 0, unsupported(err)
	}
	defer r.Close()
	var took []time.Duration
	for first := time.Now(); len(took) < passes && (len(took) < 3 || time.Since(first) < enough); {
		begin := time.Now()
		if err := r.Run(&kernels.Pass{Rows: 1}); err != nil {
			return 0, err
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took[len(took)/2] / meetings, nil
}

// Close ends what New has started. The two devices stay open.
func (d *Device) Close() {
	if d.couple != nil {
		d.couple.Close()
	}
}

// About names both.
func (d *Device) About() kernels.About {
	a, b := d.left.About(), d.right.About()
	return kernels.About{Name: name, Kernels: fmt.Sprintf("%v and %v", a, b), Threads: a.Threads + b.Threads}
}

// Layout returns what both read, or the left device's: devices that exchange rows have weights of their own, each in its layout.
func (d *Device) Layout(t kernels.Type) kernels.Layout {
	if d.couple != nil {
		return d.couple.Layout(t)
	}
	return d.left.Layout(t)
}

// NewProbe returns a probe of the left device.
func (d *Device) NewProbe(bytes int) (kernels.Probe, error) { return d.left.NewProbe(bytes) }

// unsupported gives an Unsupported error of a half the name of the whole.
func unsupported(err error) error {
	if u := (*kernels.Unsupported)(nil); errors.As(err, &u) {
		return &kernels.Unsupported{Device: name, What: u.What}
	}
	return err
}

// Footprint returns what both halves take.
func (d *Device) Footprint(p *kernels.Program) (f kernels.Footprint, err error) {
	if d.couple == nil {
		return d.exchanged(p)
	}
	if err := p.Check(); err != nil {
		return f, err
	}
	halves := divide(p)
	f, err = d.couple.Footprint(p, halves[0], halves[1])
	return f, unsupported(err)
}

// NewWeights returns one store where memory is shared, otherwise one for each device.
func (d *Device) NewWeights(p *kernels.Program) (kernels.Store, error) {
	if d.couple == nil {
		return d.twoStores(p)
	}
	s, err := d.couple.NewWeights(p)
	return s, unsupported(err)
}

// NewCache returns one cache where memory is shared, otherwise one for each device.
func (d *Device) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	if d.couple == nil {
		return d.twoCaches(shape, pages)
	}
	c, err := d.couple.NewCache(shape, pages)
	return c, unsupported(err)
}

// Compile makes both halves of p ready.
func (d *Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	if d.couple == nil {
		return d.exchange(p, w, c)
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	halves := divide(p)
	if _, err := d.couple.Footprint(p, halves[0], halves[1]); err != nil { // what is wrong with p, or missing on a device
		return nil, unsupported(err)
	}
	r, err := d.couple.Compile(p, halves[0], halves[1], w, c)
	if err != nil {
		return nil, unsupported(err)
	}
	return &runner{Runner: r, dev: d}, nil
}

var _, _ kernels.RouteReader = (*runner)(nil), (*exchanger)(nil)

// chosen returns the experts of a row, nil where a runner does not tell.
func chosen(r kernels.Runner, of kernels.Route, row int) []int32 {
	if x, tells := r.(kernels.RouteReader); tells {
		return x.Chosen(of, row)
	}
	return nil
}

// Chosen returns what the left half has chosen.
func (r *runner) Chosen(of kernels.Route, row int) []int32 { return chosen(r.Runner, of, row) }

// runner divides each pass as Divide has said.
type runner struct {
	kernels.Runner
	dev  *Device
	pass kernels.Pass
}

func (r *runner) Run(a *kernels.Pass) error {
	r.pass = r.dev.divisions.Load().cut(a, r.pass.Cut)
	return r.Runner.Run(&r.pass)
}

func (r *runner) Start(a *kernels.Pass) error {
	r.pass = r.dev.divisions.Load().cut(a, r.pass.Cut)
	return r.Runner.Start(&r.pass)
}
