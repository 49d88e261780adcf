package source

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// chains is a drafter that drafts chains of token 7, and notes what it is asked.
type chains struct {
	tandem.Drafter
	mu    sync.Mutex
	notes []string
	spoil bool // its trees have a token that is not in the vocabulary
}

func (c *chains) note(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notes = append(c.notes, s)
}

func (c *chains) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	c.note("open")
	return tandem.Opened{}, nil
}

func (c *chains) Close(context.Context, tandem.SessionID) error {
	c.note("close")
	return nil
}

func (c *chains) Propose(_ context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	c.note("propose")
	t := tandem.Root(3)
	for i := range p.Bounds.Depth {
		t.Tokens, t.Parents = append(t.Tokens, 7), append(t.Parents, int32(i))
	}
	if c.spoil {
		t.Tokens[1] = 1000
	}
	return tandem.Proposed{Nodes: t.Len(), Depth: t.Len() - 1, Busy: time.Millisecond, Tree: t}, nil
}

// newTestSet returns the set of a session that may ask the drafter "go" and medusa, and the session's text.
func newTestSet(t *testing.T, c *chains) (*Set, *Session, *tandem.Counters) {
	t.Helper()
	counters := new(tandem.Counters)
	r := new(roster.Roster)
	r.Enlist(roster.Enlisted{Name: "go", Drafter: c})
	r.Enlist(roster.Enlisted{Name: tandem.Medusa, Self: &tandem.SelfDraft{Name: tandem.Medusa, Levels: 3}})
	shared := &Shared{Roster: r, Run: func(f func()) { go f() }, Counters: counters, ProposeMin: time.Second, ProposeMax: time.Second,
		Stall: time.Second, Vocab: 100,
		Closer: &peer.Closer{Timeout: time.Second, Counters: counters, Ending: func() bool { return false }}}
	text := &round.Text{Session: 7, Limit: 50}
	text.Append(1, 2, 3)
	s := &Session{Text: text, Nodes: 8, Opening: func() tandem.Opening { return tandem.Opening{Tokens: text.Tokens[:1]} },
		Traced: func(ctx context.Context) context.Context { return ctx }}
	rules, err := strategy.Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	x, _ := strategy.New(tandem.Request{Vote: tandem.VoteTree, Bounds: bounds}, 0, strategy.NewShared(rules))
	set := shared.NewSet(s)
	set.Adopt(x)
	return set, s, counters
}

var bounds = tandem.Bounds{Nodes: 8, Depth: 2, Width: 2}

func names(list []Source) string {
	var out []string
	for _, x := range list {
		out = append(out, x.Name())
	}
	return strings.Join(out, " ")
}

// TestFirstTokenComesFirst: a drafter that reads a window begins to read a long prompt when the answer has begun, and a short one at once;
// one that reads the whole text begins at once.
func TestFirstTokenComesFirst(t *testing.T) {
	for _, c := range []struct {
		prompt, window int
		waits          bool
	}{{readAtOnce, 800, false}, {readAtOnce + 1, 800, true}, {7000, 800, true}, {7000, 0, false}} {
		synctest.Test(t, func(t *testing.T) {
			drafter := &chains{}
			set, s, _ := newTestSet(t, drafter)
			s.Text.Append(make([]tandem.Token, c.prompt-s.Text.Len())...)
			s.Text.Prompt = c.prompt
			set.Roster.Dismiss("go")
			set.Roster.Enlist(roster.Enlisted{Name: "go", Drafter: drafter, Window: c.window})
			begun := time.Now()
			set.Update(t.Context(), bounds)
			set.Settle(t.Context(), time.Second)
			synctest.Wait()
			if got := slices.Contains(drafter.notes, "open"); got == c.waits || time.Since(begun) > 0 {
				t.Errorf("%+v: opened before the first token: %v, after %v", c, got, time.Since(begun))
			}
			s.Text.Append(9)
			set.Update(t.Context(), bounds)
			synctest.Wait()
			if !slices.Equal(drafter.notes, []string{"open"}) {
				t.Errorf("%+v: %q behind the first token: want it opened once", c, drafter.notes)
			}
		})
	}
}

