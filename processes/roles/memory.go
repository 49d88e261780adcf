package roles

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Room is memory for models that run at the same time, with the same sizes and options.
type Room struct {
	settings.Sizes
	Options  engine.Options
	Target   string // GGUF file of the target, for drafts that need it
	Lends    bool   // drafts in processes of their own map what they borrow from Target as a whole: Tenant.Lent
	Beside   int64  // bytes that one of the processes needs beside its model
	Asked    int    // sessions that somebody asked for; 0: Sessions is a default
	KVMemory int64  // bytes for the keys and values of all models together; 0: Plan chooses
	Models   []Tenant
}

// Tenant is a model that needs memory. Its Pages are those of its pool, the least that will do until Plan has chosen.
type Tenant struct {
	path    string
	sides   []string // its side files
	nodes   int      // tree rows of a session
	rows    int      // of the largest pass
	wanted  int      // rows with logits in a pass; 0: all
	Context int      // the model's, in tokens
	LeftOut []gguf.TowerPart
	Config  engine.Config // the zero value: a draft with states
	memory.Footprint
	vocab   any // of the file: while it is held, nobody who looks at the file reads it again
	measure func(pages, wanted int) (memory.Footprint, error)
	states  bool // it is a draft with states
	fitted  bool // the footprint depends on the number of pages
}

// Add plans the model at path and its side files, with nodes tree rows for each session and so many rows with logits in a pass (0: all).
func (r *Room) Add(path string, nodes, wanted int, sides ...string) error {
	return r.add(Tenant{path: path, sides: sides, nodes: nodes, rows: passRows, wanted: wanted})
}

// add plans t, of which path, sides, nodes, rows, wanted and Guest are filled in.
func (r *Room) add(t Tenant) error {
	path, sides := t.path, t.sides
	spec, err := engine.SideOf(path)
	if err != nil {
		return err
	}
	o, guest := r.Options, t.Guest
	o.MaxRows, o.MaxWanted, o.Sequences = t.rows, t.wanted, sequences(r.Sizes)
	_, t.fitted = o.Device.(kernels.Fitter)
	if t.states = spec.Kind.IsDraft(); t.states {
		o.Taps = nil
		t.Context, err = r.contextOf(path, spec.Kind)
	} else {
		var info *engine.Info
		if info, err = engine.Inspect(path); err == nil {
			t.Context, t.LeftOut, t.Config, t.vocab = info.Config.Context, info.LeftOut, info.Config, info.Header.Vocab
		}
	}
	if err != nil {
		return err
	}
	t.measure = func(pages, wanted int) (memory.Footprint, error) {
		o := o
		o.KVPages, o.MaxWanted = 1, wanted
		if t.fitted {
			o.KVPages = min(pages, kernels.MaxPages)
		}
		if t.states {
			return engine.MeasureDraft(path, r.Target, o)
		}
		return engine.Measure(path, o, sides...)
	}
	if t.Footprint, err = t.measure(t.least(r.Sizes), t.wanted); err != nil {
		return err
	}
	t.Pages, t.Guest = t.least(r.Sizes), guest
	t.Weights -= r.Lent(&t)
	r.Models = append(r.Models, t)
	return nil
}

// Lent returns how many bytes of a model's weights are its target's: they are counted there.
func (r *Room) Lent(t *Tenant) int64 {
	if !r.Lends || !t.Borrows() || t.Guest {
		return 0
	}
	return t.Output
}

// Borrows reports whether a model multiplies by all of its target's output matrix.
func (t *Tenant) Borrows() bool { return t.states && t.Output > 0 }

// Apart returns a room for r's models in which no draft maps what is its target's.
func (r *Room) Apart() *Room {
	out := *r
	out.Models = slices.Clone(r.Models)
	for i := range out.Models {
		out.Models[i].Weights += r.Lent(&r.Models[i])
	}
	out.Lends = false
	return &out
}

// Wanted returns how many rows of a pass have logits; 0: all.
func (t *Tenant) Wanted() int { return t.wanted }

// Of returns a room for some of r's models, by their indices, and nothing beside them if beside is false. Planning it leaves r as it is.
func (r *Room) Of(beside bool, places ...int) *Room {
	out := *r
	out.Models = nil
	for _, i := range places {
		out.Models = append(out.Models, r.Models[i])
	}
	if !beside {
		out.Beside = 0
	}
	return &out
}

// contextOf returns the context of a draft with states. That of mtp is its target's.
func (r *Room) contextOf(path string, kind side.Kind) (int, error) {
	if kind == side.MTP {
		info, err := engine.Inspect(r.Target)
		if err != nil {
			return 0, err
		}
		return info.Config.Context, nil
	}
	f, err := gguf.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Int(string(kind)+".context_length", 1, math.MaxInt32)
}

