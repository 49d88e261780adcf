package strategy

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// session is a replayed session: a strategy writes a recorded text, round by round, on a box.
type session struct {
	b        *box
	r        *recorded
	req      tandem.Request
	shared   *Shared
	strategy Strategy
	weights  *learn.Weights
	among    []string // all that may draft
	names    []string // those that are open, in the order of among
	of       map[string]*replayed
	settled  map[string]bool // those that stay as they are
	at       int             // tokens of the text that are written
	sum      tally
	// later, where passes are shared, calls opened when the draft model has read the text, which takes so many seconds.
	later func(seconds float64, opened func())
}

// begin opens a session at the drafters that its strategy wants.
func (b *box) begin(r *recorded, req tandem.Request, shared *Shared, among []string) *session {
	x := &session{b: b, r: r, req: req, shared: shared, among: among}
	x.start()
	return x
}

// start begins the session.
func (x *session) start() {
	x.req.MaxTokens = len(x.r.text)
	x.of, x.settled = map[string]*replayed{}, map[string]bool{}
	x.strategy, x.weights = New(x.req, len(x.r.prompt), x.shared)
	x.sum.prefill = prefill(x.b.verified, len(x.r.prompt))
	x.open()
}

// open opens the session at the drafters that the strategy wants now, if it has not decided against them for good.
func (x *session) open() {
	var wanted []string
	for _, n := range x.among {
		if x.settled[n] {
			continue
		}
		var open bool
		if open, x.settled[n] = x.strategy.Opens(n, x.among); open {
			x.settled[n], wanted = true, append(wanted, n)
		}
	}
	for _, n := range wanted {
		d := x.r.drafter(n, x.b)
		if d.again != nil {
			d.again.chances = x.b.ranked(x.shared, x.r.temperature > 0)
		}
		if d.tries == nil || x.b.drafted == nil {
			x.opened(n, d)
			continue
		}
		// it reads the prompt beside the first rounds, on one of two cores
		read, at := prefill(x.b.drafted, len(x.r.prompt)+x.at-1), x.at
		opened := func() {
			x.sum.prefill += read
			d.readTo(at)
			x.opened(n, d)
		}
		if x.later == nil {
			opened()
		} else {
			x.later(read.Seconds(), opened)
		}
	}
}

// opened lets a drafter take part.
func (x *session) opened(n string, d *replayed) {
	x.of[n] = d
	x.names = slices.DeleteFunc(slices.Clone(x.among), func(n string) bool { return x.of[n] == nil })
	x.sum.took += time.Duration(float64(d.pass) / float64(x.b.verified.Time(1)) * float64(x.b.verified.Time(len(x.r.prompt))) / 2)
	if d.again == nil && (x.strategy.Several() || len(x.of) == 1) {
		x.strategy.Hindsight(n, x.base(), d.follow(x.at), 0)
	}
}

func (x *session) base() tandem.Position { return tandem.Position(len(x.r.prompt) + x.at) }

func (x *session) done() bool { return x.at == len(x.r.text) }

// drafted is a round whose tree waits for its pass.
type drafted struct {
	outcome Outcome
	busy    time.Duration // of drafting
	rest    time.Duration // neither draft nor pass
	models  time.Duration // of busy, what draft models computed
}

// draft begins a round.
func (x *session) draft() (d drafted) {
	if x.b.drafted != nil { // else what it takes to open one late is not known
		x.open()
	}
	bounds := x.req.Bounds
	bounds.Depth = min(bounds.Depth, len(x.r.text)-x.at-1)
	dec := x.strategy.Decide(x.names, bounds)
	o := &d.outcome
	*o = Outcome{Decision: dec, Tree: tandem.Root(0)}
	models := 0
	for _, a := range dec.Asks {
		if x.of[a.Drafter].tries != nil {
			models++
		}
	}
	var ballots []spec.Ballot
	first := time.Duration(0)
	for i, a := range dec.Asks {
		if i > 0 && i == len(dec.Asks)-dec.Later {
			if first = d.busy; !x.strategy.Wanted(o.Drafts) {
				dec.Asks = dec.Asks[:i]
				o.Decision = dec
				break
			}
		}
		of := x.of[a.Drafter]
		a.Proposal.Temper = spec.DraftTemper(x.r.temperature)
		got := of.propose(x.at, a.Proposal, models)
		if d.busy = max(d.busy, first+got.Busy); of.tries != nil {
			d.models += got.Busy
		}
		o.Drafts = append(o.Drafts, Draft{Drafter: a.Drafter, Got: got})
		if of.again == nil {
			x.strategy.Hindsight(a.Drafter, x.base(), got.Hindsight, 0)
		}
		if got.Tree.Len() > 1 {
			ballots = append(ballots, spec.Ballot{Tree: got.Tree, Weight: x.weights.Of(a.Drafter)})
		}
	}
	d.rest = x.b.plain
	switch {
	case len(dec.Asks) == 1 && dec.Vote == tandem.VoteNone:
		o.Tree, d.rest = o.Drafts[0].Got.Tree, x.b.hop
	case len(dec.Asks) > 0:
		d.rest = x.b.hop + time.Duration(len(dec.Asks)-1)*x.b.merged
		x.merge(o, ballots, d.busy)
	}
	return d
}

