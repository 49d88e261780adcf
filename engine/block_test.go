package engine_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// blockRig is a block draft with random states for each position of two texts.
type blockRig struct {
	t     *testing.T
	m     *engine.Model
	seqs  [2]*engine.Sequence
	texts [2][]engine.State // of positions
}

func newBlockRig(t *testing.T, path string, d kernels.Device) *blockRig {
	t.Helper()
	o := engine.Options{Device: d, MaxRows: 320, KVPages: engine.PagesFor(2, 400, 32)}
	m, err := engine.OpenDraft(path, sidePath("target"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	r, random := &blockRig{t: t, m: m}, rand.New(rand.NewPCG(7, 7))
	width, _ := m.StateWidth()
	for i := range r.seqs {
		if r.seqs[i], err = m.NewSequence(400, 16); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.seqs[i].Close)
		for range 400 {
			x := make([]float32, width)
			for j := range x {
				x[j] = float32(random.NormFloat64())
			}
			r.texts[i] = append(r.texts[i], engine.State{Target: x})
		}
	}
	return r
}

// text is a part with the next n rows of a text.
func (r *blockRig) text(i, n int) engine.Part {
	at := r.seqs[i].Len()
	return engine.Part{Seq: r.seqs[i], Extend: make([]tandem.Token, n), States: slices.Clone(r.texts[i][at : at+n]), Want: engine.WantTail}
}

// block is a part with a block behind a text.
func (r *blockRig) block(i int, last tandem.Token) engine.Part {
	b := r.m.Block()
	p := engine.Part{Seq: r.seqs[i], Want: engine.WantTail, States: make([]engine.State, b.Rows)}
	for row := range b.Rows {
		p.Nodes, p.Parents = append(p.Nodes, tandem.Token(b.Mask)), append(p.Parents, int32(row-1))
	}
	p.Nodes[0] = last
	return p
}

// run runs a pass and returns the logits of all rows that have some, one after the other, each with what a selector says of steps to some
// tokens; blocks leave the cache.
func (r *blockRig) run(parts ...engine.Part) (logits []float32) {
	r.t.Helper()
	out, err := r.m.Forward(parts, 3)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range out.Len() {
		logits = append(logits, out.Logits(i)...)
		steps, err := out.Steps(i, []tandem.Token{70, 5}, []tandem.Token{1, 259, 5})
		if err != nil || len(steps) != 2*min(r.m.Block().Rank, 1) {
			r.t.Fatalf("%d lists of steps, %v", len(steps), err)
		}
		logits = append(logits, slices.Concat(steps...)...)
	}
	for _, p := range parts {
		if err := p.Seq.Reroot(nil, nil); err != nil {
			r.t.Fatal(err)
		}
	}
	return logits
}

// dialogue runs passes of texts and blocks, alone and together. It checks that blocks do not depend on what else is in a pass, on how their
// text came into the cache, or on blocks before them.
func (r *blockRig) dialogue() []float32 {
	r.t.Helper()
	const a, b = 0, 1
	same := func(what string, got, want []float32) {
		r.t.Helper()
		if err := enginetest.SameBits(got, want); err != nil {
			r.t.Errorf("%s: %v", what, err)
		}
	}
	r.run(r.text(a, 200))
	r.run(r.text(a, 52), r.text(b, 7))
	first := r.run(r.block(a, 70)) // across the edge of a block of 256 positions
	both := r.run(r.block(b, 71), r.block(a, 70))
	same("beside another block", both[len(first):], first)
	joined := r.text(b, 3)
	next := r.block(b, 90)
	joined.Nodes, joined.Parents, joined.States = next.Nodes, next.Parents, append(joined.States, next.States...)
	mixed := r.run(r.block(a, 70), joined) // a part with text and a block
	same("beside a text", mixed[:len(first)], first)
	same("in the pass of its text", mixed[len(first):], r.run(r.block(b, 90)))
	other := r.run(r.block(a, 72))
	if enginetest.SameBits(other, first) == nil {
		r.t.Error("another last token gives the same logits")
	}
	if err := r.seqs[a].Truncate(240); err != nil {
		r.t.Fatal(err)
	}
	unknown := r.text(a, 12)
	for i := range unknown.States {
		unknown.States[i] = engine.State{}
	}
	r.run(unknown) // states that are not known
	if enginetest.SameBits(r.run(r.block(a, 70)), first) == nil {
		r.t.Error("unknown states give the same logits")
	}
	if err := r.seqs[a].Truncate(240); err != nil {
		r.t.Fatal(err)
	}
	r.run(r.text(a, 5))
	r.run(r.text(a, 7))
	same("after a rollback", r.run(r.block(a, 70)), first)
	return slices.Concat(first, both, mixed, other)
}

// TestBlocksOnDevices: a block draft's logits have the same bits on every device, with convolutions and without.
func TestBlocksOnDevices(t *testing.T) {
	two := family.DraftShape{Kind: "dflash", Taps: []int{2, 3}, Two: true}
	files := map[string]string{"dflash": sidePath("dflash")}
	makeDrafts(t, []family.DraftShape{two}, files)
	for name, path := range files {
		t.Run(name, func(t *testing.T) { blocksOnDevices(t, path) })
	}
}

func blocksOnDevices(t *testing.T, path string) {
	want := newBlockRig(t, path, testdevice.Ref()).dialogue()
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	near := testdevice.CPU(t, 1)
	devices := map[string]kernels.Device{"gpu": gpu, "two threads": testdevice.CPU(t, 2),
		"divided": enginetest.Halves(t, testdevice.CPU(t, 1), near, nil),
		"layers":  enginetest.Fixed{Device: layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)}).With(2)}}
	for _, isa := range cpu.Supported() {
		devices[isa.String()] = testdevice.ISA(t, 1, isa)
	}
	for name, d := range devices {
		t.Run(name, func(t *testing.T) {
			if err := enginetest.SameBits(newBlockRig(t, path, d).dialogue(), want); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBadBlocks: what is no block is refused, and changes nothing.
func TestBadBlocks(t *testing.T) {
	r := newBlockRig(t, sidePath("dflash"), testdevice.Ref())
	r.run(r.text(0, 9))
	want := r.run(r.block(0, 70))
	for says, change := range map[string]func(p *engine.Part){
		"a block of 7 rows: want at most 6": func(p *engine.Part) {
			p.Nodes, p.Parents, p.States = append(p.Nodes, 7), append(p.Parents, 5), append(p.States, engine.State{})
		},
		"row 2 of a block has parent 0: want 1, a chain":        func(p *engine.Part) { p.Parents[2] = 0 },
		"5 states for 6 rows":                                   func(p *engine.Part) { p.States = p.States[:5] },
		"state 1 has 0 numbers of the target and 32 of the dra": func(p *engine.Part) { p.States[1].Own = make([]float32, 32) },
		"state 0 has 5 numbers of the target":                   func(p *engine.Part) { p.States[0].Target = make([]float32, 5) },
		"token 260 in a tree: vocabulary has 260":               func(p *engine.Part) { p.Nodes[0] = 260 },
	} {
		p := r.block(0, 70)
		change(&p)
		_, err := r.m.Forward([]engine.Part{p}, 3)
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("error %v: want one that says %q", err, says)
		}
	}
	if err := enginetest.SameBits(r.run(r.block(0, 70)), want); err != nil {
		t.Error(err)
	}
}

// TestSelectorFileChanged: steps are read from the draft's file, which must stay as it is.
func TestSelectorFileChanged(t *testing.T) {
	files := map[string]string{}
	makeDrafts(t, []family.DraftShape{{Kind: "dflash", Taps: []int{2, 3}, Two: true}}, files)
	for _, path := range files {
		r := newBlockRig(t, path, testdevice.CPU(t, 1))
		r.run(r.text(0, 9))
		out, err := r.m.Forward([]engine.Part{r.block(0, 70)}, 3)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		_, err = out.Steps(0, []tandem.Token{70}, []tandem.Token{1})
		if tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("a file that was written to: %v", err)
		}
	}
}
