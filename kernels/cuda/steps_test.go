package cuda_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// drafting is a small draft: x = embedding + state / 2 + extra; the logits are products with norm(x), and x is the next state.
type drafting struct {
	*kernels.Program
	x, state, extra kernels.Buf
	norm            []float32
	r               kernels.Runner
}

const draftDim, draftVocab, draftRows, draftWanted = 1280, 40, 120, 6 // rows that take more than one span

func newDrafting(t *testing.T, d kernels.Device) *drafting {
	random := rand.New(rand.NewPCG(3, 1))
	p := &drafting{Program: kernels.NewProgram(draftRows, draftWanted)}
	for range draftDim {
		p.norm = append(p.norm, random.Float32())
	}
	p.x, p.state, p.extra = p.Buf(draftDim), p.Buf(draftDim), p.Buf(draftDim)
	last, act, logits := p.WantedBuf(draftDim), p.WantedAct(draftDim), p.WantedBuf(draftVocab)
	w := kernels.Weight{Name: "embedding", Type: kernels.Q8_0, Rows: draftVocab, Cols: draftDim, Layout: d.Layout(kernels.Q8_0)}
	embedding := p.Weight(w)
	w.Name = "head"
	head := p.Weight(w)
	p.Embed(embedding, p.x)
	p.AddScaled(p.state, 0.5, p.x)
	p.AddScaled(p.extra, 1, p.x)
	p.Gather(p.x, last)
	p.RMSNorm(last, p.norm, 1e-5, act)
	p.MatMul(head, act, logits, kernels.MatMulOpt{})
	p.TopK(logits)
	s, err := d.NewWeights(p.Program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, w := range []kernels.W{embedding, head} {
		if err := s.Pack(w, 0, kerneltest.RandomRows(random, kernels.Q8_0, draftVocab, draftDim)); err != nil {
			t.Fatal(err)
		}
	}
	if p.r, err = d.Compile(p.Program, s, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.r.Close)
	return p
}

// give fills state and extra of a row.
func (d *drafting) give(row int, state, extra float32) {
	for _, b := range []struct {
		buf kernels.Buf
		v   float32
	}{{d.state, state}, {d.extra, extra}} {
		to := kernels.Give(d.r, b.buf, row)
		for i := range to {
			to[i] = b.v * float32(math.Sin(float64(i)))
		}
	}
}

// TestChain: rows follow others as Link says, those of a row that two follow as well, with the bits of the definitions step by step.
func TestChain(t *testing.T) {
	tokens := rand.New(rand.NewPCG(1, 9)).Perm(draftVocab)
	l := kernels.Link{Norm: nil}
	for _, token := range tokens {
		l.Tokens = append(l.Tokens, int32(token))
	}
	ref := newDrafting(t, testdevice.Ref())
	type found struct {
		top   kernels.Top
		state []float32
	}
	var want []found
	step := func(p kernels.Pass, states [][]float32) {
		for i, s := range states {
			copy(ref.r.Row(ref.state, i), s)
			clear(ref.r.Row(ref.extra, i))
		}
		if err := ref.r.Run(&p); err != nil {
			t.Fatal(err)
		}
		for i, w := range p.Wanted {
			top := ref.r.Top(i)
			top.IDs, top.Logits = slices.Clone(top.IDs), slices.Clone(top.Logits)
			want = append(want, found{top, slices.Clone(ref.r.Row(ref.x, int(w)))})
		}
	}
	first := kernels.Pass{Rows: 3, Tokens: []int32{5, 6, 7}, Wanted: []int32{0, 2}, TopK: 2}
	for i := range 3 {
		ref.give(i, float32(i), 0.25)
	}
	step(first, nil)
	steps := []kernels.ChainStep{{Pass: &first}}
	for _, after := range [][]int32{{1, 0, 1}, {4}} {
		p := kernels.Pass{Rows: len(after), Tokens: make([]int32, len(after)), Wanted: []int32{0, 1, 2}[:len(after)], TopK: 2}
		steps = append(steps, kernels.ChainStep{Pass: &p, After: after})
		follows, states := p, [][]float32{}
		follows.Tokens = nil
		for _, a := range after {
			follows.Tokens, states = append(follows.Tokens, l.Tokens[want[a].top.IDs[0]]), append(states, want[a].state)
		}
		step(follows, states)
	}
	for _, integrated := range []bool{false, true} {
		gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: integrated, Sanitize: true})
		d := newDrafting(t, gpu)
		r := d.r.(kernels.ChainRunner)
		l.From, l.To, l.Zero = d.x, d.state, []kernels.Buf{d.extra}
		if err := r.Link(l); err != nil {
			t.Fatal(err)
		}
		for range 3 { // launched, captured, run
			for i := range 3 {
				d.give(i, float32(i), 0.25)
			}
			if err := r.Chain(steps); err != nil {
				t.Fatal(err)
			}
			for i, w := range want {
				top := r.Top(i)
				if !reflect.DeepEqual(top, w.top) {
					t.Fatalf("integrated %v: result %d: %+v, want %+v", integrated, i, top, w.top)
				}
				if at := kerneltest.FirstDifference(r.State(i), w.state); at >= 0 {
					t.Fatalf("integrated %v: number %d of state %d differs", integrated, at, i)
				}
			}
			d.many(t, ref)
			if r.State(len(want)) != nil || r.Top(len(want)).IDs != nil || r.State(-1) != nil {
				t.Error("results that no row has")
			}
		}
	}
}

