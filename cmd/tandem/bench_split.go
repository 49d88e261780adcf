package main

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/roles"
)

type benchSplitCmd struct {
	Model        string `help:"GGUF file (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Context      []int  `help:"Tokens in the KV cache before each pass." default:"256" placeholder:"N,…" setting:"-"`
	LeftThreads  int    `help:"Threads of the left group of cores; 0 = half of the cores." default:"0" setting:"-"`
	RightThreads int    `help:"Threads of the right group of cores; 0 = half of the cores." default:"0" setting:"-"`
	Slower       int    `help:"The right group does every product and block of attention this many times, like a slower processor." default:"1" setting:"-"`
	Width        []int  `help:"Rows of a pass." default:"1,8,16,64" placeholder:"N,…" setting:"-"`
	Rounds       int    `help:"Passes of each kind, in turn; the median counts." default:"12" setting:"-"`
	ISA          string `name:"isa" help:"Instruction set: auto, generic, avx2, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	kvFlags
	output
}

// Run measures passes that are divided between two groups of cores.
func (c *benchSplitCmd) Run(a *app) error {
	half := max(1, runtime.NumCPU()/2)
	c.LeftThreads, c.RightThreads = cmp.Or(c.LeftThreads, half), cmp.Or(c.RightThreads, half)
	if c.Slower < 1 || c.Slower > 64 {
		return tandem.Errorf("", tandem.Invalid, "--slower is %d: want 1 to 64", c.Slower)
	}
	path, err := targetPath(c.Model)
	if err != nil {
		return err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	b := bench.Split{Name: roles.ModelName(path), Contexts: c.Context, KVType: c.KVType,
		Passes: bench.Passes{Widths: c.Width, Rounds: c.Rounds}}
	o, err := b.Options(info.Config.Context)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // both groups are started from Go when they work for themselves
	var groups [2]*cpu.Device
	for i, threads := range []int{c.LeftThreads, c.RightThreads} {
		if groups[i], err = openCPU(threads, c.ISA); err != nil {
			return err
		}
		defer groups[i].Close()
	}
	groups[1].Repeat(c.Slower)
	both, err := split.New(groups[0], groups[1], split.Plan{})
	if err != nil {
		return err
	}
	defer both.Close()
	d := measure.Divided{Divide: func(x measure.Division) error {
		return both.SetPlan(split.Plan{Points: []split.Point{{Rows: 1, Columns: x.Columns, Blocks: x.Blocks}}})
	}}
	for device, m := range map[kernels.Device]**engine.Model{groups[0]: &d.Left, groups[1]: &d.Right, both: &d.Both} {
		o.Device = device
		if *m, err = a.openModel(path, o); err != nil {
			return err
		}
		defer (*m).Close()
	}
	r, err := b.Run(a.ctx, &d)
	if err != nil {
		return err
	}
	r.Left, r.Right, r.Slower = fmt.Sprint(groups[0].About()), fmt.Sprint(groups[1].About()), c.Slower
	return c.show(a, r)
}
