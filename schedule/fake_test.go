package schedule

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec/worth"
	"github.com/tandem-llm/tandem/test/testkit"
)

const (
	passRows = 64
	quarter  = passRows / 4
)

// flat costs 10 ms up to 8 rows and 1 ms for each row beyond.
var flat = []tandem.Cost{{Rows: 1, Time: 10e6}, {Rows: 8, Time: 10e6}, {Rows: 64, Time: 66e6}}

// model is a model whose passes only take time, given by costs.
type model struct {
	costs   *worth.Costs // nil: no time
	meets   func(batch []engine.Part) error
	passes  []int // rows of those that ended well
	evicted int64
	reserve func(part *engine.Part) error // nil: there is memory for everything
}

func (m *model) Reserve(part *engine.Part) error {
	if m.reserve == nil {
		return nil
	}
	return m.reserve(part)
}

func (m *model) MaxRows() int              { return passRows }
func (m *model) MaxWanted() int            { return passRows }
func (m *model) Prefixes() engine.Prefixes { return prefixes{m: m} }

// prefixes is what the schedule asks of prefixes.
type prefixes struct {
	engine.Prefixes
	m *model
}

func (p prefixes) Evicted() int64 { return p.m.evicted }

func (m *model) Forward(batch []engine.Part, _ int) (*engine.Output, error) {
	rows := 0
	for _, g := range batch {
		rows += len(g.Extend) + len(g.Nodes)
	}
	if m.costs != nil {
		testkit.Sleep(m.costs.Time(rows))
	}
	if m.meets != nil {
		if err := m.meets(batch); err != nil {
			return nil, err
		}
	}
	m.passes = append(m.passes, rows)
	return &engine.Output{}, nil
}

// text is what sequences with the same prompt have computed of it.
type text struct {
	rows    int
	trusted bool
}

// player is a session that does what a test wants. Of its prompt it holds only the number of tokens.
type player struct {
	Entry
	s      *Schedule
	prompt int
	held   int
	lacks  int // tokens before it can go on
	tree   int // rows that it is queued for
	level  int // of them in a pass at most; 0: as many as fit
	whole  bool
	ahead  int // rows to spare
	shares *text
	pages  int // of memory, if the test counts them

	turns   []int // rows of its parts
	settled int
	left    error
	gone    bool
	closed  bool
	done    func() // when its tree is
	stumble string // where it panics
}

func (p *player) trip(where string) {
	if p.stumble == where {
		panic(where)
	}
}

func (p *player) Missing() int {
	p.trip("missing")
	if p.Opening() {
		return p.prompt - p.held
	}
	return p.lacks
}

// tokens are as many as are asked for, with the session's number.
func (p *player) tokens(n int) []tandem.Token {
	return slices.Repeat([]tandem.Token{tandem.Token(p.ID)}, n)
}

func (p *player) Want(space Space) Part {
	p.trip("want")
	if n := p.Missing(); n > 0 {
		return Part{Part: engine.Part{Extend: p.tokens(min(n, space.Rows))}}
	}
	n := min(p.tree, space.Rows, space.Wanted)
	if p.level > 0 {
		n = min(n, p.level)
	}
	if p.whole && n < p.tree {
		n = 0
	}
	if p.stumble == "greed" {
		n = space.Rows + 1
	}
	return Part{Part: engine.Part{Nodes: p.tokens(n), Want: engine.WantTail}, TopK: 1}
}

func (p *player) Take(part Part, _ *engine.Output, _ int, _ Pass) {
	p.trip("take")
	n := part.Size().Rows
	p.turns = append(p.turns, n)
	switch {
	case !p.Busy():
		p.ahead -= n
	case p.Opening():
		p.held += n
		if p.shares != nil {
			p.shares.rows = max(p.shares.rows, p.held)
		}
	case p.lacks > 0:
		p.lacks -= n
	default:
		if p.tree -= n; p.tree == 0 {
			p.s.End(p, nil)
			if p.done != nil {
				p.done()
			}
		}
	}
}

