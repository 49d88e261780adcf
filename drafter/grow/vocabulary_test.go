package grow_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/modelfile/convert"
)

// TestTargetOfFewerTokens: a target that has the first tokens of the draft model alone is drafted for with those alone, and its hindsight
// is about them.
func TestTargetOfFewerTokens(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	const vocab = 600
	text := slices.DeleteFunc(slices.Clone(r.Text), func(id tandem.Token) bool { return id >= vocab })
	open := func(id tandem.SessionID, vocab int, text []tandem.Token) error {
		_, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: draftertest.Limit, MaxNodes: 64,
			Vocab: vocab})
		return err
	}
	if err := errors.Join(open(1, vocab, text), open(2, 0, text)); err != nil {
		t.Fatal(err)
	}
	few, all := r.Drafted(draftertest.Proposal(1, text, len(text))).Tree, r.Drafted(draftertest.Proposal(2, text, len(text))).Tree
	beyond := func(id tandem.Token) bool { return id >= vocab }
	if few.Len() != draftertest.Bounds.Nodes || slices.ContainsFunc(few.Tokens, beyond) {
		t.Errorf("%d nodes with tokens %v: want %d below %d", few.Len(), few.Tokens, draftertest.Bounds.Nodes, vocab)
	}
	if !slices.ContainsFunc(all.Tokens, beyond) {
		t.Errorf("the whole vocabulary drafts %v: the test hardly tests what it is for", all.Tokens)
	}
	// what the draft model would have said first is no token of the target, so its best of those counts
	next := append(slices.Clone(text), few.Tokens[1])
	p := draftertest.Proposal(1, next, len(text))
	p.Return = true
	if done, err := r.Propose(context.Background(), p); err != nil || done.Hindsight.Tokens == 0 || done.Hindsight.Hits&1 == 0 {
		t.Errorf("hindsight %+v, %v: want the first drafted token known", done.Hindsight, err)
	}
	for _, o := range []struct {
		vocab int
		text  []tandem.Token
	}{{-1, text}, {vocab, []tandem.Token{1, vocab}}, {0, []tandem.Token{1, 4096}}, {0, []tandem.Token{-1}}} {
		if err := open(3, o.vocab, o.text); !errors.Is(err, tandem.Invalid) {
			t.Errorf("vocabulary %d, tokens %v: %v: want invalid", o.vocab, o.text, err)
		}
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, append(next, vocab), len(next))); !errors.Is(err, tandem.Invalid) {
		t.Errorf("a committed token beyond the vocabulary: %v: want invalid", err)
	}
}

// TestTargetOfMoreTokens: tokens that the draft model lacks, in the prompt and among what is committed, are read as its stand-in; trees
// are those of the stand-in, below the true root.
func TestTargetOfMoreTokens(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	const vocab, lacked = 5000, tandem.Token(4999)
	stand := r.Draft().Config.Model.Vocab().StandIn()
	with := func(id tandem.Token) []tandem.Token {
		return append(append(slices.Clone(r.Text[:5]), id), r.Text[5:]...)
	}
	for id, text := range [][]tandem.Token{with(lacked), with(stand)} {
		if _, err := r.Open(context.Background(), tandem.Opening{Session: tandem.SessionID(id + 1), Epoch: 1, Tokens: text,
			Limit:    draftertest.Limit,
			MaxNodes: 64, Vocab: vocab}); err != nil {
			t.Fatal(err)
		}
	}
	draft := func(text, like []tandem.Token, told int) {
		t.Helper()
		var trees [2]tandem.Tree
		for i, tokens := range [][]tandem.Token{text, like} {
			p := draftertest.Proposal(tandem.SessionID(i+1), tokens, told)
			p.Return = true
			done, err := r.Propose(context.Background(), p)
			if err != nil {
				t.Fatal(err)
			}
			trees[i] = done.Tree
		}
		got, want := trees[0], trees[1]
		if got.Tokens[0] != text[len(text)-1] || !slices.Equal(got.Tokens[1:], want.Tokens[1:]) ||
			!reflect.DeepEqual(got.LogProbs, want.LogProbs) {
			t.Errorf("tree %v below %d: want %v", got.Tokens, text[len(text)-1], want.Tokens)
		}
	}
	text, like := with(lacked), with(stand)
	draft(text, like, len(text))
	told := len(text)
	text, like = append(text, 300, lacked-1), append(like, 300, stand)
	draft(text, like, told)
	draft(append(text[:told:told], lacked, 301, 302), append(like[:told:told], stand, 301, 302), told) // another way
}

// TestTrimmedDraft: a draft that can say some tokens only proposes those, with their ids, and the same ones that the whole model has among
// its guesses; likewise for a target that draws, and for one of fewer tokens.
func TestTrimmedDraft(t *testing.T) {
	var keep []tandem.Token
	for id := range tandem.Token(4096) {
		if id%2 == 0 || id < 300 {
			keep = append(keep, id)
		}
	}
	path := filepath.Join(t.TempDir(), "trimmed.gguf")
	if _, err := convert.Trim(t.Context(), draftertest.ModelFile, path, keep, 4096, "", convert.Options{}); err != nil {
		t.Fatal(err)
	}
	whole, few := draftertest.New(t, drafter.Config{}), draftertest.Twin(t, drafter.Config{Model: draftertest.OpenDraft(t, path)})
	missed := 0
	for id, o := range []tandem.Opening{{}, {Vocab: 600}, {Sampling: tandem.Sampling{Temperature: 0.8, TopP: 1, Seed: 7}}} {
		text := slices.DeleteFunc(slices.Clone(whole.Text), func(id tandem.Token) bool { return o.Vocab > 0 && int(id) >= o.Vocab })
		o.Session, o.Epoch, o.Tokens, o.Limit, o.MaxNodes = tandem.SessionID(id+1), 1, text, draftertest.Limit, 64
		var lists [2][]tandem.Token // of the root's children
		for i, r := range []*draftertest.Rig{whole, few} {
			if _, err := r.Open(context.Background(), o); err != nil {
				t.Fatal(err)
			}
			tree := r.Drafted(draftertest.Proposal(o.Session, text, len(text))).Tree
			for n, parent := range tree.Parents {
				if n > 0 && parent == 0 {
					lists[i] = append(lists[i], tree.Tokens[n])
				}
				if n > 0 && i == 1 && (!slices.Contains(keep, tree.Tokens[n]) || o.Vocab > 0 && int(tree.Tokens[n]) >= o.Vocab) {
					t.Errorf("opening %d: node %d is token %d, which the draft cannot say", id, n, tree.Tokens[n])
				}
			}
		}
		want := slices.DeleteFunc(slices.Clone(lists[0]), func(id tandem.Token) bool { return !slices.Contains(keep, id) })
		missed += len(lists[0]) - len(want)
		if len(want) == 0 || len(lists[1]) == 0 || lists[1][0] != want[0] {
			t.Errorf("opening %d: the first guesses are %v, want those of the whole model that are kept, %v", id, lists[1], want)
		}
	}
	if missed == 0 {
		t.Error("the whole model guesses no token that was left out: the test hardly tests what it is for")
	}
}