// many runs a pass with more given rows than come with it, and compares it with the definitions.
func (d *drafting) many(t *testing.T, ref *drafting) {
	p := kernels.Pass{Rows: draftRows, Tokens: make([]int32, draftRows)}
	for _, x := range []*drafting{d, ref} {
		for i := range draftRows {
			x.give(i, float32(i), -0.5)
		}
		if err := x.r.Run(&p); err != nil {
			t.Fatal(err)
		}
	}
	for i := range draftRows {
		if at := kerneltest.FirstDifference(d.r.Row(d.x, i), ref.r.Row(ref.x, i)); at >= 0 {
			t.Fatalf("of many rows, number %d of row %d differs", at, i)
		}
	}
}

// TestBadChain: what cannot be linked or run is refused, and the runner goes on.
func TestBadChain(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	d := newDrafting(t, gpu)
	r := d.r.(kernels.ChainRunner)
	good := kernels.Link{From: d.x, To: d.state}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	pass := func(wanted ...int32) *kernels.Pass {
		return &kernels.Pass{Rows: 3, Tokens: make([]int32, 3), Wanted: wanted, TopK: 1}
	}
	refused(r.Chain([]kernels.ChainStep{{Pass: pass(2)}}), "want Link first")
	for want, edit := range map[string]func(l *kernels.Link){
		"for 1 of 40 logits":        func(l *kernels.Link) { l.Tokens = []int32{1} },
		"logit 3 of a chain is":     func(l *kernels.Link) { l.Tokens = make([]int32, 40); l.Tokens[3] = 40 },
		"two of all rows and equal": func(l *kernels.Link) { l.To = 3 },
		"want buffers of all rows":  func(l *kernels.Link) { l.Zero = []kernels.Buf{d.x} },
		"a norm of 2 numbers":       func(l *kernels.Link) { l.Norm = []float32{1, 1} },
	} {
		l := good
		edit(&l)
		refused(r.Link(l), want)
	}
	if err := r.Link(good); err != nil {
		t.Fatal(err)
	}
	one, none := kernels.ChainStep{Pass: pass(2)}, pass(2)
	none.TopK = 0
	other := kernels.ChainStep{Pass: &kernels.Pass{Rows: 1, Tokens: []int32{0}, TopK: 2}, After: []int32{0}}
	for want, steps := range map[string][]kernels.ChainStep{
		"a chain of 0 steps":         nil,
		"the 0 best values":          {{Pass: none}, {Pass: none, After: []int32{0, 0, 0}}},
		"follows wanted row 1 of 1":  {one, {Pass: pass(0), After: []int32{0, 0, 1}}},
		"follows wanted row -1 of 1": {one, {Pass: pass(0), After: []int32{0, 0, -1}}},
		"3 rows, 2 of which follow":  {one, {Pass: pass(0), After: []int32{0, 0}}},
		"3 rows, 3 of which follow":  {{Pass: pass(0), After: []int32{0, 0, 0}}},
		"the 2 best values":          {one, other},
		"7 wanted rows in a chain, want at ": {{Pass: pass(0, 1, 2)}, {Pass: pass(0, 1, 2), After: []int32{0, 0, 0}},
			{Pass: pass(0), After: []int32{0, 0, 0}}},
		"step 1 of a chain: kernels: pass": {one, {Pass: &kernels.Pass{Rows: 121, TopK: 1}}},
	} {
		refused(r.Chain(steps), want)
	}
	if err := r.Chain([]kernels.ChainStep{one}); err != nil || len(r.Top(0).IDs) != 1 {
		t.Errorf("%v, %+v", err, r.Top(0))
	}
}