func (p *player) Settle() error {
	p.trip("settle")
	p.settled++
	if p.stumble == "settle badly" {
		return errors.New("settles badly")
	}
	return nil
}

func (p *player) Opened() { p.trip("opened") }

func (p *player) Spare(space Space) Part {
	p.trip("spare")
	return Part{Part: engine.Part{Nodes: p.tokens(min(p.ahead, space.Rows, 4)), Want: engine.WantTail}}
}

func (p *player) Left(err error) {
	p.gone, p.left = true, err
	p.trip("left")
}

// sequence is a player's state in the model.
type sequence struct{ p *player }

func (q sequence) Len() int   { return q.p.held }
func (q sequence) Pages() int { return q.p.pages }
func (q sequence) Close()     { q.p.closed, q.p.pages = true, 0 }

func (q sequence) Distrust() {
	if q.p.shares != nil {
		q.p.shares.trusted = false
	}
}

func (q sequence) Resume() (n int) {
	q.p.trip("resume")
	if t := q.p.shares; t != nil && t.trusted && t.rows > q.p.held {
		n, q.p.held = t.rows-q.p.held, t.rows
	}
	return n
}

func (q sequence) Follows(o Sequence) bool {
	q.p.trip("follows")
	a, b := q.p, o.(sequence).p
	return a.shares != nil && a.shares == b.shares && (b.held > a.held || b.held == a.held && b.ID < a.ID)
}

// bench is a schedule and what its sessions share.
type bench struct {
	*Schedule
	t     testing.TB
	model *model
}

// newBench returns a schedule that has not been started: Step says when a pass runs.
func newBench(t testing.TB, change func(*Config)) *bench {
	m := &model{}
	c := Config{Name: "test", Model: m, Counters: &tandem.Counters{}, Chunk: passRows, Spare: 8, Hops: 1, Idle: time.Hour, Costs: flat}
	if change != nil {
		change(&c)
	}
	return &bench{Schedule: New(c), t: t, model: m}
}

// player returns a session with that many prompt tokens, which is not opened yet.
func (b *bench) player(id tandem.SessionID, prompt int) *player {
	p := &player{s: b.Schedule, prompt: prompt}
	p.Entry = NewEntry(tandem.Opening{Session: id, Owner: uint64(id)}, sequence{p})
	return p
}

// opened returns a session without a prompt whose opening has ended.
func (b *bench) opened(id tandem.SessionID) *player {
	p := b.player(id, 0)
	b.Enter(p, NewCall(context.Background()))
	b.Schedule.opened(p)
	return p
}

func (b *bench) queue(p *player, tree int) *Call {
	call := NewCall(context.Background())
	p.tree = tree
	b.Queue(p, call, time.Now(), tree)
	return call
}

// step runs one pass and returns how many rows each of the players had in it.
func (b *bench) step(players ...*player) []int {
	rows := make([]int, len(players))
	for i, p := range players {
		rows[i] = -len(p.turns)
	}
	b.Step()
	for i, p := range players {
		if len(p.turns) == -rows[i] {
			rows[i] = 0
		} else {
			rows[i] = p.turns[len(p.turns)-1]
		}
	}
	return rows
}

func (b *bench) counter(name string) int64 { return b.cfg.Counters.Snapshot()[name] }

// started starts the schedule; it is stopped when the test ends.
func (b *bench) started() *bench {
	b.Start()
	b.t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			b.t.Error(err)
		}
	})
	return b
}

// enters opens p and waits until its prompt is in.
func (b *bench) enters(ctx context.Context, p *player) (tandem.Opened, error) {
	return b.Open(ctx, tandem.Opening{Session: p.ID}, func() (Session, error) { return p, nil })
}

func noLeaks(t *testing.T) { t.Cleanup(func() { goleak.VerifyNone(t) }) }
