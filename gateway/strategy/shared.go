package strategy

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
	"github.com/tandem-llm/tandem/spec/worth"
)

// mostNames is how many drafters' names are remembered, those that are gone included.
const mostNames = 1 << 8

// Shared is what sessions have learned and new ones begin with. The costs of passes and Minions' speculation length are the same for all
// and kept only here. A session copies everything else at its start, continues on its copy, and folds it in at its end. Passes cost what
// they cost at the session's verifier. Safe for concurrent use; nothing in it grows with the number of sessions.
type Shared struct {
	*common
	verifier *string // name of the session's, which the session alone reads; nil: none is named
	kind     kindOfText
}

// kindOfText is a kind of text whose drafts are learned for themselves: what a draft brings in one says little of the other.
type kindOfText uint8

const (
	freeText   kindOfText = iota
	formedText            // of a form (tandem.Constraint)
	kindsOfText
)

// learned is what sessions have learned of drafts in one kind of text.
type learned struct {
	yields worth.Yields
	mix    *spec.Mix
	output float64 // running mean of the tokens of sessions' outputs
}

// mostVerifiers is how many verifiers' costs are remembered.
const mostVerifiers = 1 << 8

// common is what every Shared of a gateway is.
type common struct {
	rules Rules

	mu      sync.Mutex
	costs   map[string]*worth.Costs // by verifier; of one that is not known under ""
	texts   [kindsOfText]learned
	weights *learn.Weights
	lengths *learn.Length
	parts   *worth.Parts
	tokens  float64       // running mean of the tokens of a round; 0 before the first
	rows    int           // of the latest pass that was seen, and its time: several sessions tell
	took    time.Duration // of the same one
	running int           // sessions
	usually float64       // running mean of how many sessions a new one has found
}

// NewShared returns the initial Shared of a gateway with those rules; r must be complete (Rules.WithDefaults).
func NewShared(r Rules) *Shared {
	l := &common{rules: r, costs: map[string]*worth.Costs{"": worth.NewCosts(nil)},
		weights: learn.NewWeights(r.Weights),
		lengths: learn.NewLength(r.Length),
		parts:   worth.NewParts()}
	for i := range l.texts {
		l.texts[i] = learned{yields: worth.Yields{}, mix: spec.NewMix(), output: worth.UsualOutput}
	}
	for name, v := range r.InitialWeights {
		_ = l.weights.Set(name, v) // checked with the configuration
	}
	return &Shared{common: l}
}

// At returns l for a session whose verifier is called *name. The session may set or change the name later. Only the session may use the
// result; all else in it is shared with others.
func (l *Shared) At(name *string) *Shared { return &Shared{common: l.common, verifier: name} }

// of returns l for the text of a request.
func (l *Shared) of(r *tandem.Request) *Shared {
	if r.Sampling.Constraint == nil {
		return l
	}
	return &Shared{l.common, l.verifier, formedText}
}

// learned returns what was learned of the session's kind of text. l.mu must be held.
func (l *Shared) learned() *learned { return &l.texts[l.kind] }

// Measured replaces what passes cost at a verifier. "": at verifiers that are not named, or not known.
func (l *Shared) Measured(verifier string, costs []tandem.Cost) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.costs) > mostVerifiers { // most of them are long gone
		l.costs = map[string]*worth.Costs{"": l.costs[""]}
	}
	l.costs[verifier] = worth.NewCosts(costs)
}

// passes returns what passes of the session's verifier cost. l.mu must be held.
func (l *Shared) passes() *worth.Costs {
	if l.verifier != nil {
		if c := l.costs[*l.verifier]; c != nil {
			return c
		}
	}
	return l.costs[""]
}

// Enter counts a session as running until it calls leave, once.
func (l *Shared) Enter() (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usually += (float64(l.running) - l.usually) * worth.CostGain
	l.running++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
	}
}

// others returns how many sessions run beside one.
func (l *Shared) others() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.running - 1)
}

// crowd returns how many sessions are expected to run beside one: those that do now, or as many as the latest sessions found when they
// began, if that is more. The first of many that come together finds none.
func (l *Shared) crowd() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(float64(l.running-1), l.usually)
}

// Costs says how long a drafter's draft takes, as measured; 0: not known. It counts until rounds have shown a time.
func (l *Shared) Costs(drafter string, draft time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.parts.Drafter(drafter); d.Pass == 0 && draft > 0 {
		d.Pass = draft
	}
}

// Away returns, by name, how far away drafters are: what a call takes beside their arithmetic. Those that were never asked are left out.
// The map is the caller's.
func (l *Shared) Away() map[string]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]time.Duration{}
	for name, d := range l.parts.All() {
		if d.Away > 0 {
			out[name] = d.Away
		}
	}
	return out
}

