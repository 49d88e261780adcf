package main

import (
	"cmp"

	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/lab/passes"
)

// deviceFlags say what computes.
type deviceFlags struct {
	Threads int    `help:"Threads; 0 = all cores." default:"0"`
	ISA     string `name:"isa" help:"Instruction set: auto, generic, avx2, avxvnni, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	Device  string `help:"Where to compute: cpu, cuda, cuda:N, cores:LIST, or two of them that divide each pass (cuda+cpu)." default:"cpu" placeholder:"DEVICE"`
}

// with calls use with the device, which it closes then.
func (f deviceFlags) with(use func(d kernels.Device) error) error {
	p, err := device.Parse("device", f.Device)
	if err := cmp.Or(err, p.CheckThreads("device", "threads", f.Threads)); err != nil {
		return err
	}
	d, err := device.Opener{ISA: f.ISA}.Open(p, f.Threads)
	if err != nil {
		return err
	}
	defer d.Close()
	return use(d)
}

// load opens a model on the device, and calls use with it.
func (f deviceFlags) load(a *app, path string, o engine.Options, use func(m *engine.Model) error) error {
	return f.with(func(d kernels.Device) error {
		o.Device = d
		m, err := a.open(path, o)
		if err != nil {
			return err
		}
		defer m.Close()
		return use(m)
	})
}

type kernelsCmd struct {
	Type   []string `help:"Weight types, like q8_0; default: all with kernels of their own." placeholder:"TYPE,…"`
	Rows   int      `help:"Outputs of a matrix." default:"8192"`
	Cols   int      `help:"Inputs of a matrix." default:"2048"`
	Width  []int    `help:"Rows of a pass." default:"1,2,4,8,16,32,64" placeholder:"N,…"`
	Rounds int      `help:"Passes of each kind, in turn; the best and the median count." default:"20"`
	deviceFlags
	output
}

// Run measures single matrices.
func (c *kernelsCmd) Run(a *app) error {
	b := passes.Kernels{Types: c.Type, Rows: c.Rows, Cols: c.Cols, Passes: bench.Passes{Widths: c.Width, Rounds: c.Rounds}}
	if err := b.Validate(); err != nil {
		return err
	}
	return c.with(func(d kernels.Device) error {
		r, err := b.Run(a.ctx, d)
		if err != nil {
			return err
		}
		return c.show(a, r)
	})
}