// TestBothSources: a drafter process and a self-draft are asked in the same way, and each keeps the contract of Source.
func TestBothSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chains{}
		set, s, counters := newTestSet(t, c)
		ready := func(want string) []Source {
			t.Helper()
			synctest.Wait()
			set.Update(t.Context(), bounds)
			list := set.Ready()
			if got := names(list); got != want {
				t.Errorf("ready: %q, want %q", got, want)
			}
			return list
		}
		if set.Update(t.Context(), bounds); !set.Opening() {
			t.Error("go does not open the session")
		}
		if ready("go"); set.Opening() {
			t.Error("go has opened the session, and still opens it")
		}
		if got := set.Guesses(bounds); !slices.Equal(got, []string{tandem.Medusa}) {
			t.Errorf("tickets ask %q for guesses: want medusa", got)
		}
		level := []tandem.TopLogprob{{Token: 7, LogProb: -0.1}}
		guess := tandem.Guess{SelfDraft: tandem.Medusa, Levels: [][]tandem.TopLogprob{level, level}}
		set.TakeGuesses([]tandem.Guess{guess}, []string{tandem.Medusa}, 4*time.Millisecond)
		for _, x := range ready("go medusa") {
			p := s.Complete(tandem.Proposal{Bounds: bounds}, true)
			alone, err := x.Propose(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan *Call, 1)
			call := x.Begin(t.Context(), p, ended)
			if got := <-ended; got != call || !call.Ended() {
				t.Errorf("%s: another call has ended than was begun", x.Name())
			}
			beside, err := call.Draft(t.Context())
			if err != nil || beside.Drafter != x.Name() || !slices.Equal(beside.Got.Tree.Tokens, alone.Got.Tree.Tokens) {
				t.Errorf("%s drafts %v beside others, %v alone; %v", x.Name(), beside.Got.Tree, alone.Got.Tree, err)
			}
			if want := []tandem.Token{3, 7, 7}; !slices.Equal(alone.Got.Tree.Tokens, want) || alone.Drafter != x.Name() {
				t.Errorf("%s drafts %v as %q: want %v", x.Name(), alone.Got.Tree.Tokens, alone.Drafter, want)
			}
			if self := x.Name() == tandem.Medusa; (alone.Busy > 0) == self || (alone.Guessing > 0) != self || x.InPool() == self {
				t.Errorf("%s computed for %v in the round and %v before; puts its own tickets: %v", x.Name(), alone.Busy, alone.Guessing,
					x.InPool())
			}
		}
		set.Restart(t.Context()) // the guess was on another epoch, and go opens the session again
		ready("go")
		set.Leave()
		ready("")
		ready("go")
		c.spoil = true
		_, err := set.Ready()[0].Propose(t.Context(), s.Complete(tandem.Proposal{Bounds: bounds}, true))
		if err == nil || !strings.Contains(err.Error(), "token 1000") {
			t.Errorf("a tree with token 1000 of 100: %v", err)
		}
		ready("")
		if got := set.Absent(); got != ": go given up, medusa has not guessed" {
			t.Errorf("absent%s", got)
		}
		set.Close()
		synctest.Wait()
		if n := counters.Snapshot(); n["drafter.garbage"] != 1 || n["drafter.quarantined"] != 1 || n["guesses.taken"] != 1 {
			t.Errorf("counted %v", n)
		}
		want := "open propose propose open close open propose close"
		if got := strings.Join(c.notes, " "); got != want {
			t.Errorf("the drafter was asked to %s: want %s", got, want)
		}
	})
}

// TestDeadline: a drafter may be as late as its usual nodes take for what it has to read and may draft; the loss of a quick one is felt
// no longer than mostLate.
func TestDeadline(t *testing.T) {
	p := &process{common: common{Shared: &Shared{ProposeMin: 20 * time.Millisecond, ProposeMax: 5 * time.Second}}}
	long := tandem.Proposal{Suffix: make([]tandem.Token, 20), Bounds: tandem.Bounds{Depth: 30}}
	for _, tc := range []struct {
		pace, node time.Duration
		ask        tandem.Proposal
		want       time.Duration
	}{
		{time.Millisecond, 0, tandem.Proposal{}, 20 * time.Millisecond},
		{80 * time.Millisecond, 0, long, 280 * time.Millisecond},
		{80 * time.Millisecond, 10 * time.Millisecond, tandem.Proposal{}, 280 * time.Millisecond},
		{80 * time.Millisecond, 10 * time.Millisecond, long, 780 * time.Millisecond},
		{80 * time.Millisecond, 100 * time.Millisecond, long, 800 * time.Millisecond},
	} {
		p.pace, p.node = tc.pace, tc.node
		if got := p.deadline(tc.ask); got != tc.want {
			t.Errorf("usually %v, a node %v, %d tokens to read, %d deep: %v, want %v", tc.pace, tc.node, len(tc.ask.Suffix),
				tc.ask.Bounds.Depth, got, tc.want)
		}
	}
}
