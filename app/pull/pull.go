// Package pull brings a model's name to a file that is there: found on this machine, or fetched once its header has shown that it runs
// here.
package pull

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/hub"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Puller finds and fetches models.
type Puller struct {
	Hub    hub.Config
	Say    func(format string, args ...any) // what is done, in lines
	Stderr io.Writer                        // shows progress
	Sizes  settings.Sizes                   // of the verifier that is to run the model
	KVType string
	// how a model runs that does not fit into memory; nil: it does not
	Streams *roles.Streaming
	Force   bool // fetch what is too large for this machine's memory
}

// Model is a model that is there.
type Model struct {
	hub.Found
	File string // path of its only or first file, by which programs call it
	Extras
}

// Parse takes a name apart.
func (p Puller) Parse(text string) (hub.Name, error) { return hub.Parse(text, p.Hub.Endpoint) }

// Get returns the model of that name: it asks no server if the model is on this machine, and else fetches it. Errors: those of hub.Parse,
// Config.Find and Fetch.
func (p Puller) Get(ctx context.Context, text string) (Model, error) {
	n, err := p.Parse(text)
	if err != nil {
		return Model{}, err
	}
	f, ok, err := p.Hub.Find(n)
	if err == nil && !ok {
		f, err = p.Fetch(ctx, n)
	}
	if err != nil {
		return Model{}, err
	}
	return p.model(n, f)
}

// model gives a found model a file's name and reads what Ollama's store says of it.
func (p Puller) model(n hub.Name, f hub.Found) (m Model, err error) {
	m = Model{Found: f, File: f.Path}
	if filepath.Ext(f.Path) == ".gguf" || n.Source == hub.File {
		return m, nil
	}
	m.File = p.named(n, f.Path)
	m.Extras, err = ExtrasOf(f)
	return m, err
}

// named makes a link to a file of Ollama's store, whose name is its digest: by the link's name clients know the model. Without a folder for
// it, the file's own name has to do.
func (p Puller) named(n hub.Name, path string) string {
	dir := filepath.Join(p.Hub.Own, "names")
	if os.MkdirAll(dir, 0o700) != nil || files.Trusted(dir) != nil {
		return path
	}
	name := strings.NewReplacer("://", "-", "/", "-", ":", "-").Replace(strings.TrimSuffix(n.String(), ":latest")) + ".gguf"
	link := filepath.Join(dir, name)
	if to, err := os.Readlink(link); err == nil && to == path {
		return link
	}
	made := fmt.Sprintf("%s.%x", link, rand.Uint64())
	if os.Symlink(path, made) != nil {
		return path
	}
	if os.Rename(made, link) != nil {
		_ = os.Remove(made)
		return path
	}
	return link
}

// Look reads the header of a model that is not on this machine, and returns what it takes here. Errors: those of the server, and of
// modelinfo.NeedOf.
func (p Puller) Look(ctx context.Context, plan *hub.Plan) (modelinfo.Need, error) {
	path, back, err := plan.Headers(ctx)
	if err != nil {
		return modelinfo.Need{}, err
	}
	defer back()
	need, err := modelinfo.NeedOf(modelinfo.Query{Path: path, Sizes: p.Sizes, KVType: p.KVType, Streams: p.Streams})
	if err != nil {
		err = tandem.Errorf("", tandem.KindOf(err), "%s cannot run here, and is not fetched: %w", plan.Name, err)
	}
	return need, err
}

// Fetch fetches a model that is not on this machine, if it runs here, streamed or not. Errors: Exhausted if it is too large and Force is
// not set; those of Look, hub.Config.Writable, Plan and Fetch.
func (p Puller) Fetch(ctx context.Context, n hub.Name) (f hub.Found, err error) {
	if err := p.Hub.Writable(n); err != nil {
		return f, err
	}
	plan, err := p.Hub.Plan(ctx, n)
	if err != nil {
		return f, err
	}
	defer plan.Close()
	need, err := p.Look(ctx, plan)
	if err != nil {
		return f, err
	}
	if !need.Runs() && !p.Force {
		return f, tandem.Errorf("", tandem.Exhausted, "%s is not fetched (%s): %s; `tandem pull --force %s` fetches it nevertheless", n,
			need, need.Advice, n)
	}
	p.Say("tandem: fetching %s, %s (%s)", n, memory.Bytes(plan.Size), need)
	if len(plan.Left) > 0 {
		p.Say("tandem: left: %s", terminal.AllShown(plan.Left))
	}
	rate := terminal.NewRate(p.Stderr, "MB")
	defer rate.End()
	var show display
	return p.Hub.Fetch(ctx, plan, func(done, total int64, waits bool) {
		if show.waiting(waits) {
			p.Say("tandem: another process fetches %s: waiting for it", n)
		}
		rate.Step(show.step(done, total))
	})
}

// display counts what is fetched for the line that shows it.
type display struct {
	begun, said bool
	before      int64 // bytes that were there at the beginning
}

// waiting reports once that another process is waited for.
func (d *display) waiting(waits bool) bool {
	first := waits && !d.said
	d.said = d.said || waits
	return first
}

// step returns the arguments of Rate.Step: megabytes that are there and that were, and the share.
func (d *display) step(done, total int64) (n, before int, share float64) {
	const mega = 1e6
	if !d.begun {
		d.begun, d.before = true, done
	}
	return int(done / mega), int(d.before / mega), float64(done) / float64(max(total, 1))
}
