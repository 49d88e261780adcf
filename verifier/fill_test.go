package verifier

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/verifier/outbox"
)

const (
	smallModel    = "../models/gopher-draft-all-f16.gguf"
	benchRows     = 64
	benchSessions = 20
	quarter       = benchRows / 4
)

// bench is a verifier whose schedule was not started: the test says when a pass runs.
type bench struct {
	*Verifier
	t        testing.TB
	heard    *outbox.Subscriber
	verdicts []tandem.Verdict // of the last pass
}

// flat costs 10 ms up to 8 rows and 1 ms for each row beyond.
var flat = []tandem.Cost{{Rows: 1, Time: 10 * time.Millisecond}, {Rows: 8, Time: 10 * time.Millisecond},
	{Rows: 64, Time: 66 * time.Millisecond}}

func newBench(t testing.TB) *bench {
	m, err := engine.Open(smallModel, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: benchRows, MaxWanted: benchRows, KVPages: 120})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return benchOf(t, m)
}

func benchOf(t testing.TB, m *engine.Model) *bench {
	b := &bench{t: t}
	var err error
	if b.Verifier, err = build(Config{Model: m, Counters: &tandem.Counters{}, MaxWaiting: 1000, Costs: flat}); err != nil {
		t.Fatal(err)
	}
	if b.heard, err = b.out.Subscribe(0); err != nil {
		t.Fatal(err)
	}
	b.sched.SetPatience(0)
	return b
}

