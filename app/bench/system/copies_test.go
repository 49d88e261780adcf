package system

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/text/token"
)

// TestCopies: the shipped target continues the prompts of the class copy by copying.
func TestCopies(t *testing.T) {
	const (
		target = "../../../models/gopher-19m-q8_0.gguf"
		tokens = 128
		least  = 8 // tokens in a row that count as a copy
	)
	vocab, err := token.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.Open(target, engine.Options{Device: testdevice.CPU(t, 0), KVPages: engine.PagesFor(1, 1024, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	prompts, seen := copyPrompts(), map[string]bool{}
	var sum, earlier float64
	for _, p := range prompts {
		if seen[p.ID] || strings.Contains(p.Prompt, endMark) || p.Prompt == "" {
			t.Errorf("%s is there twice, or is no prompt: %q", p.ID, p.Prompt)
		}
		seen[p.ID] = true
		text := vocab.Encode(p.Prompt, true)
		prompt := len(text)
		if prompt > 1024-256 {
			t.Errorf("%s has %d tokens: want room for 256 more in a context of 1024", p.ID, prompt)
		}
		text = append(text, greedy(t, m, text, tokens)...)
		own := copiedOf(text, prompt, prompt, least)
		all := copiedOf(text, prompt, len(text), least)
		t.Logf("%-17s %3d tokens; of the next %d, %.0f %% copy the prompt, %.0f %% the text before", p.ID, prompt, tokens, 100*own, 100*all)
		sum, earlier = sum+own, earlier+all
		if all < 0.8 {
			t.Errorf("%s: %.2f copied: want at least 0.8\n%s", p.ID, all, vocab.Decode(text))
		}
	}
	n := float64(len(prompts))
	t.Logf("%d prompts: %.0f %% copy the prompt, %.0f %% the text before", len(prompts), 100*sum/n, 100*earlier/n)
	if len(prompts) < 8 || sum/n < 0.8 {
		t.Errorf("%d prompts, %.2f copied from them: want 8 or more, and 0.8", len(prompts), sum/n)
	}
}

// greedy returns the n tokens with which m continues text.
func greedy(t *testing.T, m *engine.Model, text []tandem.Token, n int) (out []tandem.Token) {
	t.Helper()
	seq, err := m.NewSequence(len(text)+n, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	for rest := text; len(out) < n; {
		chunk := rest[:min(len(rest), m.MaxRows())]
		got, err := m.Forward([]engine.Part{{Seq: seq, Extend: chunk, Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if rest = rest[len(chunk):]; len(rest) == 0 {
			out = append(out, tandem.Token(got.Top(0).IDs[0]))
			rest = out[len(out)-1:]
		}
	}
	return out
}

// copiedOf returns the share of the tokens of text after the first from that are in runs of at least n tokens that stand before, and
// end there before until.
func copiedOf(text []tandem.Token, from, until, n int) float64 {
	first, copied := map[[16]tandem.Token]int{}, make([]bool, len(text))
	for end := n; end <= len(text); end++ {
		var run [16]tandem.Token
		copy(run[:], text[end-n:end])
		if before, is := first[run]; !is {
			first[run] = end
		} else if before <= until {
			for i := end - n; i < end; i++ {
				copied[i] = true
			}
		}
	}
	count := 0
	for _, is := range copied[from:] {
		if is {
			count++
		}
	}
	return float64(count) / float64(len(text)-from)
}
