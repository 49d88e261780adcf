package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// kvFlags say how keys and values are kept.
type kvFlags struct {
	KVType string `name:"kv-type" help:"Type of keys and values in the cache: f16, or q8_0, which takes about half the memory." default:"f16"`
}

func (k kvFlags) check() error {
	if k.KVType != "f16" && k.KVType != "q8_0" {
		return tandem.Errorf("", tandem.Invalid, "--kv-type %s: want f16 or q8_0", k.KVType)
	}
	return nil
}

// room is memory for models that run at the same time, with the same sessions, context and type of cache.
type room struct {
	sessions, ctx int // ctx 0: each model's own
	kvType        string
	models        []tenant
}

// tenant is a model that wants room.
type tenant struct {
	path    string
	nodes   int // tree rows of a session
	context int // of the model
	engine.Footprint
}

// add plans the model at path.
func (r *room) add(path string, nodes int) error {
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	p, err := engine.Measure(path, engine.Options{KVType: r.kvType, KVPages: 1, MaxRows: passRows})
	if err != nil {
		return err
	}
	r.models = append(r.models, tenant{path, nodes, info.Config.Context, p})
	return nil
}

// pages returns the pages of the cache that a model needs.
func (t *tenant) pages(sessions, ctx int) int {
	return engine.PagesFor(sessions+spareSessions, (sizeFlags{Ctx: ctx}).context(t.context), t.nodes)
}

// total returns what all need with other sizes.
func (r *room) total(sessions, ctx int) (sum int64) {
	for _, t := range r.models {
		t.Pages = t.pages(sessions, ctx)
		sum += t.Total()
	}
	return sum
}

// fits reports whether there is as much as all need with other sizes.
func (r *room) fits(a engine.Available, sessions, ctx int) bool {
	if !a.Each {
		return r.total(sessions, ctx) <= a.Bytes
	}
	for i := range r.models {
		if one := (room{models: r.models[i : i+1]}); one.total(sessions, ctx) > a.Bytes {
			return false
		}
	}
	return true
}

// check refuses models that do not fit into what is available, saying what would.
func (r *room) check(available engine.Available) error {
	if r.fits(available, r.sessions, r.ctx) {
		return nil
	}
	var needs []string
	for _, t := range r.models {
		t.Pages = t.pages(r.sessions, r.ctx)
		needs = append(needs, fmt.Sprintf("%s needs %s", modelName(t.path), t.Footprint))
	}
	return tandem.Errorf("", tandem.Exhausted, "%s; %s allows %s: %s",
		strings.Join(needs, ", and "), available.By, engine.Bytes(max(0, available.Bytes)), r.advice(available))
}

// advice words what would fit.
func (r *room) advice(available engine.Available) string {
	longest := 0
	for _, t := range r.models {
		longest = max(longest, (sizeFlags{Ctx: r.ctx}).context(t.context))
	}
	// The largest context in whole pages, and the largest number of sessions, that fit.
	pages := sort.Search(longest/kernels.PageRows, func(n int) bool { return !r.fits(available, r.sessions, (n+1)*kernels.PageRows) })
	sessions := sort.Search(r.sessions, func(n int) bool { return !r.fits(available, n+1, r.ctx) })
	var fits []string
	if pages > 0 {
		fits = append(fits, fmt.Sprintf("--ctx %d", pages*kernels.PageRows))
	}
	if sessions > 0 {
		fits = append(fits, fmt.Sprintf("--sessions %d", sessions))
	}
	if small := (&room{r.sessions, r.ctx, "q8_0", nil}); r.kvType != "q8_0" && small.fill(r.models) && small.fits(available, r.sessions, r.ctx) {
		fits = append(fits, "--kv-type q8_0")
	}
	if len(fits) == 0 {
		return fmt.Sprintf("one session of %d tokens needs %s", kernels.PageRows, engine.Bytes(r.total(1, kernels.PageRows)))
	}
	return strings.Join(fits, " or ") + " would fit"
}

// fill adds the same models; false if one cannot run with r's type of cache.
func (r *room) fill(models []tenant) bool {
	for _, t := range models {
		if r.add(t.path, t.nodes) != nil {
			return false
		}
	}
	return true
}
