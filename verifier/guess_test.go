package verifier_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec/shape"
	"github.com/tandem-llm/tandem/verifier"
	"github.com/tandem-llm/tandem/verifier/guesses"
)

const (
	sides = "../engine/testdata/sides/"
	tiny  = 64 // context of the target there
)

// openGuesser opens the tiny target of testdata with side files.
func openGuesser(t testing.TB, names ...string) *engine.Model {
	t.Helper()
	m, err := engine.Open(sides+"target.gguf", engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
		KVPages: engine.PagesFor(4, tiny, tiny)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	for _, name := range names {
		if err := m.OpenSide(sides + name + ".gguf"); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// direct returns what the self-drafts guess after the token that follows text, by a pass over text alone.
func direct(t testing.TB, m *engine.Model, text []tandem.Token) (all []tandem.Guess) {
	t.Helper()
	for _, w := range m.SelfDrafts() {
		seq, err := m.NewSequence(tiny, tiny)
		if err != nil {
			t.Fatal(err)
		}
		part := engine.Part{Seq: seq, Extend: text}
		ask := engine.GuessAsk{SelfDraft: w.Name}
		rows := []int{len(text) - 1}
		if w.Name == tandem.PPD {
			rows = nil
			for e := range w.Members * w.Levels {
				parent := int32(e - 1)
				if e%w.Levels == 0 {
					parent = -1
				}
				part.Nodes, part.Parents = append(part.Nodes, tandem.Token(-1-e)), append(part.Parents, parent)
				rows = append(rows, len(text)+e)
			}
		}
		out, err := m.Forward([]engine.Part{part}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			ask.Hidden = append(ask.Hidden, slices.Clone(out.Hidden(0, row)))
		}
		guesses, err := m.Guess([]engine.GuessAsk{ask}, 10)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, guesses...)
		seq.Close()
	}
	return all
}

// tinySample is plain decoding of n tokens.
func tinySample(t testing.TB, m *engine.Model, prompt []tandem.Token, n int) []tandem.Token {
	t.Helper()
	seq, err := m.NewSequence(tiny, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	text := slices.Clone(prompt)
	for range n {
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: text[seq.Len():], Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, tandem.Token(out.Top(0).IDs[0]))
	}
	return text
}

// desk is a verifier and a session at it, whose tickets are written by hand.
type desk struct {
	t        testing.TB
	v        *verifier.Verifier
	counters *tandem.Counters
	verdicts chan tandem.Verdict
}

func newDesk(t testing.TB, c verifier.Config) *desk {
	t.Helper()
	d := &desk{t: t, counters: new(tandem.Counters), verdicts: make(chan tandem.Verdict, 100)}
	c.Counters, c.Costs = d.counters, []tandem.Cost{{Rows: 1, Time: 1}}
	var err error
	if d.v, err = verifier.New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	subscribe(ctx, &running, d.v, func(v tandem.Verdict) { d.verdicts <- v })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := d.v.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *desk) open(id tandem.SessionID, text []tandem.Token, selfDrafts ...string) tandem.Opened {
	d.t.Helper()
	opened, err := d.v.Open(context.Background(), tandem.Opening{Session: id, Tokens: text, Limit: tiny, MaxNodes: 40,
		Tenant: fmt.Sprint(id), Sampling: tandem.Sampling{TopP: 1}, SelfDrafts: selfDrafts})
	if err != nil {
		d.t.Fatal(err)
	}
	return opened
}

func (d *desk) put(id tandem.SessionID, text []tandem.Token, t tandem.Tree, selfDrafts ...string) {
	d.t.Helper()
	if err := d.v.Submit(context.Background(), ticketOn(id, text, t, selfDrafts...)); err != nil {
		d.t.Fatal(err)
	}
}

func ticketOn(id tandem.SessionID, text []tandem.Token, t tandem.Tree, selfDrafts ...string) tandem.Ticket {
	return tandem.Ticket{Session: id, Base: tandem.Position(len(text)), Hash: tandem.EmptyPrefix.Add(text...), Tree: t,
		SelfDrafts: selfDrafts}
}

func (d *desk) verdict() tandem.Verdict {
	d.t.Helper()
	select {
	case v := <-d.verdicts:
		return v
	case <-time.After(20 * time.Second):
		d.t.Fatal("no verdict")
		return tandem.Verdict{}
	}
}

// TestGuessesAreThoseOfTheAcceptedRow: the guesses of Opened and of each verdict are, number by number, what the side files say about the
// row of the last accepted token, whatever the tree was; the text is that of plain decoding.
func TestGuessesAreThoseOfTheAcceptedRow(t *testing.T) {
	for _, ppd := range []string{"ppd-1", "ppd-4"} {
		t.Run(ppd, func(t *testing.T) {
			twin := openGuesser(t, "medusa-shared", ppd)
			prompt := make([]tandem.Token, 33)
			for i := range prompt {
				prompt[i] = tandem.Token(i*i%250 + 5)
			}
			want := tinySample(t, twin, prompt, 30)
			d := newDesk(t, verifier.Config{Model: openGuesser(t, "medusa-shared", ppd), FirstShare: 1e9})
			selfDrafts := []string{"of a later release", tandem.PPD, tandem.Medusa}
			opened := d.open(1, prompt, selfDrafts...)
			first := direct(t, twin, prompt[:32])
			if first[1].Levels = first[1].Levels[:1]; ppd == "ppd-4" { // beside 32 rows there is one prompt row, and it has four members
				first = first[:1]
			}
			if !reflect.DeepEqual(opened.Guesses, first) {
				t.Errorf("opened with %v, want %v", opened.Guesses, first)
			}
			way := twin.SelfDrafts()[1]
			text := slices.Clone(prompt)
			for round := 0; len(text) < 55; round++ {
				tree := tandem.Root(text[len(text)-1])
				for i := range round % 4 { // the right path, between wrong guesses
					parent := int32(max(2*i-1, 0))
					wrong, right := (want[len(text)+i]+1)%250, want[len(text)+i]
					tree.Tokens, tree.Parents = append(tree.Tokens, right, wrong), append(tree.Parents, parent, parent)
				}
				counts := make([]int8, tree.Len())
				last := max(2*(round%4)-1, 0)
				levels := (round / 4) % (way.Levels + 1)
				for i := range counts {
					if counts[i] = int8(i % 2); i == last {
						counts[i] = int8(levels)
					}
				}
				tree = shape.Prompt(tree, counts, way)
				d.put(1, text, tree, selfDrafts...)
				v := d.verdict()
				if v.Kind != tandem.OK || len(v.Path) != round%4 || !slices.Equal(v.Tokens, want[len(text):len(text)+len(v.Tokens)]) ||
					v.Nodes != tree.Len() {
					t.Fatalf("round %d: %+v, want %v", round, v, want[len(text):len(text)+round%4+1])
				}
				guesses := direct(t, twin, want[:len(text)+len(v.Path)])
				if guesses[1].Levels = guesses[1].Levels[:levels]; levels == 0 {
					guesses = guesses[:1]
				}
				if !reflect.DeepEqual(v.Guesses, guesses) || v.Guessing <= 0 {
					t.Fatalf("round %d, %d levels: guesses %v, want %v", round, levels, v.Guesses, guesses)
				}
				d.put(1, text, tree)
				if again := d.verdict(); !reflect.DeepEqual(again, v) {
					t.Fatalf("round %d: repeated %+v, want %+v", round, again, v)
				}
				text = append(text, v.Tokens...)
			}
			d.put(1, text, tandem.Root(text[len(text)-1]))
			if v := d.verdict(); v.Kind != tandem.OK || v.Guesses != nil || v.Guessing != 0 {
				t.Errorf("guesses nobody asked for: %+v", v)
			}
		})
	}
}

// slowGuesser waits before it guesses, or fails.
type slowGuesser struct {
	guesses.Guesser
	wait  func()
	fails string
	asks  []int // of each run
}

func (g *slowGuesser) Guess(asks []engine.GuessAsk, top int) ([]tandem.Guess, error) {
	g.asks = append(g.asks, len(asks))
	if g.wait != nil {
		g.wait()
	}
	switch g.fails {
	case "error":
		return nil, errors.New("no heads")
	case "panic":
		panic("heads off")
	case "few":
		return nil, nil
	}
	return g.Guesser.Guess(asks, top)
}

// TestGuessesKeepNobodyWaiting: of three sessions in a pass two ask; the third has its verdict before the heads run, which they do once.
func TestGuessesKeepNobodyWaiting(t *testing.T) {
	m := openGuesser(t, "medusa-own")
	g := &slowGuesser{Guesser: m}
	d := newDesk(t, verifier.Config{Model: m, Guesser: g})
	text := []tandem.Token{7, 8, 9}
	for id := range tandem.SessionID(3) {
		d.open(id+1, text)
	}
	third, late := make(chan struct{}), false
	g.wait = func() {
		select {
		case <-third:
		case <-time.After(20 * time.Second):
			late = true
		}
	}
	free := make(chan struct{})
	d.v.Hold(free) // until all three are there
	for id, selfDrafts := range [][]string{{tandem.Medusa}, {tandem.Medusa}, nil} {
		if err := d.v.Submit(t.Context(), ticketOn(tandem.SessionID(id+1), text, tandem.Root(9), selfDrafts...)); err != nil {
			t.Fatal(err)
		}
	}
	close(free)
	if v := d.verdict(); v.Session != 3 || v.Batch != 3 || v.Guesses != nil {
		t.Errorf("the first verdict is %+v: want that of session 3", v)
	}
	close(third)
	for _, v := range []tandem.Verdict{d.verdict(), d.verdict()} {
		if v.Kind != tandem.OK || v.Batch != 3 || len(v.Guesses) != 1 || v.Session == 3 {
			t.Errorf("%+v", v)
		}
	}
	if late || !slices.Equal(g.asks, []int{2}) {
		t.Errorf("runs of %v asks, too early %v: want one of 2", g.asks, late)
	}
}

// TestFailingHeadsCostGuessesOnly: an error, a panic or a wrong number of guesses leaves the verdict.
func TestFailingHeadsCostGuessesOnly(t *testing.T) {
	for _, how := range []string{"error", "panic", "few"} {
		m := openGuesser(t, "medusa-own")
		d := newDesk(t, verifier.Config{Model: m, Guesser: &slowGuesser{Guesser: m, fails: how}, FirstShare: 1e9})
		text := []tandem.Token{7, 8, 9}
		if o := d.open(1, text, tandem.Medusa); o.Guesses != nil {
			t.Errorf("%s: opened with %v", how, o.Guesses)
		}
		d.put(1, text, tandem.Root(9), tandem.Medusa)
		if v := d.verdict(); v.Kind != tandem.OK || len(v.Tokens) != 1 || v.Guesses != nil {
			t.Errorf("%s: %+v", how, v)
		}
		if n := d.counters.Snapshot()["guesses.failed"]; n != 2 {
			t.Errorf("%s: %d failures counted, want 2", how, n)
		}
	}
}

// TestPromptNodesAreChecked: what is not the self-draft's is refused with the reason; a verifier without prompt tokens leaves prompt nodes
// out.
func TestPromptNodesAreChecked(t *testing.T) {
	d := newDesk(t, verifier.Config{Model: openGuesser(t, "ppd-4")}) // 3 levels, 4 members
	text := []tandem.Token{7, 8, 9}
	d.open(1, text)
	for name, bad := range map[string]struct {
		tree tandem.Tree
		why  string
	}{
		"embedding":    {tandem.Tree{Tokens: []tandem.Token{9, 12}, Parents: []int32{-1, 0}, Prompts: 1}, "want 0 to 11"},
		"first below":  {tandem.Tree{Tokens: []tandem.Token{9, 0, 3}, Parents: []int32{-1, 0, 1}, Prompts: 2}, "below a token"},
		"second alone": {tandem.Tree{Tokens: []tandem.Token{9, 1}, Parents: []int32{-1, 0}, Prompts: 1}, "below a prompt node with 0"},
		"other member": {tandem.Tree{Tokens: []tandem.Token{9, 0, 4}, Parents: []int32{-1, 0, 1}, Prompts: 2},
			"below a prompt node with 3"},
		"a token below a prompt node": {tandem.Tree{Tokens: []tandem.Token{9, 0, 1, 2}, Parents: []int32{-1, 0, 1, 2}, Prompts: 1},
			"below a prompt node"},
	} {
		d.put(1, text, bad.tree, tandem.PPD)
		if v := d.verdict(); v.Kind != tandem.Invalid || !strings.Contains(v.Message, bad.why) {
			t.Errorf("%s: %v %q, want one that says %q", name, v.Kind, v.Message, bad.why)
		}
	}
	without := newDesk(t, verifier.Config{Model: openGuesser(t)})
	without.open(1, text)
	without.put(1, text, tandem.Tree{Tokens: []tandem.Token{9, 5, 0}, Parents: []int32{-1, 0, 1}, Prompts: 1}, tandem.PPD)
	if v := without.verdict(); v.Kind != tandem.OK || v.Nodes != 2 || without.counters.Snapshot()["guesses.prompts_dropped"] != 1 {
		t.Errorf("without prompt tokens: %+v", v)
	}
}

// TestDeepPromptNodesAreCut: near the end of a session a tree is cut by depth, prompt nodes included.
func TestDeepPromptNodesAreCut(t *testing.T) {
	m := openGuesser(t, "ppd-1")
	d := newDesk(t, verifier.Config{Model: m})
	text := []tandem.Token{7, 8, 9}
	if _, err := d.v.Open(context.Background(), tandem.Opening{Session: 1, Tokens: text, Limit: 6, MaxNodes: 16,
		Sampling: tandem.Sampling{TopP: 1}}); err != nil {
		t.Fatal(err)
	}
	tree := shape.Prompt(tandem.Tree{Tokens: []tandem.Token{9, 1, 2, 3}, Parents: []int32{-1, 0, 1, 2}}, []int8{3, 3, 3, 3},
		m.SelfDrafts()[0])
	d.put(1, text, tree, tandem.PPD)
	v := d.verdict()
	// base 3, limit 6: nodes of depth 1 and 2; of the root's prompt nodes two, of the first node's one
	if v.Kind != tandem.OK || v.Nodes != 3+2+1 {
		t.Errorf("%+v: want 6 nodes", v)
	}
	if len(v.Path) == 0 && (len(v.Guesses) != 1 || len(v.Guesses[0].Levels) != 2) {
		t.Errorf("guesses %v: want two levels", v.Guesses)
	}
}
