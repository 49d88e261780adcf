package strategy

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/mempool"
	"github.com/tandem-llm/tandem/test/testkit"
)

// recording holds what the shipped drafts say about texts of the shipped target at temperature 0. TestRecord with -rewrite makes it, in a
// few minutes.
const (
	recording    = "testdata/rounds.gz"
	recordNodes  = 48  // of the trees that a trie is made of
	recordTemper = 0.4 // of guesses for a target at temperature 0: see spec.DraftTemper
	recordLeast  = -5  // less likely guesses below the text are left out, in nats
)

var (
	recordTo     = flag.String("recording", recording, "file of recorded rounds")
	recordTokens = flag.Int("record-tokens", 96, "tokens of each recorded text")
	recordCount  = flag.Int("record-count", 8, "recorded prompts of each class")
)

// add takes the tree of a drafter after text[:i].
func (r *recorded) add(tries []*trie, i int, t tandem.Tree) {
	type place struct {
		node *trie
		at   int     // in the text, -1 beside it
		off  float32 // log-probability where it left the text
	}
	places := make([]place, t.Len())
	places[0] = place{tries[i], i, 0}
	for n := 1; n < t.Len(); n++ {
		p := places[t.Parents[n]]
		lp := t.LogProbs[n] - t.LogProbs[t.Parents[n]]
		switch right := p.at >= 0 && p.at < len(r.text) && r.text[p.at] == t.Tokens[n]; {
		case p.node == nil:
		case right:
			p.node.child(spec.Candidate{Token: t.Tokens[n], LogProb: lp})
			if places[n].at = p.at + 1; p.at+1 < len(tries) {
				places[n].node = tries[p.at+1]
			}
		case p.off+lp >= recordLeast:
			at := p.node.child(spec.Candidate{Token: t.Tokens[n], LogProb: lp})
			if p.node.next[at] == nil {
				p.node.next[at] = &trie{}
			}
			places[n] = place{p.node.next[at], -1, p.off + lp}
		}
	}
}

// experts are the shipped draft models in the recording, in its order.
var experts = []string{"gopher-draft-go-f16", "gopher-draft-py-f16", "gopher-draft-prose-f16"}

// TestRecord writes the recording anew, only with -rewrite.
func TestRecord(t *testing.T) {
	if !*testkit.Rewrite {
		t.Skip("without -rewrite the recording stays")
	}
	const models = "../../models/"
	target := openModel(t, models+"gopher-19m-q8_0.gguf", 1, 0)
	texts := recordPrompts(t, target)
	for _, r := range texts {
		r.text = greedy(t, target, r.prompt, *recordTokens)
	}
	for _, name := range experts {
		m := openModel(t, models+name+".gguf", 2, drafter.DefaultTreeRows)
		d, err := drafter.New(drafter.Config{Model: m, Name: name, Pool: mempool.Pool{}, Counters: &tandem.Counters{}})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range texts {
			said, tries := r.guesses(t, d, tandem.SessionID(i+1))
			r.of = append(r.of, guessed{drafter: name, temper: recordTemper, said: said, tries: tries})
		}
		if err := d.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	writeRecording(t, *recordTo, texts)
}

func openModel(t *testing.T, path string, sessions, nodes int) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 128, KVPages: engine.PagesFor(sessions, 1024, nodes)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// greedy returns the next n tokens of a model at temperature 0.
func greedy(t *testing.T, m *engine.Model, prompt []tandem.Token, n int) (text []tandem.Token) {
	t.Helper()
	seq, err := m.NewSequence(len(prompt)+n, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	for next := prompt; len(text) < n; {
		piece := next[:min(len(next), m.MaxRows())]
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: piece, Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if next = next[len(piece):]; len(next) == 0 {
			next = []tandem.Token{tandem.Token(out.Top(0).IDs[0])}
			text = append(text, next[0])
		}
	}
	return text
}

// guesses returns a drafter's hindsight on the prompt and its tries along the text.
func (r *recorded) guesses(t *testing.T, d *drafter.Drafter, id tandem.SessionID) (tandem.Hindsight, []*trie) {
	t.Helper()
	ctx, all := context.Background(), slices.Concat(r.prompt, r.text)
	limit := tandem.Position(len(all) + 1)
	opened, err := d.Open(ctx, tandem.Opening{Session: id, Epoch: 1, Tokens: r.prompt, Limit: limit, MaxNodes: recordNodes})
	if err != nil {
		t.Fatal(err)
	}
	tries := make([]*trie, len(r.text))
	for i := range tries {
		tries[i] = &trie{}
	}
	for i := range tries {
		base := len(r.prompt) + i
		done, err := d.Propose(ctx, tandem.Proposal{Session: id, Epoch: 1, Base: tandem.Position(base),
			Hash: tandem.EmptyPrefix.Add(all[:base]...),
			From: tandem.Position(max(base-1, len(r.prompt))), Suffix: all[max(base-1, len(r.prompt)):base], Return: true,
			Bounds: tandem.Bounds{Nodes: recordNodes, Depth: 31, Width: 8}, Growth: tandem.GrowBest, Temper: recordTemper})
		if err != nil {
			t.Fatal(err)
		}
		r.add(tries, i, done.Tree)
	}
	if err := d.Close(ctx, id); err != nil {
		t.Fatal(err)
	}
	return opened.Hindsight, tries
}

// recordPrompts returns the prompts of all classes: the shipped ones of each domain; texts that nobody can have learned; two domains in
// one prompt; and prompts that are written twice, the second time without the end.
func recordPrompts(t *testing.T, m *engine.Model) (texts []*recorded) {
	t.Helper()
	f, err := os.Open("../../test/testdata/prompts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	domains := []string{"go", "python", "prose"}
	of := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var p struct{ Domain, Prompt string }
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		of[p.Domain] = append(of[p.Domain], p.Prompt)
	}
	add := func(class, prompt string) {
		tokens := m.Vocab().Encode(prompt, true)
		texts = append(texts, &recorded{class: class, prompt: tokens[:min(len(tokens), 1000-*recordTokens)]})
	}
	for _, d := range domains {
		for _, prompt := range of[d][:*recordCount] {
			add(d, prompt)
		}
	}
	for i := range *recordCount {
		r := rand.New(rand.NewPCG(15, uint64(i)))
		raw := make([]byte, 128)
		for k := range raw {
			raw[k] = byte(r.Uint32())
		}
		add("hostile", []string{base64.StdEncoding.EncodeToString(raw), hex.Dump(raw[:64]), fmt.Sprint(raw[:64]), scripts(r)}[i%4])
	}
	for i := range *recordCount {
		a, b := of[domains[i%3]], of[domains[(i+1+i/3%2)%3]]
		add("changing", a[i]+"\n\n"+b[len(b)-1-i])
	}
	for i := range *recordCount {
		list := of[domains[i%3]]
		p := list[len(list)-1-i]
		add("copy", p+"\n\n"+p[:len(p)/3])
	}
	return texts
}

// scripts returns characters from all over Unicode.
func scripts(r *rand.Rand) string {
	var b strings.Builder
	for range 64 {
		first := []rune{0x21, 0x391, 0x410, 0x5d0, 0x905, 0x3041, 0x4e00, 0xac00}[r.IntN(8)]
		b.WriteRune(first + rune(r.IntN(60)))
	}
	return b.String()
}
