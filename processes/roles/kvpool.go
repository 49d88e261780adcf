package roles

import (
	"cmp"
	"sort"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/settings"
)

// A model's keys and values lie in one pool of pages, which all sessions share and which is reserved at the start. Its size is a matter of
// choice: with more of it more sessions run at once, longer, and more of ended ones is kept. The pools of a room hold equally many tokens,
// so each model has a part of the memory in proportion to what a token costs there.

const (
	// LeastContext is the shortest context, in tokens, that a default is cut to: with less memory a model is refused.
	LeastContext = 256
	// ampleContext is a context for which a resident target is preferred to a streamed one with a longer context.
	ampleContext = 2048
)

// floor returns the context that one session must have, of a model with that context: what is asked for, else LeastContext.
func floor(s settings.Sizes, model int) int {
	if s.Ctx == 0 {
		return min(model, LeastContext)
	}
	return s.ContextOf(model)
}

// least returns the pages without which a model cannot run: those of one session.
func (t *Tenant) least(s settings.Sizes) int { return engine.PagesFor(1, floor(s, t.Context), t.nodes) }

// most returns the pages that a model can use: those of all sessions with the whole context.
func (t *Tenant) most(s settings.Sizes) int {
	return min(engine.PagesFor(sequences(s), s.ContextOf(t.Context), t.nodes), kernels.MaxPages)
}

// pool returns the pages of a pool that holds so many tokens, and the trees of a session.
func (t *Tenant) pool(tokens int, s settings.Sizes) int {
	return max(t.least(s), min(engine.PagesFor(1, tokens, t.nodes), t.most(s)))
}

// share returns the part of the memory that is left for keys and values, beside everything else, that they take by default: half on a
// machine and of a GPU, which others may use too, three quarters of what a control group has for itself.
func share(a memory.Available) float64 {
	if a.Machine {
		return 0.5
	}
	return 0.75
}

// ownShare is the share of a GPU's own memory.
const ownShare = 0.5

// Plan chooses the sizes of the pools: KVMemory, else a share of the available memory, of which each of the groups of processes takes an
// equal part. By default the pools hold at least one whole context if memory allows, else less: see Room.Fit. Errors: those of Check;
// Invalid for a KVMemory that is too little or too much.
func (r *Room) Plan(a memory.Available, groups int) error {
	if err := r.Check(a); err != nil {
		return err
	}
	tokens, err := 0, error(nil)
	if r.KVMemory > 0 {
		tokens, err = r.named(a)
	} else {
		part := 1 / float64(groups)
		tokens = r.longest(r.all(), func(n int) bool { return r.within(a, n, part*share(a), part*ownShare) })
		if whole := r.whole(); tokens < whole {
			tokens = max(tokens, r.longest(whole, func(n int) bool { return r.within(a, n, 15./16, 15./16) }))
		}
	}
	if err != nil {
		return err
	}
	return r.take(a, tokens)
}

// take gives each model its pool of so many tokens. A device that divides a model by the size of its pool may have room only for less.
func (r *Room) take(a memory.Available, tokens int) error {
	for i := range r.Models {
		t := &r.Models[i]
		t.Pages = t.pool(tokens, r.Sizes)
		if !t.fitted {
			continue
		}
		pages := t.Pages
		f, err := t.measure(pages, t.wanted)
		if f.Pages = pages; err != nil || a.Fits(t.path, f) != nil {
			pages = t.least(r.Sizes)
			if f, err = t.measure(pages, t.wanted); err != nil {
				return err
			}
		}
		f.Guest = t.Guest
		t.Footprint, t.Pages = f, pages
	}
	return nil
}

// whole returns the longest context of all models, all how many tokens the sessions can have together.
func (r *Room) whole() (tokens int) {
	for _, t := range r.Models {
		tokens = max(tokens, r.ContextOf(t.Context))
	}
	return tokens
}

func (r *Room) all() (tokens int) {
	for i := range r.Models {
		tokens = max(tokens, r.Models[i].most(r.Sizes)*kernels.PageRows)
	}
	return tokens
}

// longest returns the largest number of tokens up to limit, in whole pages, for which ok holds; 0 if it never does.
func (r *Room) longest(limit int, ok func(tokens int) bool) int {
	pages := (limit + kernels.PageRows - 1) / kernels.PageRows
	return min(limit, kernels.PageRows*sort.Search(pages, func(n int) bool { return !ok((n + 1) * kernels.PageRows) }))
}