// merge makes one tree of a round's drafts.
func (x *session) merge(o *Outcome, ballots []spec.Ballot, busy time.Duration) {
	if len(ballots) == 0 {
		return
	}
	if dec := o.Decision; dec.Mix != nil {
		o.Tree = dec.Mix.Merge(o.trees(), dec.Nodes)
	} else {
		o.Tree, _ = spec.Merge(ballots, dec.Nodes)
	}
	if o.Decision.Cut.Verify != nil {
		o.Tree, _ = spec.Cut(o.Tree, o.Decision.Cut, busy)
	}
	o.Merged = o.Tree.Len() > 1
}

// commit ends a round whose pass had so many rows, of so many sessions, and took pass, and whose drafting, rest and pass took wall in all.
// It returns how long drafters read what was committed.
func (x *session) commit(d drafted, rows, batch int, wall, pass time.Duration) (read time.Duration) {
	o, base := d.outcome, x.base()
	held := min(spec.Held(o.Tree, x.r.text[x.at:]), len(x.r.text)-x.at-1)
	nodes := o.Tree.Len()
	o.Verdict = tandem.Verdict{Base: base, Tokens: x.r.text[x.at : x.at+held+1], Nodes: nodes, Rows: rows, Batch: batch,
		Busy: pass}
	o.Judged, o.Tokens, o.AtEnd = nodes > 1, held+1, x.at+held+1 == len(x.r.text)
	o.Rest, o.Wall = max(wall-d.busy-pass, 0), wall
	begun := x.at
	x.at += held + 1
	for _, n := range o.Decision.Follow {
		of := x.of[n]
		spent := x.b.pass + of.pass
		switch {
		case of.again != nil:
			continue // it hears every verdict
		case of.tries == nil:
			spent = x.b.lookup
		case x.b.drafted != nil: // it reads beside the target's pass, on the same cores
			spent = of.read(begun)
			read += spent
		}
		x.strategy.Hindsight(n, base, of.follow(begun), spent)
	}
	x.shared.Verified(o.Verdict, false)
	again := x.of[recycling]
	if again != nil && !x.req.Bounds.Plain() {
		x.strategy.Hindsight(recycling, x.base(), again.again.look(begun, o.Tokens), 0)
	}
	x.strategy.Learn(&o)
	if again != nil && !x.req.Bounds.Plain() {
		again.again.take(begun, o.Tree)
	}
	x.sum.add(tally{tokens: o.Tokens, rounds: 1, nodes: nodes, took: wall + read})
	return read
}

// replay lets the strategy of a request write the text, alone on the box.
func (b *box) replay(r *recorded, req tandem.Request, shared *Shared, names []string) tally {
	x := b.begin(r, req, shared, names)
	for !x.done() {
		d := x.draft()
		rows := d.outcome.Tree.Len()
		pass := b.verified.Time(rows)
		x.commit(d, rows, 1, d.busy+d.rest+pass, pass)
	}
	x.strategy.HandOn()
	return x.sum
}

// ranked returns what a gateway knows of the chances of recycled guesses.
func (b *box) ranked(of *Shared, sampled bool) *spec.RankChances {
	if b.ranks == nil {
		b.ranks = map[*Shared]map[bool]*spec.RankChances{}
	}
	if b.ranks[of] == nil {
		b.ranks[of] = map[bool]*spec.RankChances{false: {}, true: {}}
	}
	return b.ranks[of][sampled]
}

// readTo marks the text before the last token of text[:base] as read by the draft model.
func (d *replayed) readTo(base int) {
	for _, n := range d.tries[:base] {
		d.ran[n] = true
	}
}
