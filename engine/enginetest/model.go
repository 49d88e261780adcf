// Package enginetest is what tests of the engine, its families and its blocks share: models opened and compared, changed files, golden
// figures and mistakes that those must show. Only tests import it.
package enginetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Distance returns the r.m.s. and the largest difference of logits. A key or value that the cache rounds the other
// way changes single logits by some thousandths.
func Distance(got *engine.Output, want [][]float64) (rms, worst float64) {
	n := 0
	for i, row := range want {
		for j, x := range got.Logits(i) {
			d := math.Abs(float64(x) - row[j])
			rms, n = rms+d*d, n+1
			if !(d <= worst) {
				worst = d
			}
		}
	}
	return math.Sqrt(rms / float64(n)), worst
}

// InPieces returns the logits of all tokens, run in passes of the given sizes.
func InPieces(t *testing.T, m *engine.Model, tokens []tandem.Token, pieces []int) (logits []float32) {
	s := NewSeq(t, m, len(tokens), 0)
	defer s.Close()
	for _, n := range pieces {
		out := Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[:n], Want: engine.WantAll})
		for i := range out.Len() {
			logits = append(logits, out.Logits(i)...)
		}
		tokens = tokens[n:]
	}
	return logits
}

// Branch returns the tokens from the prefix' end down to a node.
func Branch(nodes []tandem.Token, parents []int32, node int) (tokens []tandem.Token) {
	for n := int32(node); n >= 0; n = parents[n] {
		tokens = append(tokens, nodes[n])
	}
	slices.Reverse(tokens)
	return tokens
}

// ByBranch returns the nodes in an order in which each shares as much of its branch as possible with the one before.
func ByBranch(nodes []tandem.Token, parents []int32) (order []int) {
	for i := range nodes {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int { return slices.Compare(Branch(nodes, parents, a), Branch(nodes, parents, b)) })
	return order
}

// The shipped models.
var (
	Target = InRepository("models/gopher-19m-q8_0.gguf")
	Draft  = InRepository("models/gopher-draft-all-f16.gguf")
)

// InRepository returns the path of a file of the repository from the folder in which the tests run.
func InRepository(path string) string {
	for up := "."; ; up = filepath.Join("..", up) {
		if _, err := os.Stat(filepath.Join(up, "go.mod")); err == nil {
			return filepath.Join(up, path)
		} else if len(up) > maxDepth {
			panic("these tests run outside the repository")
		}
	}
}

const maxDepth = 64 // characters of "../../…"

