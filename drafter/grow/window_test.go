package grow_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/engine"
)

// TestWindow: of a long text the first tokens and the last are read, whatever lies between; drafts come, memory stays small while the text
// grows, and trees depend neither on how wide passes are nor on what lies in other sessions. A text that is taken back far is read anew.
func TestWindow(t *testing.T) {
	window := engine.Window{First: 64, Last: 100, Step: 128}
	rigs := []*draftertest.Rig{draftertest.New(t, drafter.Config{TreeRows: 24, Window: window}),
		draftertest.Twin(t, drafter.Config{TreeRows: 24, Window: window, Chunk: 5, PrefixCache: -1})}
	text := begin(1, 700)
	open := func(r *draftertest.Rig, id tandem.SessionID, text []tandem.Token) tandem.Opened {
		opened, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: 1000, MaxNodes: 16})
		if err != nil {
			t.Fatal(err)
		}
		return opened
	}
	for _, r := range rigs {
		open(r, 1, text)
		if read := r.Counters.Snapshot()["passes.rows"]; read != int64(window.Reads(len(text)-1)) ||
			read > int64(r.Draft().Window().Most()) {
			t.Errorf("%d rows were read: want %d, at most %d", read, window.Reads(len(text)-1), r.Draft().Window().Most())
		}
	}
	whole := window.Reads(len(text)-1) / engine.PageTokens * engine.PageTokens
	if reused := open(rigs[0], 2, text).Reused; reused != whole {
		t.Errorf("the same text again found %d tokens: want the whole pages, %d", reused, whole)
	}
	other := slices.Concat(text[:64], begin(2, 300), text[364:])
	if reused := open(rigs[0], 3, other).Reused; reused != whole {
		t.Errorf("a text that differs where nothing is seen found %d tokens: want %d", reused, whole)
	}
	if reused := open(rigs[0], 4, text[:150]).Reused; reused != 0 {
		t.Errorf("the beginning of the text, of which nothing is left out, found %d tokens of one with a gap: want none", reused)
	}
	told, rows := len(text), 0
	for round := range 12 {
		trees := []tandem.Ticket{rigs[0].Drafted(draftertest.Proposal(1, text, told)), rigs[1].Drafted(draftertest.Proposal(1, text, told))}
		if again := rigs[0].Drafted(draftertest.Proposal(2, text, told)); !reflect.DeepEqual(trees[0].Tree, trees[1].Tree) ||
			!reflect.DeepEqual(trees[0].Tree, again.Tree) {
			t.Fatalf("round %d, %d tokens:\n%v, in narrow passes\n%v, behind found pages\n%v", round, len(text), trees[0].Tree,
				trees[1].Tree, again.Tree)
		}
		rows += trees[0].Tree.Len() - 1
		for _, r := range rigs {
			pages := 0
			err := r.Draft().Sched.Do(context.Background(), func() error { pages = r.Draft().Session(1).Cache.Pages(); return nil })
			if err != nil || pages > 8 {
				t.Errorf("%d pages for %d tokens, %v: want at most 8", pages, len(text), err)
			}
		}
		told = len(text)
		text = append(slices.Clone(text), draftertest.Leaf(trees[0].Tree)...)
		text = append(text, begin(uint64(100+round), 20)...)
		if round == 7 { // the drafter had believed something else since long
			told -= 180
			text[told] = 7
		}
	}
	if rows == 0 {
		t.Error("nothing was drafted")
	}
}