// sequences returns how many sessions a model holds at once.
func sequences(s settings.Sizes) int { return s.Sessions + SpareSessions }

// total returns what all models need at least with sizes s, in bytes.
func (r *Room) total(s settings.Sizes) (sum int64) {
	for _, t := range r.Models {
		t.Footprint = t.For(sequences(s))
		t.Pages = t.least(s)
		sum += t.Total()
	}
	return sum + r.Beside
}

// own returns what all models need at least of the device's own memory with sizes s.
func (r *Room) own(s settings.Sizes) (sum int64) {
	for _, t := range r.Models {
		sum += t.For(sequences(s)).Own.Total(t.least(s))
	}
	return sum
}

// Total returns what all models take, with the pools that Plan has chosen.
func (r *Room) Total() (sum int64) {
	for _, t := range r.Models {
		sum += t.Total()
	}
	return sum + r.Beside
}

// fits reports whether all models fit with sizes s.
func (r *Room) fits(a memory.Available, s settings.Sizes) bool {
	if a.Own != nil && r.own(s) > a.Own.Bytes {
		return false
	}
	if !a.Each {
		return r.total(s) <= a.Bytes
	}
	for i := range r.Models {
		if one := (Room{Models: r.Models[i : i+1], Beside: r.Beside}); one.total(s) > a.Bytes {
			return false
		}
	}
	return true
}

// Check refuses models that do not fit into what is available, and says what would fit.
func (r *Room) Check(available memory.Available) error {
	if r.fits(available, r.Sizes) {
		return nil
	}
	var needs, own []string
	for _, t := range r.Models {
		t.Pages = t.least(r.Sizes)
		needs = append(needs, fmt.Sprintf("%s needs %s", ModelName(t.path), t.Footprint))
		if t.Own != (kernels.Space{}) {
			own = append(own, fmt.Sprintf("%s needs %s", ModelName(t.path), t.OwnString()))
		}
	}
	if err := available.FitsOwn(strings.Join(own, ", and "), r.own(r.Sizes)); err != nil {
		return tandem.Errorf("", tandem.Exhausted, "%w: %s", err, r.Advice(available))
	}
	if r.Beside > 0 {
		needs = append(needs, fmt.Sprintf("features need %s (--feature-memory)", memory.Bytes(r.Beside)))
	}
	return tandem.Errorf("", tandem.Exhausted, "%s; %s allows %s: %s",
		strings.Join(needs, ", and "), available.By, memory.Bytes(max(0, available.Bytes)), r.Advice(available))
}

// Advice returns what would fit, as text.
func (r *Room) Advice(available memory.Available) string {
	longest := 0
	for _, t := range r.Models {
		longest = max(longest, r.ContextOf(t.Context))
	}
	// The largest context in whole pages, and the largest number of sessions, that fit.
	pages := sort.Search(longest/kernels.PageRows, func(n int) bool {
		return !r.fits(available, settings.Sizes{Ctx: (n + 1) * kernels.PageRows, Sessions: r.Sessions})
	})
	sessions := sort.Search(r.Sessions, func(n int) bool { return !r.fits(available, settings.Sizes{Ctx: r.Ctx, Sessions: n + 1}) })
	var fits []string
	if pages > 0 {
		fits = append(fits, fmt.Sprintf("--ctx %d", pages*kernels.PageRows))
	}
	if sessions > 0 {
		fits = append(fits, fmt.Sprintf("--sessions %d", sessions))
	}
	small := Room{Sizes: r.Sizes, Options: r.Options, Target: r.Target, Beside: r.Beside, Lends: r.Lends}
	small.Options.KVType = "q8_0"
	if r.Options.KVType != "q8_0" && small.fill(r.Models) && small.fits(available, r.Sizes) {
		fits = append(fits, "--kv-type q8_0")
	}
	if len(fits) == 0 {
		one := settings.Sizes{Ctx: kernels.PageRows, Sessions: 1}
		if own := r.own(one); available.Own != nil && own > available.Own.Bytes {
			return fmt.Sprintf("one session of %d tokens needs %s of it", kernels.PageRows, memory.Bytes(own))
		}
		return fmt.Sprintf("one session of %d tokens needs %s", kernels.PageRows, memory.Bytes(r.total(one)))
	}
	return strings.Join(fits, " or ") + " would fit"
}

// fill adds the same models; false if one cannot run with r's type of cache.
func (r *Room) fill(models []Tenant) bool {
	for _, t := range models {
		again := Tenant{path: t.path, sides: t.sides, nodes: t.nodes, rows: t.rows, wanted: t.wanted}
		again.Guest = t.Guest
		if r.add(again) != nil {
			return false
		}
	}
	return true
}
