package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/app/pull"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/hub"
	"github.com/tandem-llm/tandem/processes/settings"
)

type pullCmd struct {
	Name  string `arg:"" completes:"models" help:"hf:ORG/REPO[:QUANT], a name of Ollama's such as qwen3:0.6b, or https://….gguf."`
	Force bool   `help:"Fetch it even if it does not fit into this machine's memory." setting:"-"`
	storeFlags
	settings.Sizes
	settings.KV
	output
}

// storeFlags say where tandem's own files are; all other folders are those of the programs that they belong to.
type storeFlags struct{ settings.CacheDir }

type listCmd struct {
	storeFlags
	output
}

type rmCmd struct {
	Force bool     `short:"f" help:"Also remove a model that runs, and say nothing of one that is not there." setting:"-"`
	Names []string `arg:"" name:"name" completes:"pulled" help:"Models that tandem has pulled, as 'tandem list' names them."`
	storeFlags
	output
}

type showCmd struct {
	Name string `arg:"" completes:"models" help:"A model by name, file or folder. If it is not here, its header is read from its server."`
	storeFlags
	settings.Sizes
	settings.KV
	start.Budget
	output
}

// puller returns what finds and fetches models.
func (a *app) puller(c settings.CacheDir) (pull.Puller, error) {
	own, err := start.CacheDir(c)
	if err != nil {
		return pull.Puller{}, err
	}
	from, err := hub.FromEnv(os.Getenv, own)
	return pull.Puller{Hub: from, Say: a.say, Stderr: a.stderr}, err
}

// Run fetches a model.
func (c *pullCmd) Run(a *app) error {
	p, err := a.puller(c.CacheDir)
	if err != nil {
		return err
	}
	p.Force, p.Sizes, p.KVType = c.Force, c.Sizes, c.KVType
	p.Streams = start.Budget{}.Streaming(a.env(), "", settings.GPULayers{}, settings.CacheFolder{})
	m, err := p.Get(a.ctx, c.Name)
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, m.Found)
	}
	_, err = fmt.Fprintln(a.stdout, terminal.Shown(m.Path))
	return err
}

// Run lists the models that are here.
func (c *listCmd) Run(a *app) error {
	p, err := a.puller(c.CacheDir)
	if err != nil {
		return err
	}
	all := p.Hub.List()
	if c.JSON {
		return terminal.PrintJSON(a.stdout, map[string]any{"models": append([]hub.Found{}, all...)})
	}
	w := tabwriter.NewWriter(terminal.Printable{To: a.stdout}, 0, 0, 2, ' ', 0)
	for _, f := range all {
		from := "of another program"
		if f.Ours {
			from = "pulled"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", terminal.Shown(f.Name), memory.Bytes(f.Size), from, terminal.Shown(f.Store))
	}
	if len(all) == 0 {
		a.say("tandem: no models: `tandem pull NAME` fetches one")
	}
	return w.Flush()
}

// Run removes models: each that can be, and then says why the others cannot.
func (c *rmCmd) Run(a *app) error {
	p, err := a.puller(c.CacheDir)
	if err != nil {
		return err
	}
	for _, name := range c.Names {
		if one := c.remove(a, p, name); !c.Force || !errors.Is(one, hub.ErrAbsent) {
			err = errors.Join(err, one)
		}
	}
	return err
}

// remove removes one model.
func (c *rmCmd) remove(a *app, p pull.Puller, name string) error {
	n, err := p.Parse(name)
	if err != nil {
		return err
	}
	out, err := p.Hub.Remove(n, c.Force)
	if err != nil || c.JSON {
		if err == nil {
			err = terminal.PrintJSON(a.stdout, out)
		}
		return err
	}
	kept := ""
	if out.Kept > 0 {
		kept = fmt.Sprintf("; %d files stay, which another model has too", out.Kept)
	}
	_, err = fmt.Fprintf(a.stdout, "removed %s, %s%s\n", terminal.Shown(out.Name), memory.Bytes(out.Freed), kept)
	return err
}

// shown is what show prints of a model that is not here.
type shown struct {
	Name  string         `json:"name"`
	Size  int64          `json:"size_bytes"`
	Quant string         `json:"quant,omitempty"`
	Left  []string       `json:"left,omitempty"`
	Need  modelinfo.Need `json:"need"`
}

// Run shows a model.
func (c *showCmd) Run(a *app) error {
	p, err := a.puller(c.CacheDir)
	if err != nil {
		return err
	}
	p.Sizes, p.KVType = c.Sizes, c.KVType
	p.Streams = c.Streaming(a.env(), "", settings.GPULayers{}, settings.CacheFolder{})
	n, err := p.Parse(c.Name)
	if err != nil {
		return err
	}
	f, ok, err := p.Hub.Find(n)
	if err != nil {
		return err
	}
	if ok {
		info, err := modelinfo.Of(a.ctx, modelinfo.Query{Path: f.Path, Sizes: c.Sizes, KVType: c.KVType, KVMemory: c.KVMemory.Bytes(),
			Budget: c.MemoryBudget.Bytes(), Streams: c.Streaming(a.env(), "", settings.GPULayers{}, settings.CacheFolder{})})
		if err != nil {
			return err
		}
		if m, is := info.(*modelinfo.Model); is && f.Params+f.System != "" {
			extras, err := pull.ExtrasOf(f)
			if err != nil {
				return err
			}
			m.Stored, m.Notes = extras.Rows(), append(m.Notes, extras.Notes...)
		}
		return c.show(a, info)
	}
	plan, err := p.Hub.Plan(a.ctx, n)
	if err != nil {
		return err
	}
	defer plan.Close()
	need, err := p.Look(a.ctx, plan)
	if err != nil {
		return err
	}
	out := shown{plan.Name.String(), plan.Size, plan.Quant, plan.Left, need}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, out)
	}
	left := ""
	if len(out.Left) > 0 {
		left = "left beside it: " + terminal.AllShown(out.Left) + "\n"
	}
	_, err = fmt.Fprintf(a.stdout, "%s, %s, not here: `tandem pull` fetches it\n%s\n%s", terminal.Shown(out.Name), memory.Bytes(out.Size),
		terminal.Shown(need.String()), left)
	return err
}

// target puts the path of the model that is named in place of its name: of name, the command's argument, or of m.Target. A model that is
// not here is fetched. Paths of files stay as they are. It does so with m.Draft too.
func (a *app) target(name string, m *settings.Group) (pull.Extras, error) {
	if err := a.drafts(&m.Models, m.CacheDir); err != nil {
		return pull.Extras{}, err
	}
	if name != "" && m.Target != "" {
		return pull.Extras{}, tandem.Errorf("", tandem.Invalid, "the model %s with --target %s: want one of them", name, m.Target)
	}
	if name != "" {
		m.Target = name
	}
	if st, err := os.Stat(m.Target); m.Target == "" || hub.IsPath(m.Target) && (err != nil || !st.IsDir()) {
		return pull.Extras{}, nil
	}
	p, err := a.puller(m.CacheDir)
	if err != nil {
		return pull.Extras{}, err
	}
	p.Sizes, p.KVType = m.Sizes, m.KVType
	p.Streams = start.Budget{Budget: m.Budget}.Streaming(a.env(), m.Device, m.GPULayers, m.CacheFolder)
	got, err := p.Get(a.ctx, m.Target)
	if err != nil {
		return pull.Extras{}, err
	}
	for _, note := range got.Notes {
		a.say("tandem: %s: %s", m.Target, note)
	}
	if m.Target = got.File; m.Ctx == 0 {
		m.Ctx = got.Context
	}
	return got.Extras, nil
}
