package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/replay"
	"github.com/tandem-llm/tandem/lab/devices"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/roles"
)

type devicesCmd struct {
	On        []string      `help:"Devices whose bits are compared with the processor's; of the first the draft's step is measured. none = neither." default:"cuda" placeholder:"DEVICE" sep:"none"`
	Place     []string      `help:"A placement, NAME=FLAGS, with flags of 'tandem up', such as 'drafts=--draft-device cuda'; may be repeated. The first one's ids are those that all must have. NAME! also wants nine tenths of what drafting ahead can bring (default: the processor alone, drafts on the GPU, a split pass, the GPU alone, in this order, with the first device of --on)." placeholder:"NAME=FLAGS" sep:"none"`
	GPULayers string        `name:"gpu-layers" help:"Among the default placements also: this much of the target on the GPU, as --gpu-memory wants it." placeholder:"SIZE"`
	Prompts   string        `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE"`
	Count     int           `help:"Prompts of each domain; 0 = all." default:"2"`
	Repeat    int           `help:"How often each prompt is run in each way." default:"1"`
	Context   []int         `help:"Tokens in the KV cache before compared passes; before the draft's step the largest." default:"1,300,700" placeholder:"N,…"`
	Rounds    int           `help:"Passes of the draft's step; the median counts." default:"50"`
	Width     []int         `help:"Rows of the target's passes that are measured on all devices (default: none)." placeholder:"N,…"`
	Energy    bool          `help:"Read this machine's meters of energy during passes and placements."`
	Limit     time.Duration `help:"Break off and skip what is not finished after this time (default: never)." placeholder:"TIME"`
	Page      string        `help:"Also write the results there as Markdown, after each part." placeholder:"FILE"`
	Save      string        `help:"Folder for the first operation that gives other bits, with all that it read." placeholder:"FOLDER"`
	Target    string        `help:"GGUF file of the target (default: the shipped one)." placeholder:"FILE"`
	Draft     string        `help:"GGUF file of the draft (default: the shipped one for everything)." placeholder:"FILE"`
	KVType    string        `name:"kv-type" help:"Type of keys and values in the cache: f16 or q8_0." default:"f16"`
	Threads   int           `help:"Threads of the processor, to compare bits and for the draft's step; 0 = all cores." default:"0"`
	ISA       string        `name:"isa" help:"Instruction set: auto, generic, avx2, avxvnni, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	requestFlags
	tandemFlags
	output
}

// Run measures devices and placements.
func (c *devicesCmd) Run(a *app) error {
	conf, err := c.config(a)
	if err != nil {
		return err
	}
	if c.Energy {
		conf.Energy = devices.OpenEnergy("/", "nvidia-smi", "0")
		defer conf.Energy.Close()
	}
	var unwritten error
	if c.Page != "" {
		conf.Progress = func(r *devices.Result) { unwritten = c.write(r) }
	}
	r, err := devices.Run(a.ctx, conf)
	if r == nil {
		return err
	}
	if unwritten != nil {
		return tandem.Errorf("", tandem.Invalid, "--page: %w", unwritten)
	}
	if failed := c.show(a, r); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	return r.Err()
}

// write writes the page anew.
func (c *devicesCmd) write(r *devices.Result) error {
	f, err := os.Create(c.Page)
	if err != nil {
		return err
	}
	return errors.Join(r.Page(f), f.Close())
}

// config returns what the flags say.
func (c *devicesCmd) config(a *app) (out devices.Config, err error) {
	out = devices.Config{Reference: "cpu", Devices: c.On, Contexts: c.Context, Steps: c.Rounds, Repeat: c.Repeat, Open: c.open(a),
		Beside: c.beside(a), Widths: c.Width, Rounds: min(c.Rounds, 10), Save: c.Save}
	if c.Limit > 0 {
		out.Until = time.Now().Add(c.Limit)
	}
	if len(c.On) == 1 && c.On[0] == "none" {
		out.Devices = nil
	}
	for _, d := range out.Devices {
		if err := device.Check("on", d); err != nil {
			return out, err
		}
	}
	if out.Speculating, err = c.request("x"); err != nil {
		return out, err
	}
	out.Plain = out.Speculating
	out.Plain.Bounds = tandem.Bounds{}
	if out.Target, err = find.Target(c.Target); err != nil {
		return out, err
	}
	if out.Draft = c.Draft; c.Draft == "" {
		all, err := find.Shipped(models.Draft)
		if err != nil {
			return out, err
		}
		out.Draft = all[0]
	}
	if out.Places, err = c.places(out.Devices); err != nil {
		return out, err
	}
	out.Start = func(ctx context.Context, p devices.Place, do func(context.Context, devices.Processes) error) error {
		return c.startPlacement(ctx, a, p, &out, do)
	}
	if len(out.Places) == 0 {
		return out, nil
	}
	sets, err := prompts.Read(cmp.Or(c.Prompts, prompts.Texts))
	for _, s := range sets {
		out.Prompts = append(out.Prompts, s.Take(c.Count).Prompts...)
	}
	return out, err
}

// places returns the placements that were asked for, or the usual ones.
func (c *devicesCmd) places(on []string) (all []devices.Place, err error) {
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

// device opens a device, as the command line names it.
func (c *devicesCmd) device(at string) (roles.Device, error) {
	p, err := device.Parse("on", at)
	if err != nil {
		return nil, err
	}
	threads := c.Threads
	if p.Grouped() {
		threads = 0
	}
	return device.Opener{ISA: c.ISA}.Open(p, threads)
}

// load opens a model on a device; closed closes the model and the devices.
func (c *devicesCmd) load(a *app, path string, o engine.Options, d kernels.Device, own ...roles.Device) (*engine.Model, func(), error) {
	closed := func() {
		for _, d := range own {
			d.Close()
		}
	}
	o.Device, o.KVType = d, c.KVType
	m, err := a.open(path, o)
	if err != nil {
		closed()
		return nil, nil, err
	}
	return m, func() {
		m.Close()
		closed()
	}, nil
}

// open returns what opens a model on a device.
func (c *devicesCmd) open(a *app) func(device, path string, o engine.Options) (*engine.Model, func(), error) {
	return func(at, path string, o engine.Options) (*engine.Model, func(), error) {
		d, err := c.device(at)
		if err != nil {
			return nil, nil, err
		}
		return c.load(a, path, o, d, d)
	}
}

// beside returns what opens a model on the processor, with another device beside it.
func (c *devicesCmd) beside(a *app) func(at, path string, o engine.Options, found func(*replay.Record, error)) (*engine.Model, func(),
	error) {
	return func(at, path string, o engine.Options, found func(*replay.Record, error)) (*engine.Model, func(), error) {
		right, err := c.device("cpu")
		if err != nil {
			return nil, nil, err
		}
		d, err := c.device(at)
		if err != nil {
			right.Close()
			return nil, nil, err
		}
		return c.load(a, path, o, replay.Beside(right, d, found), right, d)
	}
}

// startPlacement starts the processes of a placement: with --up, and then the placement's flags.
func (c *devicesCmd) startPlacement(ctx context.Context, a *app, p devices.Place, of *devices.Config,
	do func(context.Context, devices.Processes) error) error {
	flags := append([]string{"--target", of.Target, "--draft", of.Draft, "--sessions", "1", "--set", "prefix-cache=off",
		"--set", "kv-type=" + c.KVType, "--set", "isa=" + c.ISA}, strings.Fields(p.Flags)...)
	return c.start(ctx, a, flags, func(ctx context.Context, p talk.Processes) error { return do(ctx, p) })
}
