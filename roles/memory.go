package roles

import (
	"fmt"
	"sort"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// Room is memory for models that run at the same time, with the same sizes and options.
type Room struct {
	Sizes
	Options engine.Options
	Models  []Tenant
}

// Tenant is a model that needs memory. Its Pages are what it needs with the room's sizes.
type Tenant struct {
	path    string
	nodes   int // tree rows of a session
	Context int // of the model
	engine.Footprint
}

// Add plans the model at path, with nodes tree rows for each session.
func (r *Room) Add(path string, nodes int) error {
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	o := r.Options
	o.KVPages, o.MaxRows = 1, passRows
	p, err := engine.Measure(path, o)
	if err != nil {
		return err
	}
	t := Tenant{path, nodes, info.Config.Context, p}
	t.Pages = t.pages(r.Sizes)
	r.Models = append(r.Models, t)
	return nil
}

// pages returns the pages of the cache that a model needs.
func (t *Tenant) pages(s Sizes) int {
	return engine.PagesFor(s.Sessions+SpareSessions, s.ContextOf(t.Context), t.nodes)
}

// total returns what all models need with sizes s, in bytes.
func (r *Room) total(s Sizes) (sum int64) {
	for _, t := range r.Models {
		t.Pages = t.pages(s)
		sum += t.Total()
	}
	return sum
}

// fits reports whether all models fit with sizes s.
func (r *Room) fits(a engine.Available, s Sizes) bool {
	if !a.Each {
		return r.total(s) <= a.Bytes
	}
	for i := range r.Models {
		if one := (Room{Models: r.Models[i : i+1]}); one.total(s) > a.Bytes {
			return false
		}
	}
	return true
}

// Check refuses models that do not fit into what is available, and says what would fit.
func (r *Room) Check(available engine.Available) error {
	if r.fits(available, r.Sizes) {
		return nil
	}
	var needs []string
	for _, t := range r.Models {
		needs = append(needs, fmt.Sprintf("%s needs %s", ModelName(t.path), t.Footprint))
	}
	return tandem.Errorf("", tandem.Exhausted, "%s; %s allows %s: %s",
		strings.Join(needs, ", and "), available.By, engine.Bytes(max(0, available.Bytes)), r.Advice(available))
}

// Advice returns what would fit, as text.
func (r *Room) Advice(available engine.Available) string {
	longest := 0
	for _, t := range r.Models {
		longest = max(longest, r.ContextOf(t.Context))
	}
	// The largest context in whole pages, and the largest number of sessions, that fit.
	pages := sort.Search(longest/kernels.PageRows, func(n int) bool {
		return !r.fits(available, Sizes{(n + 1) * kernels.PageRows, r.Sessions})
	})
	sessions := sort.Search(r.Sessions, func(n int) bool { return !r.fits(available, Sizes{r.Ctx, n + 1}) })
	var fits []string
	if pages > 0 {
		fits = append(fits, fmt.Sprintf("--ctx %d", pages*kernels.PageRows))
	}
	if sessions > 0 {
		fits = append(fits, fmt.Sprintf("--sessions %d", sessions))
	}
	small := Room{Sizes: r.Sizes, Options: r.Options}
	small.Options.KVType = "q8_0"
	if r.Options.KVType != "q8_0" && small.fill(r.Models) && small.fits(available, r.Sizes) {
		fits = append(fits, "--kv-type q8_0")
	}
	if len(fits) == 0 {
		return fmt.Sprintf("one session of %d tokens needs %s", kernels.PageRows, engine.Bytes(r.total(Sizes{kernels.PageRows, 1})))
	}
	return strings.Join(fits, " or ") + " would fit"
}

// fill adds the same models; false if one cannot run with r's type of cache.
func (r *Room) fill(models []Tenant) bool {
	for _, t := range models {
		if r.Add(t.path, t.nodes) != nil {
			return false
		}
	}
	return true
}
