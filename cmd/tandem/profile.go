package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/profiler"
	"github.com/tandem-llm/tandem/processes/settings"
)

type profileCmd struct {
	settings.Models
	settings.TargetHeads
	Device []string `help:"Where to measure, as elsewhere; may be repeated, and of a pair each part is measured too (cuda+cpu). With several the plan also says where the target and its drafts are best computed: see --explain." default:"cpu" placeholder:"DEVICE" sep:"none"`
	settings.GPULayers
	Threads int    `help:"Threads; 0 = all cores." default:"0"`
	ISA     string `name:"isa" help:"Instruction set: auto, generic, avx2, avxvnni, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	Lock    bool   `help:"Lock the model in memory (mlock)."`
	settings.KV
	settings.CacheFolder
	Explain     bool     `help:"Measure nothing: print, from the plan, where the target and its drafts are best computed, with the figures that say so." setting:"-"`
	Text        []string `help:"A calibration text, such as documents of the kind that will be asked for; may be repeated (default: three small ones)." placeholder:"FILE" sep:"none" setting:"-"`
	Tokens      int      `help:"How many tokens the target says of each text, 64 to 4096." default:"384" setting:"-"`
	Temperature float64  `help:"Temperature of the target on the texts." default:"0" setting:"-"`
	Width       []int    `help:"Rows of the passes to measure." default:"1,2,4,8,16,32,64" placeholder:"N,…" setting:"-"`
	Context     []int    `help:"Tokens in the KV cache before the passes to measure." default:"128,512" placeholder:"N,…" setting:"-"`
	Rounds      int      `help:"Passes of each kind; the lower quartile counts." default:"8" setting:"-"`
	Out         string   `help:"Write only what does not depend on the machine, to ship beside a model (MODEL.plan.json)." placeholder:"FILE" setting:"-"`
	output
}

// config returns what the flags say. Errors: Invalid.
func (c *profileCmd) config(a *app) (out profiler.Config, err error) {
	out = profiler.Config{Threads: c.Threads, ISA: c.ISA, KVType: c.KVType, Lock: c.Lock, Tokens: c.Tokens, Temperature: c.Temperature,
		Widths: c.Width, Context: c.Context, Rounds: c.Rounds, Version: buildVersion().Version,
		Tell: func(line string) { a.say("%s", line) },
		Open: func(path, target string, o engine.Options) (*engine.Model, error) {
			return a.openDrafts(target)(path, o)
		}}
	if err := out.Validate(); err != nil {
		return out, err
	}
	if out.Devices, err = profiler.Devices(c.Device, int64(c.GPUMemory)); err != nil {
		return out, err
	}
	for _, p := range out.Devices {
		f := start.Compute{Processor: settings.Processor{Threads: c.Threads, ISA: c.ISA, Device: p.String()}}
		if p.Layers > 0 {
			f.Device, f.GPUMemory = "cpu", c.GPUMemory
		}
		if p.Grouped() {
			f.Threads = 0
		}
		if err := f.Validate(); err != nil {
			return out, err
		}
	}
	return out, nil
}

// Run measures, and writes the plan.
func (c *profileCmd) Run(a *app) error {
	config, err := c.config(a)
	if err != nil {
		return err
	}
	if c.Explain {
		return c.explain(a)
	}
	if err := a.drafts(&c.Models, c.CacheDir); err != nil {
		return err
	}
	if config.Target, config.Drafts, err = modelPaths(c.Models, false, tandem.Request{Strategy: tandem.StrategyPlanner}); err != nil {
		return err
	}
	if config.Heads, err = find.Heads(c.Heads); err != nil {
		return err
	}
	if config.Texts, err = profiler.ReadTexts(c.Text); err != nil {
		return err
	}
	folder, err := start.OpenCache(c.CacheFolder)
	if err != nil {
		return err
	}
	file := filepath.Join(folder.Folder(), profile.Name)
	if config.Old, err = profile.Read(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.say("measuring everything anew: %v", err)
	}
	if len(config.Devices) > 1 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // two of them work at the same time
	}
	r, err := profiler.Run(a.ctx, config)
	if err != nil {
		return err
	}
	out, written := r.Plan, file
	if c.Out != "" {
		out, written = r.Plan.Portable(r.Lineage), c.Out
	}
	if err := out.Write(written); err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, out)
	}
	return r.Print(terminal.Printable{To: a.stdout}, written)
}

// explain prints the decision that the plan has for a target.
func (c *profileCmd) explain(a *app) error {
	path, err := find.Target(c.Target)
	if err != nil {
		return err
	}
	file, err := placement.FileOf(path, c.KVType)
	if err != nil {
		return err
	}
	folder, err := start.OpenCache(c.CacheFolder)
	if err != nil {
		return err
	}
	plan, err := profile.Read(filepath.Join(folder.Folder(), profile.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return tandem.Errorf("", tandem.Unavailable, "%w: measure with `tandem profile --device A --device B`", err)
	}
	if err != nil {
		return err
	}
	d, err := plan.Decision(profile.ThisBox(), buildVersion().Version, file)
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, d)
	}
	return profiler.PrintDecision(terminal.Printable{To: a.stdout}, d)
}