// within reports whether pools of so many tokens are at most a share of the memory that everything else leaves, and of the device's own.
func (r *Room) within(a memory.Available, tokens int, share, own float64) bool {
	var fixed, pools, ownFixed, ownPools int64
	for i := range r.Models {
		t := &r.Models[i]
		pages := t.pool(tokens, r.Sizes)
		f := t.Footprint
		f.Pages = 0
		kv := int64(pages) * t.PageBytes
		if a.Each && float64(kv) > share*float64(a.Bytes-f.Total()-r.Beside) {
			return false
		}
		fixed, pools = fixed+f.Total(), pools+kv
		ownFixed, ownPools = ownFixed+t.Own.Total(0), ownPools+int64(pages)*t.Own.Page
	}
	if a.Own != nil && float64(ownPools) > own*float64(a.Own.Bytes-ownFixed) {
		return false
	}
	return a.Each || float64(pools) <= share*float64(a.Bytes-fixed-r.Beside)
}

// kv returns the bytes that pools of so many tokens take, for these models.
func (r *Room) kv(tokens int, models []Tenant) (sum int64) {
	for i := range models {
		sum += int64(models[i].pool(tokens, r.Sizes)) * (models[i].PageBytes + models[i].Own.Page)
	}
	return sum
}

// named returns how many tokens pools of KVMemory hold.
func (r *Room) named(a memory.Available) (int, error) {
	if least := r.kv(0, r.Models); least > r.KVMemory {
		return 0, tandem.Errorf("", tandem.Invalid, "--kv-memory is %s: keys and values of one session of %d tokens need %s",
			memory.Bytes(r.KVMemory), floor(r.Sizes, r.whole()), atLeast(least))
	}
	tokens := r.longest(r.all(), func(n int) bool { return r.kv(n, r.Models) <= r.KVMemory })
	free := a.Bytes
	for _, t := range r.Models {
		t.Footprint.Pages = 0
		free -= t.Total()
	}
	if r.within(a, tokens, 1, 1) && (a.Own != nil || r.KVMemory <= free-r.Beside) {
		return tokens, nil
	}
	if r.within(a, tokens, 1, 1) { // no more would be used, but it was asked for
		return 0, tandem.Errorf("", tandem.Invalid, "--kv-memory is %s: %s allows %s beside the models", memory.Bytes(r.KVMemory), a.By,
			memory.Bytes(max(0, free-r.Beside)))
	}
	most := r.longest(tokens, func(n int) bool { return r.within(a, n, 1, 1) })
	return 0, tandem.Errorf("", tandem.Invalid, "--kv-memory is %s: %s allows at most %s beside the models", memory.Bytes(r.KVMemory), a.By,
		memory.Bytes(r.kv(most, r.Models)))
}

// atLeast formats a size so that it is not less when it is read again.
func atLeast(bytes int64) string { return cmp.Or(memory.Bytes((bytes+1<<20-1)>>20<<20), "0") }

// Fit says how many tokens a planned room has memory for.
type Fit struct {
	Tokens   int   `json:"tokens"`      // tokens of all sessions together, in the first model's pool
	Sessions int   `json:"sessions"`    // at once
	Each     int   `json:"each_tokens"` // tokens of each of these sessions; fewer sessions can have more
	One      int   `json:"one_tokens"`  // tokens of one session alone: the context, unless the pool is smaller
	Context  int   `json:"context"`     // tokens of one session with a larger pool
	Bytes    int64 `json:"bytes"`       // size of keys and values in all pools
}

// Fit returns what the room has memory for.
func (r *Room) Fit() Fit {
	t := &r.Models[0]
	f := Fit{Sessions: r.Sessions, Context: r.ContextOf(t.Context)}
	trees := engine.PagesFor(1, 0, t.nodes)
	f.Tokens = (t.Pages - trees) * kernels.PageRows
	f.One = min(f.Context, f.Tokens)
	f.Each = min(f.Context, max(0, t.Pages/f.Sessions-trees)*kernels.PageRows)
	for i := range r.Models {
		f.Bytes += int64(r.Models[i].Pages) * (r.Models[i].PageBytes + r.Models[i].Own.Page)
	}
	return f
}

// Pools returns the bytes of the first model's pool, and of all others'.
func (r *Room) Pools() (first, others int64) {
	for i := range r.Models {
		n := int64(r.Models[i].Pages) * (r.Models[i].PageBytes + r.Models[i].Own.Page)
		if i == 0 {
			first = n
		} else {
			others += n
		}
	}
	return first, others
}