func Open(t testing.TB, path string, o engine.Options) *engine.Model {
	t.Helper()
	if o.Device == nil {
		o.Device = testdevice.CPU(t, 0)
	}
	m, err := engine.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// ExactOptions returns options for every instruction set, with one thread and with two.
func ExactOptions(t testing.TB) (all []engine.Options) {
	for _, isa := range cpu.Supported() {
		for threads := 1; threads <= 2; threads++ {
			all = append(all, engine.Options{Device: testdevice.ISA(t, threads, isa), KVPages: engine.PagesFor(5, 320, 64)})
		}
	}
	return all
}

func NewSeq(t testing.TB, m *engine.Model, capacity, nodes int) *engine.Sequence {
	t.Helper()
	s, err := m.NewSequence(capacity, nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func Forward(t testing.TB, m *engine.Model, topK int, batch ...engine.Part) *engine.Output {
	t.Helper()
	out, err := m.Forward(batch, topK)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func RandomTokens(r *rand.Rand, m *engine.Model, n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(r.IntN(m.Config().Vocab))
	}
	return tokens
}

func SameBits(a, b []float32) error {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Errorf("element %d is %v (%08x) and %v (%08x)", i, a[i], math.Float32bits(a[i]), b[i], math.Float32bits(b[i]))
		}
	}
	return nil
}

// WeightNamed returns a matrix of the passes of m; nil: they have none of that name.
func WeightNamed(m *engine.Model, name string) *kernels.Weight {
	all := m.Passes().Plan().Weights
	if i := slices.IndexFunc(all, func(w kernels.Weight) bool { return w.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Alone returns the logits after tokens, computed one row at a time in a sequence of its own.
func Alone(t *testing.T, m *engine.Model, tokens []tandem.Token) []float32 {
	s, err := m.NewSequence(len(tokens), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range tokens {
		out := Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[i : i+1], Want: engine.WantTail})
		if i == len(tokens)-1 {
			return append([]float32(nil), out.Logits(0)...)
		}
	}
	return nil
}

// Narrow computes a row at a time, in passes of one row, in a sequence of its own. It keeps the rows that one text and the next
// begin with: each of them was computed in a pass of one row too.
type Narrow struct {
	m      *engine.Model
	seq    *engine.Sequence
	tokens []tandem.Token // that seq has
}

// NewNarrow returns one that computes in seq, which is empty.
func NewNarrow(m *engine.Model, seq *engine.Sequence) *Narrow { return &Narrow{m: m, seq: seq} }

// After returns the logits after tokens.
func (n *Narrow) After(t testing.TB, tokens []tandem.Token) (logits []float32) {
	t.Helper()
	same := 0
	for same < min(len(tokens)-1, len(n.tokens)) && n.tokens[same] == tokens[same] {
		same++
	}
	if err := n.seq.Truncate(same); err != nil {
		t.Fatal(err)
	}
	for i := n.seq.Len(); i < len(tokens); i++ {
		logits = Forward(t, n.m, 0, engine.Part{Seq: n.seq, Extend: tokens[i : i+1], Want: engine.WantTail}).Logits(0)
	}
	n.tokens = slices.Clone(tokens)
	return slices.Clone(logits)
}

// CompareTrees takes three sessions whose prefixes are up to one, two and three times `prefix` long.
func CompareTrees(t *testing.T, m *engine.Model, r *rand.Rand, prefix int) {
	type session struct {
		seq    *engine.Sequence
		prefix []tandem.Token
		part   engine.Part
	}
	sessions := make([]session, 3)
	single := NewNarrow(m, NewSeq(t, m, 300, 0))
	defer single.seq.Close()
	var batch []engine.Part
	for i := range sessions {
		x := &sessions[i]
		x.seq = NewSeq(t, m, 300, 40)
		x.prefix = RandomTokens(r, m, 1+r.IntN(prefix)*(1+i))
		held := r.IntN(len(x.prefix))
		Forward(t, m, 0, engine.Part{Seq: x.seq, Extend: x.prefix[:held]})
		n := r.IntN(20)
		x.part = engine.Part{Seq: x.seq, Extend: x.prefix[held:], Nodes: RandomTokens(r, m, n), Parents: make([]int32, n),
			Want: engine.WantTail}
		for j := range x.part.Parents {
			x.part.Parents[j] = int32(r.IntN(j+1)) - 1
		}
		batch = append(batch, x.part)
	}
	out := Forward(t, m, 3, batch...)
	wide := make([][]float32, out.Len())
	for i := range wide {
		wide[i] = append([]float32(nil), out.Logits(i)...)
	}
	for i, x := range sessions {
		first := out.First(i)
		if err := SameBits(wide[first], single.After(t, x.prefix)); err != nil {
			t.Fatalf("session %d, end of prefix: %v", i, err)
		}
		for _, j := range ByBranch(x.part.Nodes, x.part.Parents) {
			path := Branch(x.part.Nodes, x.part.Parents, j)
			if err := SameBits(wide[first+1+j], single.After(t, slices.Concat(x.prefix, path))); err != nil {
				t.Fatalf("session %d, node %d at depth %d: %v", i, j, len(path), err)
			}
		}
		x.seq.Close()
	}
}

func OpenMTP(t *testing.T, path string, o engine.Options) *engine.Model {
	t.Helper()
	o.Device = testdevice.CPU(t, 2)
	m, err := engine.OpenDraft(side.MTPPath(path), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}