// first reports whether nobody has asked a drafter yet, nor been told so by first: it is true once for each drafter.
func (l *Shared) first(drafter string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.parts.Drafter(drafter)
	if d.Asked || d.Tried {
		return false
	}
	d.Tried = true
	return true
}

// Window says that a drafter reads at most the last tokens tokens of a text; 0: it reads all.
func (l *Shared) Window(drafter string, tokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts.Drafter(drafter).Window = tokens
}

// PassCosts says what passes of a drafter's model cost by their rows, as the drafter has measured: from the rows of a draft to those that
// read a prompt. The cost of a single row counts until rounds have shown one. Impossible costs are ignored.
func (l *Shared) PassCosts(drafter string, costs []tandem.Cost) {
	costs = slices.DeleteFunc(slices.Clone(costs), func(c tandem.Cost) bool { return !c.Valid() })
	if len(costs) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.parts.Drafter(drafter)
	rows := worth.NewCosts(costs)
	if d.Model = true; !d.Asked {
		d.Pass = rows.Time(1)
	}
	if slices.ContainsFunc(costs, func(c tandem.Cost) bool { return c.Rows != costs[0].Rows }) { // else they say nothing of width
		d.Rows = rows
	}
}

// Verified learns from a verdict how many tokens a round brings and what a pass costs. beside says that drafters may have drafted during
// the pass: then its cost is not learned.
func (l *Shared) Verified(v tandem.Verdict, beside bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rows := max(v.Rows, v.Nodes); !beside && (rows != l.rows || v.Busy != l.took) {
		l.rows, l.took = rows, v.Busy
		l.passes().Observe(rows, v.Experts, v.Busy)
	}
	l.tokens = average(l.tokens, float64(len(v.Tokens)))
}

// curve returns what passes cost: verify[i] is the time of one in which the session has i+1 rows, up to nodes, and other sessions have
// others. tokens is how many tokens a round brings. verify is nil until a pass is known.
func (l *Shared) curve(nodes, others int) (verify []time.Duration, tokens float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.passes().Time(1+others) == 0 {
		return nil, l.tokens
	}
	verify = make([]time.Duration, nodes)
	for w := range verify {
		verify[w] = l.passes().Time(w + 1 + others)
	}
	return verify, l.tokens
}

// pass returns how long a pass of so many rows takes; 0: no pass is known.
func (l *Shared) pass(rows int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passes().Time(rows)
}

// PassAt returns how long a pass of so many rows takes behind context positions.
func (l *Shared) PassAt(rows, context int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passes().TimeAt(rows, context)
}

// usual returns how many tokens a round brings.
func (l *Shared) usual() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tokens
}

// extra returns how much longer a pass of so many rows takes than one without its last rows.
func (l *Shared) extra(rows, last int) time.Duration {
	if last == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.passes().Time(rows)-l.passes().Time(max(rows-last, 1)), 0)
}

// newWeights returns a session's initial weights: those that earlier sessions handed on if it learns, else the
// configured ones.
func (l *Shared) newWeights(learns bool) *learn.Weights {
	w := learn.NewWeights(l.rules.Weights)
	set := l.rules.InitialWeights
	if learns {
		l.mu.Lock()
		set = l.weights.Snapshot()
		l.mu.Unlock()
	}
	for name, v := range set {
		_ = w.Set(name, v) // was in a set of weights before
	}
	return w
}

// length returns Minions' speculation length; transition: it changed so recently that it is not judged yet.
func (l *Shared) length() (tokens int, transition bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lengths.Now(), l.lengths.InTransition()
}

// explainLength returns the figures that decided the length, as text.
func (l *Shared) explainLength() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lengths.Explain()
}

// chain learns from a verified chain of Minions.
func (l *Shared) chain(c learn.Chain) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lengths.Record(c, l.passes())
}

// mixed learns from a round in which several drafters were merged.
func (l *Shared) mixed(trees []spec.DrafterTree, committed []tandem.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.learned()
	if x.mix.Len() > mostNames {
		x.mix = spec.NewMix() // names that came and went
	}
	x.mix.Record(trees, committed)
}

// handOn folds a session's weights into those of new ones.
func (l *Shared) handOn(w *learn.Weights) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.weights.Snapshot()) > mostNames {
		l.weights = learn.NewWeights(learn.WeightRule{}) // names that came and went
	}
	for name, v := range w.Snapshot() {
		_ = l.weights.Set(name, l.weights.Of(name)+worth.CostGain*(v-l.weights.Of(name))) // between two good weights
	}
}

// average is the running mean of a series with weight worth.CostGain for the newest value; an old value of 0 counts
// for nothing.
func average(old, latest float64) float64 {
	if old == 0 {
		return latest
	}
	return old + (latest-old)*worth.CostGain
}
