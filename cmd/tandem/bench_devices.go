package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/bench/devices"
	"github.com/tandem-llm/tandem/bench/prompts"
	"github.com/tandem-llm/tandem/bench/system"
	"github.com/tandem-llm/tandem/cmd/tandem/config"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/settings"
)

type benchDevicesCmd struct {
	On        []string `help:"Devices whose bits are compared with the processor's; of the first the draft's step is measured. none = neither." default:"cuda" placeholder:"DEVICE" sep:"none" setting:"-"`
	Place     []string `help:"A placement, NAME=FLAGS, with flags of this command, such as 'drafts=--draft-device cuda'; may be repeated. The first one's ids are those that all must have. NAME! also wants nine tenths of what drafting ahead can bring (default: the processor alone, drafts on the GPU, a split pass, the GPU alone, in this order, with the first device of --on)." placeholder:"NAME=FLAGS" sep:"none" setting:"-"`
	GPULayers string   `name:"gpu-layers" help:"Among the default placements also: this much of the target on the GPU, as --gpu-memory wants it." placeholder:"SIZE" setting:"-"`
	Prompts   string   `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE" setting:"-"`
	Count     int      `help:"Prompts of each domain; 0 = all." default:"2" setting:"-"`
	Repeat    int      `help:"How often each prompt is run in each way." default:"1" setting:"-"`
	Context   []int    `help:"Tokens in the KV cache before compared passes; before the draft's step the largest." default:"1,300,700" placeholder:"N,…" setting:"-"`
	Rounds    int      `help:"Passes of the draft's step; the median counts." default:"50" setting:"-"`
	settings.Sampling
	groupFlags
	output
}

// Run measures devices and placements.
func (c *benchDevicesCmd) Run(a *app) error {
	conf, err := c.config(a)
	if err != nil {
		return err
	}
	r, err := devices.Run(a.ctx, conf)
	if r == nil {
		return err
	}
	if failed := c.show(a, r); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	return r.Err()
}

// config returns what the flags say.
func (c *benchDevicesCmd) config(a *app) (out devices.Config, err error) {
	out = devices.Config{Reference: "cpu", Devices: c.On, Contexts: c.Context, Steps: c.Rounds, Repeat: c.Repeat, Open: c.open(a)}
	if len(c.On) == 1 && c.On[0] == "none" {
		out.Devices = nil
	}
	for _, d := range out.Devices {
		if err := checkPlace("on", d); err != nil {
			return out, err
		}
	}
	if out.Speculating, err = c.Request("x"); err != nil {
		return out, err
	}
	out.Plain = out.Speculating
	out.Plain.Bounds = tandem.Bounds{}
	target, drafts, err := c.pair(false, tandem.Request{Strategy: tandem.StrategyFixed})
	if err != nil {
		return out, err
	}
	if len(drafts) != 1 {
		return out, tandem.Errorf("", tandem.Invalid, "%d drafts: want one, by --draft FILE", len(drafts))
	}
	out.Target, out.Draft = target, drafts[0]
	if out.Places, err = c.places(out.Devices); err != nil {
		return out, err
	}
	out.Start = func(p devices.Place, do func(context.Context, devices.Processes) error) error {
		return c.start(a, p, target, drafts, do)
	}
	if len(out.Places) == 0 {
		return out, nil
	}
	path, err := promptsPath(c.Prompts)
	if err != nil {
		return out, err
	}
	sets, err := prompts.Read(path)
	for _, s := range sets {
		out.Prompts = append(out.Prompts, s.Take(c.Count).Prompts...)
	}
	return out, err
}

// places returns the placements that were asked for, or the usual ones.
func (c *benchDevicesCmd) places(on []string) (all []devices.Place, err error) {
	for _, s := range c.Place {
		name, flags, ok := strings.Cut(s, "=")
		if !ok || name == "" || !strings.HasPrefix(flags, "--") {
			return nil, tandem.Errorf("", tandem.Invalid, "--place %q: want NAME=FLAGS, such as 'drafts=--draft-device cuda'", s)
		}
		name, ahead := strings.CutSuffix(name, "!")
		all = append(all, devices.Place{Name: name, Flags: flags, Ahead: ahead})
	}
	if len(all) > 0 {
		return all, nil
	}
	all = []devices.Place{{Name: "cpu alone", Flags: "--device cpu --draft-device cpu"}}
	if len(on) == 0 {
		return all, nil
	}
	gpu := on[0]
	all = append(all, devices.Place{Name: "gpu drafts", Flags: "--device cpu --draft-device " + gpu, Ahead: true})
	if c.GPULayers != "" {
		all = append(all, devices.Place{Name: "layers on the gpu", Flags: fmt.Sprintf("--device cpu --gpu-memory %s --draft-device %s",
			c.GPULayers, gpu)})
	}
	return append(all, devices.Place{Name: "split pass", Flags: fmt.Sprintf("--device %s+cpu --draft-device %s", gpu, gpu)},
		devices.Place{Name: "gpu alone", Flags: fmt.Sprintf("--device %s --draft-device %s", gpu, gpu)}), nil
}

// open returns what opens a model on a device, as the command line names it.
func (c *benchDevicesCmd) open(a *app) func(device, path string, o engine.Options) (*engine.Model, func(), error) {
	return func(device, path string, o engine.Options) (*engine.Model, func(), error) {
		o.KVType = c.KVType
		at := computeFlags{Processor: settings.Processor{Threads: c.VerifierThreads, ISA: c.ISA, Device: device}}
		return at.load(a, func(d kernels.Device) (*engine.Model, error) {
			o.Device = d
			return a.openModel(path, o)
		})
	}
}

// start starts the processes of a placement: this command's flags, and then the placement's.
func (c *benchDevicesCmd) start(a *app, p devices.Place, target string, drafts []string,
	do func(context.Context, devices.Processes) error) error {
	parser, err := newParser(config.NewResolver(os.LookupEnv))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(slices.Concat(a.kong.Args, strings.Fields(p.Flags))); err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s: %w", p.Flags, err)
	}
	of := parser.Model.Target.Addr().Interface().(*cli).Bench.Devices
	s := benchSystemCmd{Sampling: of.Sampling, groupFlags: of.groupFlags}
	return s.start(a, system.Group{Target: target, Drafts: drafts, Sessions: 1}, func(ctx context.Context, p system.Processes) error {
		return do(ctx, p)
	})
}