// SmallestModel writes a model of one small layer with the vocabulary of the shipped pair, for tests of who gets rows and pages,
// where what a pass computes does not matter. It returns its path.
func SmallestModel(t testing.TB) string {
	t.Helper()
	from, err := gguf.Open(smallModel)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	w := gguf.CopyOf(from)
	for _, x := range from.Tensors() {
		w.DropTensor(x.Name)
	}
	const dim, heads, ffn = 32, 2, 32
	for key, v := range map[string]uint32{"block_count": 1, "embedding_length": dim, "feed_forward_length": ffn,
		"attention.head_count": heads, "attention.head_count_kv": heads, "attention.key_length": dim / heads,
		"attention.value_length": dim / heads, "rope.dimension_count": dim / heads} {
		w.Set("llama."+key, v)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for name, shape := range map[string][]int{"token_embd": {dim, 4096}, "output_norm": {dim}, "blk.0.attn_norm": {dim},
		"blk.0.attn_q": {dim, dim}, "blk.0.attn_k": {dim, dim}, "blk.0.attn_v": {dim, dim}, "blk.0.attn_output": {dim, dim},
		"blk.0.ffn_norm": {dim}, "blk.0.ffn_gate": {dim, ffn}, "blk.0.ffn_up": {dim, ffn}, "blk.0.ffn_down": {ffn, dim}} {
		n := shape[0]
		if len(shape) > 1 {
			n *= shape[1]
		}
		var data []byte
		for range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(random.NormFloat64())))
		}
		w.Tensor(name+".weight", gguf.F32, shape, data)
	}
	path := filepath.Join(t.TempDir(), "smallest.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// openPrompt opens a session whose prompt has so many tokens, of a tenant of its own.
func (b *bench) openPrompt(id tandem.SessionID, n int) *session {
	return b.openOf(fmt.Sprint(id), id, slices.Repeat([]tandem.Token{5}, n))
}

func (b *bench) openOf(tenant string, id tandem.SessionID, tokens []tandem.Token) *session {
	b.t.Helper()
	o := tandem.Opening{Session: id, Tenant: tenant, Tokens: tokens, Limit: 400, MaxNodes: benchRows, Sampling: tandem.Sampling{TopP: 1}}
	s, err := b.enter(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// enter opens a session and does not wait for its prompt.
func (b *bench) enter(o tandem.Opening) (*session, error) {
	s, err := b.admission.open(o, nil)
	if err == nil {
		b.sched.Enter(s, schedule.NewCall(context.Background()))
	}
	return s, err
}

// dropAll drops the sessions with the first so many ids.
func (b *bench) dropAll(n int) {
	for id := range tandem.SessionID(n) {
		if s := b.admission.session(id + 1); s != nil {
			b.sched.Drop(s, nil)
		}
	}
}

// ask puts a ticket with a tree of so many nodes: siblings below the root.
func (b *bench) ask(s *session, nodes int) {
	tree := tandem.Root(s.text.Root())
	for i := 1; i < nodes; i++ {
		tree.Tokens, tree.Parents = append(tree.Tokens, tandem.Token(i)), append(tree.Parents, 0)
	}
	t := tandem.Ticket{Session: s.ID, Epoch: s.Epoch, Base: tandem.Position(len(s.text.Tokens)), Hash: s.text.Hash, Tree: tree}
	b.admission.take(t, b.queue.enter(t))
}

// run runs a pass and returns who got how many rows: of trees, of prompts.
func (b *bench) run() (trees, prompts map[tandem.SessionID]int) {
	b.t.Helper()
	b.verdicts = nil
	trees, prompts = map[tandem.SessionID]int{}, map[tandem.SessionID]int{}
	before, held := b.cfg.Counters.Snapshot()["passes.rows"], map[tandem.SessionID]int{}
	for id := range tandem.SessionID(benchSessions) {
		if s := b.admission.session(id + 1); s != nil {
			held[s.ID] = s.seq.Len() - s.Reused()
		}
	}
	b.sched.Step()
	all := int(b.cfg.Counters.Snapshot()["passes.rows"] - before)
	for _, v := range b.heard.Pending(benchRows) {
		b.verdicts, trees[v.Session] = append(b.verdicts, v), v.Nodes
	}
	for id, was := range held {
		if n := b.admission.session(id).seq.Len() - b.admission.session(id).Reused() - was; trees[id] == 0 && n > 0 {
			prompts[id] = n
		}
	}
	if all > benchRows || all != sum(trees)+sum(prompts) {
		b.t.Fatalf("%d rows, of which %v and %v: at most %d fit", all, trees, prompts, benchRows)
	}
	for _, v := range b.verdicts {
		if v.Kind != tandem.OK || v.Rows != all || v.Batch != len(trees) {
			b.t.Errorf("verdict %+v: want %d rows, a batch of %d", v, all, len(trees))
		}
	}
	return trees, prompts
}

// TestPromptsBesideRounds: nobody in rounds, prompts fill the passes; somebody, and they take what the pass has room
// for without taking half as long again, or a few rows; sessions take turns. What counts between rounds is told in schedule.
func TestPromptsBesideRounds(t *testing.T) {
	b := newBench(t)
	b.openPrompt(1, 200)
	b.openPrompt(2, 200)
	if _, prompts := b.run(); prompts[1] != benchRows || len(prompts) != 1 {
		t.Errorf("alone: %v", prompts)
	}
	if _, prompts := b.run(); prompts[2] != benchRows {
		t.Errorf("second pass: %v, want the other prompt's turn", prompts)
	}
	b.dropAll(2)
	for _, c := range []struct{ nodes, rows int }{{1, 12}, {8, 5 + 3}, {20, 11}, {60, 4}} { // 10 ms → 15 ms: 13 rows in all …
		b := benchOf(t, b.cfg.Model)
		b.cfg.Model.Prefixes().Drop()
		long, other, talks := b.openPrompt(1, 200), b.openPrompt(2, 200), b.openPrompt(3, 1)
		b.ask(talks, c.nodes)
		trees, prompts := b.run()
		if trees[3] != c.nodes || prompts[1]+prompts[2] != c.rows || len(prompts) != 1 {
			t.Errorf("beside a tree of %d rows: %v, want %d rows of one prompt", c.nodes, prompts, c.rows)
		}
		if now := long.seq.Len() + other.seq.Len(); now != c.rows {
			t.Errorf("%v rows are in after %v", now, prompts)
		}
		for range 20 {
			b.run()
		}
		if b.sched.Load().Opening > 0 || long.Opening() || other.Opening() {
			t.Error("prompts never got in")
		}
		b.dropAll(3)
	}
}

// TestPassesAreFair: trees of any size, tickets at any time: each waits for a bounded number of passes, first
// come first served among trees of a usual size, and large trees leave the others most passes.
func TestPassesAreFair(t *testing.T) {
	model, err := engine.Open(SmallestModel(t), engine.Options{Device: testdevice.CPU(t, 1), MaxRows: benchRows, MaxWanted: benchRows,
		KVPages: 120})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	test := t
	rapid.Check(t, func(t *rapid.T) {
		b := benchOf(test, model)
		defer b.dropAll(12)
		n := rapid.IntRange(1, 12).Draw(t, "sessions")
		nodes := make([]int, n)
		var all []*session
		for i := range n {
			all = append(all, b.openPrompt(tandem.SessionID(i+1), 1))
			nodes[i] = rapid.IntRange(1, quarter).Draw(t, "nodes")
			if rapid.IntRange(0, 5).Draw(t, "large") == 0 {
				nodes[i] = rapid.IntRange(quarter+1, benchRows).Draw(t, "nodes")
			}
		}
		waited := make([]int, n)
		var order []*session // that wait, first come first
		for range 30 {
			for i, s := range all {
				if s.ticket == nil && rapid.IntRange(0, 3).Draw(t, "asks") > 0 {
					b.ask(s, nodes[i])
					order = append(order, s)
				}
			}
			trees, _ := b.run()
			if len(order) > 0 && len(trees) == 0 {
				t.Fatal("an empty pass although tickets wait")
			}
			skipped := false
			for _, s := range order {
				i := int(s.ID) - 1
				if trees[s.ID] > 0 {
					if skipped && nodes[i] > quarter {
						t.Fatalf("a tree of %d rows overtook a small one", nodes[i])
					}
					waited[i] = 0
					continue
				}
				if nodes[i] <= quarter && len(trees) > 0 && sum(trees) < quarter {
					skipped = true
				}
				if waited[i]++; waited[i] > n+4 {
					t.Fatalf("session %d with trees of %d rows waited for %d passes; all: %v", i+1, nodes[i], waited[i], nodes)
				}
			}
			order = slices.DeleteFunc(order, func(s *session) bool { return s.ticket == nil })
		}
	})
}

func sum(rows map[tandem.SessionID]int) (n int) {
	for _, r := range rows {
		n += r
	}
	return n
}

// TestLargestTreesLeaveOthersMostPasses: one session with trees that fill a pass beside one with small trees.
func TestLargestTreesLeaveOthersMostPasses(t *testing.T) {
	b := newBench(t)
	large, small := b.openPrompt(1, 1), b.openPrompt(2, 1)
	served := map[tandem.SessionID]int{}
	for range 40 {
		for s, nodes := range map[*session]int{large: benchRows, small: 4} {
			if s.ticket == nil {
				b.ask(s, nodes)
			}
		}
		trees, _ := b.run()
		for id := range trees {
			served[id]++
		}
	}
	if served[2] < 29 || served[1] < 9 {
		t.Errorf("of 40 passes %d with large trees and %d with small ones: want about 10 and 30", served[1], served[2])
	}
}
