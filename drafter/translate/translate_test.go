package translate

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/text/token"
)

// foreignRig is a rig behind a translator, for a target whose tokens are bytes and a few merges.
func foreignRig(t *testing.T) (*draftertest.Rig, *Drafter, *token.Vocab) {
	r := draftertest.New(t, drafter.Config{})
	x, of := New(r.Drafter), byteVocab(t, "Ġ t", "h e", "Ġt he", "i n", "r e", "n i", "ni l", "e r", "er r", "Ċ ĉ", "( )")
	if err := x.Target("target", of); err != nil {
		t.Fatal(err)
	}
	return r, x, of
}

// opening opens text in the target's tokens.
func foreignOpening(id tandem.SessionID, of *token.Vocab, text []tandem.Token) tandem.Opening {
	return tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: 240, MaxNodes: 64, Vocab: of.Size(), Fingerprint: "target",
		Translate: true, Sampling: tandem.Sampling{Temperature: 0.8, TopP: 1, Seed: 3}}
}

// TestTranslate drafts in pieces for a target whose tokens are bytes: trees are valid, some of their guesses are right, whoever joins in
// the middle of the text is handed the same trees, and a text that was taken back is followed.
func TestTranslate(t *testing.T) {
	r, x, of := foreignRig(t)
	ctx := context.Background()
	const prompt = "func (r *Reader) Read(p []byte) (n int, err error) {\n"
	text := of.Encode(prompt+"\tif err != nil {\n\t\treturn nil, err\n\t}\n\tif err != nil {\n\t\treturn 0, err\n\t}\n\treturn nil\n}\n",
		true)
	told := len(of.Encode(prompt, true))
	opened, err := x.Open(ctx, foreignOpening(1, of, text[:told]))
	if err != nil || opened.Hindsight.Tokens == 0 || opened.Hindsight.Tokens > tandem.MaxHindsight {
		t.Fatalf("opened %+v, %v", opened, err)
	}
	propose := func(id tandem.SessionID, text []tandem.Token, told int) tandem.Proposed {
		t.Helper()
		p := draftertest.Proposal(id, text, told)
		p.Return = true // without a plan, and not ahead: both let a tree depend on how long passes take
		got, err := x.Propose(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Tree.Validate(p.Bounds.Nodes, of.Size()); err != nil || got.Nodes != got.Tree.Len() ||
			got.Hindsight.Validate() != nil {
			t.Fatalf("%+v: %v", got, err)
		}
		if _, depth := got.Tree.Depths(); depth > p.Bounds.Depth || got.Depth != depth || got.Tree.Tokens[0] != text[len(text)-1] {
			t.Fatalf("proposed %+v for %+v", got, p.Bounds)
		}
		return got
	}
	rounds, right := 0, 0
	for at := told; at < len(text); rounds++ {
		got := propose(1, text[:at], told)
		_, tokens := spec.Accept(got.Tree, func(n int32) tandem.Token {
			depths, _ := got.Tree.Depths()
			return text[min(at+int(depths[n]), len(text)-1)]
		})
		if right += len(tokens) - 1; rounds%5 == 0 {
			if _, err := x.Open(ctx, foreignOpening(2, of, text[:at])); err != nil {
				t.Fatal(err)
			}
			if again := propose(2, text[:at], at); !slices.Equal(again.Tree.Tokens, got.Tree.Tokens) ||
				!slices.Equal(again.Tree.Parents, got.Tree.Parents) {
				t.Errorf("after %d tokens: %v, to whom it is new %v", at, got.Tree, again.Tree)
			}
		}
		told = at
		at = min(at+max(1, len(tokens)), len(text))
	}
	if t.Logf("%d of %d tokens were guessed in %d rounds", right, len(text), rounds); right < len(text)/6 {
		t.Errorf("%d of %d tokens were guessed", right, len(text))
	}
	back := append(slices.Clone(text[:told-30]), of.EncodeNext("for i := range p {\n")...)
	got := propose(1, back, told-30)
	if _, err := x.Open(ctx, foreignOpening(2, of, back)); err != nil {
		t.Fatal(err)
	}
	if again := propose(2, back, len(back)); !slices.Equal(again.Tree.Tokens, got.Tree.Tokens) {
		t.Errorf("a text that was taken back: %v, to whom it is new %v", got.Tree, again.Tree)
	}
	p := draftertest.Proposal(1, back, len(back))
	done, err := x.Propose(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if k := r.Pool.Take(t); k.Base != p.Base || k.Hash != p.Hash || !slices.Equal(k.Tree.Tokens, done.Tree.Tokens) ||
		!slices.Equal(k.SelfDrafts, p.SelfDrafts) {
		t.Errorf("ticket %+v for %+v", k, done)
	}
	if c := r.Counters.Snapshot(); c["translate.nodes"] == 0 || c["translate.sessions"] == 0 {
		t.Errorf("counted %v", c)
	}
}

// TestTranslateRefuses: what is not to be translated, and calls that contradict themselves.
func TestTranslateRefuses(t *testing.T) {
	r, x, of := foreignRig(t)
	ctx := context.Background()
	text := of.Encode("func main() {\n", true)
	for name, c := range map[string]struct {
		change func(*tandem.Opening)
		kind   tandem.Kind
		says   string
	}{
		"not told": {func(o *tandem.Opening) { o.Fingerprint = "another" }, tandem.Unsupported,
			"vocabulary another, which drafter test was not told"},
		"another size": {func(o *tandem.Opening) { o.Vocab++ }, tandem.Invalid, "a target of"},
		"a bad token":  {func(o *tandem.Opening) { o.Tokens = []tandem.Token{tandem.Token(of.Size())} }, tandem.Invalid, "vocabulary has"},
		"too long": {func(o *tandem.Opening) {
			o.Tokens, o.Limit = of.EncodeNext(strings.Repeat("\n;", 600)), 2000
		}, tandem.Unsupported, "of the draft: draft model"},
	} {
		o := foreignOpening(1, of, text)
		c.change(&o)
		if _, err := x.Open(ctx, o); tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want %v that says %q", name, err, c.kind, c.says)
		}
	}
	if _, err := x.Propose(ctx, draftertest.Proposal(1, text, len(text))); tandem.KindOf(err) != tandem.UnknownSession {
		t.Errorf("a session that is not there: %v", err)
	}
	open := func(id tandem.SessionID, owner uint64) {
		t.Helper()
		o := foreignOpening(id, of, text)
		o.Owner = owner
		if _, err := x.Open(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	long := of.Encode("a", true)
	o := foreignOpening(1, of, long)
	o.Limit = 120
	if _, err := x.Open(ctx, o); err != nil {
		t.Fatal(err)
	}
	for range 45 { // each of these is more of the draft's than the first tokens say
		long = append(long, of.EncodeNext("\x01\x02")...)
	}
	if _, err := x.Propose(ctx, draftertest.Proposal(1, long, 2)); err != nil {
		t.Errorf("a text of as many tokens as foreseen: %v", err)
	}
	wide := byteVocab(t, "\u0101 \u0102", "\u0101\u0102 \u0101\u0102", "\u0101\u0102\u0101\u0102 \u0101\u0102\u0101\u0102")
	if err := x.Target("wide", wide); err != nil {
		t.Fatal(err)
	}
	dense := append(wide.Encode("a", true), slices.Repeat(wide.EncodeNext(strings.Repeat("\x01\x02", 4)), 60)...)
	o = foreignOpening(1, wide, dense[:2])
	o.Fingerprint, o.Limit = "wide", 120
	if _, err := x.Open(ctx, o); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Propose(ctx, draftertest.Proposal(1, dense, 2)); tandem.KindOf(err) != tandem.UnknownSession ||
		!strings.Contains(err.Error(), "foreseen") {
		t.Errorf("a text of more tokens than foreseen: %v", err)
	}
	open(1, 7)
	stale := draftertest.Proposal(1, text, len(text))
	stale.Hash++
	if _, err := x.Propose(ctx, stale); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("another text: %v", err)
	}
	if err := x.CloseOwned(ctx, 7); err != nil {
		t.Fatal(err)
	}
	open(2, 8)
	if err := x.Close(ctx, 2); err != nil || len(x.sessions) != 0 {
		t.Errorf("%d sessions are left, %v", len(x.sessions), err)
	}
	// a session in the draft's own tokens is the drafter's, also where one was translated before
	open(3, 9)
	if _, err := x.Open(ctx, tandem.Opening{Session: 3, Epoch: 2, Tokens: r.Text, Limit: draftertest.Limit, MaxNodes: 64}); err != nil {
		t.Fatal(err)
	}
	p := draftertest.Proposal(3, r.Text, len(r.Text))
	p.Epoch, p.Return = 2, true
	if got, err := x.Propose(ctx, p); err != nil || got.Tree.Tokens[0] != r.Text[len(r.Text)-1] {
		t.Errorf("a session of the drafter: %+v, %v", got, err)
	}
	for i := range 2 * mostTargets {
		if err := x.Target(strings.Repeat("x", i+1), of); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.targets) != mostTargets || x.target("target") != nil {
		t.Errorf("%d targets are held", len(x.targets))
	}
}
