package main

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/lab/passes"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/roles"
)

type splitCmd struct {
	Model        string `help:"GGUF file (default: the shipped target)." placeholder:"FILE"`
	Context      []int  `help:"Tokens in the KV cache before each pass." default:"256" placeholder:"N,…"`
	LeftThreads  int    `help:"Threads of the left group of cores; 0 = half of the cores." default:"0"`
	RightThreads int    `help:"Threads of the right group of cores; 0 = half of the cores." default:"0"`
	Heads        string `help:"Side file of the model by which it guesses by itself, of kind medusa or ppd: measure tokens per second with trees of each width instead, of the left group, of both, and of one group of all threads." placeholder:"FILE"`
	Slower       int    `help:"The right group does every product and block of attention this many times, like a slower processor." default:"1"`
	Width        []int  `help:"Rows of a pass." default:"1,8,16,64" placeholder:"N,…"`
	Rounds       int    `help:"Passes of each kind, in turn; the median counts." default:"12"`
	ISA          string `name:"isa" help:"Instruction set: auto, generic, avx2, avxvnni, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	KVType       string `name:"kv-type" help:"Type of keys and values in the cache: f16 or q8_0." default:"f16"`
	output
}

// Run measures passes that are divided between two groups of cores.
func (c *splitCmd) Run(a *app) error {
	half := max(1, runtime.NumCPU()/2)
	c.LeftThreads, c.RightThreads = cmp.Or(c.LeftThreads, half), cmp.Or(c.RightThreads, half)
	if c.Slower < 1 || c.Slower > 64 {
		return tandem.Errorf("", tandem.Invalid, "--slower is %d: want 1 to 64", c.Slower)
	}
	path, err := find.Target(c.Model)
	if err != nil {
		return err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	// Both groups are started from Go when they work for themselves. With no more than two, Go's scheduler would look for other work on
	// their cores whenever both compute.
	runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0)))
	var groups [2]*cpu.Device
	for i, threads := range []int{c.LeftThreads, c.RightThreads} {
		if groups[i], err = (device.Opener{ISA: c.ISA}).CPU(threads); err != nil {
			return err
		}
		defer groups[i].Close()
	}
	groups[1].Repeat(c.Slower)
	both, err := split.New(groups[0], groups[1], nil)
	if err != nil {
		return err
	}
	defer both.Close()
	x := coreGroups{groups, both}
	if c.Heads != "" {
		return c.heads(a, path, info, x)
	}
	return c.passes(a, path, info, x)
}

// coreGroups is what is measured.
type coreGroups struct {
	groups [2]*cpu.Device
	both   *split.Device
}

func (p coreGroups) divide(x measure.Division) error {
	return p.both.Divide([]kernels.Division{{Rows: 1, Columns: x.Columns, Blocks: x.Blocks}})
}

// passes measures whole passes.
func (c *splitCmd) passes(a *app, path string, info *engine.Info, p coreGroups) error {
	b := passes.Split{Name: roles.ModelName(path), Contexts: c.Context, KVType: c.KVType,
		Both: p.both, Passes: bench.Passes{Widths: c.Width, Rounds: c.Rounds}}
	o, err := b.Options(info.Config.Context)
	if err != nil {
		return err
	}
	d, closed, err := p.open(a, path, o)
	if err != nil {
		return err
	}
	defer closed()
	r, err := b.Run(a.ctx, d)
	if err != nil {
		return err
	}
	r.Left, r.Right, r.Slower = fmt.Sprint(p.groups[0].About()), fmt.Sprint(p.groups[1].About()), c.Slower
	return c.show(a, r)
}

// open opens a model on each group and on both.
func (p coreGroups) open(a *app, path string, o engine.Options) (*measure.Divided, func(), error) {
	d := &measure.Divided{Divide: p.divide}
	closed := func() {
		for _, m := range []*engine.Model{d.Left, d.Right, d.Both} {
			if m != nil {
				m.Close()
			}
		}
	}
	for device, m := range map[kernels.Device]**engine.Model{p.groups[0]: &d.Left, p.groups[1]: &d.Right, p.both: &d.Both} {
		o.Device = device
		var err error
		if *m, err = a.open(path, o); err != nil {
			closed()
			return nil, nil, err
		}
	}
	return d, closed, nil
}
