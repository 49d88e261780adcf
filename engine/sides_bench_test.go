package engine_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"golang.org/x/sys/unix"
)

// benchModel is what BenchmarkSides runs. The figures in docs/measurements/guesses.md are of the 1b shape: tandem model expand --like 1b
// --type q8_0.
var benchModel = flag.String("sides.model", enginetest.Target, "GGUF file of the target of BenchmarkSides")

// randomSide writes a side file for m with random weights: matrices of q8_0, or f32 zeros.
func randomSide(t testing.TB, m *engine.Model, s side.Spec, typ gguf.Type) string {
	r := rand.New(rand.NewPCG(1, 1))
	w := gguf.NewWriter()
	s.Lineage, s.Vocabulary, s.Dim, s.Vocab = m.Names().Lineage, m.Names().Vocabulary, m.Config().Dim, m.Config().Vocab
	s.SetKeys(w)
	for _, slot := range s.Slots() {
		if slot.Optional {
			continue
		}
		b := make([]byte, slot.Shape[0]*slot.Shape[1]*4)
		if typ == gguf.Type(kernels.Q8_0) {
			b = b[:len(b)/4/32*34]
			for i := range b {
				if b[i] = byte(r.Uint32()); i%34 == 1 {
					b[i] = 0x0c // scales about 0.0003
				}
			}
		}
		w.Tensor(slot.Name, typ, slot.Shape, b)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return writeSide(t, b.Bytes())
}

// medusaSide and ppdSide write side files of the usual size.
func medusaSide(t testing.TB, m *engine.Model, heads int) string {
	return randomSide(t, m, side.Spec{Kind: side.Medusa, Levels: heads, Blocks: 1, Taps: []int{side.LastNorm}}, gguf.Type(kernels.Q8_0))
}

func ppdSide(t testing.TB, m *engine.Model, levels, members int) string {
	return randomSide(t, m, side.Spec{Kind: side.PPD, Levels: levels, Members: members}, gguf.Type(kernels.Q8_0))
}

// BenchmarkSides reports what hidden states and guesses cost, as shares of the pass that they belong to: of W rows, at a context of 128.
// Times are processor time of one thread, which other work on the machine disturbs little, and the least of all rounds, in which all
// variants take turns.
func BenchmarkSides(b *testing.B) {
	o := engine.Options{Device: testdevice.CPU(b, 1), MaxRows: 128, MaxWanted: 32, KVPages: engine.PagesFor(2, 256, 64)}
	plain := enginetest.Open(b, *benchModel, o)
	tapped := engine.WithTaps(b, plain, []int{2, plain.Config().Layers / 2, plain.Config().Layers - 3})
	const heads, levels, members = 5, 3, 4
	for _, path := range []string{medusaSide(b, plain, heads), ppdSide(b, plain, levels, members)} {
		if err := plain.OpenSide(path); err != nil {
			b.Fatal(err)
		}
	}
	for _, width := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("W=%d", width), func(b *testing.B) { benchSides(b, plain, tapped, width) })
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchSides(b *testing.B, plain, tapped *engine.Model, width int) {
	least := map[string]time.Duration{}
	timed := func(what string, f func()) {
		begun := processorTime(b)
		f()
		if took := processorTime(b) - begun; least[what] == 0 || took < least[what] {
			least[what] = took
		}
	}
	text := make([]tandem.Token, 128)
	seqs := map[*engine.Model]*engine.Sequence{}
	for _, m := range []*engine.Model{plain, tapped} {
		seqs[m] = enginetest.NewSeq(b, m, 200, 64)
		enginetest.Forward(b, m, 0, engine.Part{Seq: seqs[m], Extend: text})
	}
	features := make([]float32, tapped.FeatureWidth())
	pass := func(m *engine.Model, nodes []tandem.Token) (out *engine.Output) {
		parents := make([]int32, len(nodes))
		for i := range parents {
			parents[i] = int32(i) - 1
		}
		out = enginetest.Forward(b, m, 10, engine.Part{Seq: seqs[m], Nodes: nodes, Parents: parents, Want: engine.WantTail})
		if err := seqs[m].Truncate(128); err != nil {
			b.Fatal(err)
		}
		return out
	}
	way := plain.SelfDrafts()[1]
	prompts, _ := promptTree(way, 0, 0)
	for b.Loop() {
		var out *engine.Output
		timed("pass", func() { out = pass(plain, text[:width]) })
		hidden := slices.Clone(out.Hidden(0, width-1))
		timed("tapped", func() {
			out = pass(tapped, text[:width])
			for row := range min(width, 4) { // as many rows as are accepted in a good round
				out.Features(0, row, features)
			}
		})
		guess := func(a engine.GuessAsk) func() {
			return func() {
				if _, err := plain.Guess([]engine.GuessAsk{a}, 8); err != nil {
					b.Fatal(err)
				}
			}
		}
		timed("medusa", guess(engine.GuessAsk{SelfDraft: tandem.Medusa, Hidden: [][]float32{hidden}}))
		timed("ppd", guess(engine.GuessAsk{SelfDraft: tandem.PPD, Hidden: slices.Repeat([][]float32{hidden}, way.Levels*way.Members)}))
		timed("with prompt rows", func() { pass(plain, append(slices.Clone(text[:width]), prompts[:way.Levels]...)) })
	}
	share := func(what string) float64 { return 100 * float64(least[what]) / float64(least["pass"]) }
	b.ReportMetric(float64(least["pass"].Microseconds())/1000, "ms/pass")
	b.ReportMetric(share("tapped")-100, "%taps")
	b.ReportMetric(share("medusa"), "%medusa")
	b.ReportMetric(share("ppd"), "%ppd")
	b.ReportMetric(share("with prompt rows")-100, "%3-prompt-rows")
	b.ReportMetric(0, "ns/op")
}
