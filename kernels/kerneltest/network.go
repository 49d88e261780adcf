package kerneltest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// Network is a transformer of one layer with everything a Program can do.
type Network struct {
	*kernels.Program
	Data           [][]byte // of its weights
	hidden, logits kernels.Buf
	vocab          int
}

const (
	netRows, netWanted, netPages = 17, 9, 12
	netScale                     = 0.2
)

// newNetwork returns a network with random weights of three types: for embedding and output, for most matrices, and for v and down.
func newNetwork(r *rand.Rand, rows, heads, kvHeads, headDim, ffn int, typ [3]kernels.Type) *Network {
	dim, kv := heads*headDim, kvHeads*headDim
	p := kernels.NewProgram(rows, netWanted)
	n := &Network{Program: p, vocab: 70}
	matrix := func(t kernels.Type, rows, cols int) kernels.W {
		n.Data = append(n.Data, RandomRows(r, t, rows, cols))
		return weight(p, t, rows, cols)
	}
	p.KV = kernels.UniformKV(1, kvHeads, headDim, kernels.KVF16)
	h, q, gate, up, k, v := p.Buf(dim), p.Buf(dim), p.Buf(ffn), p.Buf(ffn), p.Buf(kv), p.Buf(kv)
	act, act2, head, wanted := p.Act(dim), p.Act(ffn), p.WantedAct(dim), p.WantedBuf(dim)
	n.hidden, n.logits = h, p.WantedBuf(n.vocab)
	turn := kernels.Rotation{}
	for i := range headDim / 2 {
		turn.InvFreq = append(turn.InvFreq, math.Pow(10000, -2*float64(i)/float64(headDim)))
	}
	side := kernels.MatMulOpt{Concurrent: true}
	p.Stage("embedding")
	p.Embed(matrix(typ[0], n.vocab, dim), h)
	p.RMSNorm(h, RandomFloats(r, dim, false), 1e-5, act)
	p.Stage("attention")
	p.MatMul(matrix(typ[1], dim, dim), act, q, side)
	p.MatMul(matrix(typ[1], kv, dim), act, k, side)
	p.MatMul(matrix(typ[2], kv, dim), act, v, kernels.MatMulOpt{})
	p.AddBias(q, RandomFloats(r, dim, false))
	p.RoPE(q, heads, headDim, turn)
	p.RoPE(k, kvHeads, headDim, turn)
	p.StoreKV(k, v, 0)
	p.Attention(q, 0, heads, kernels.AttentionOpt{Scale: netScale}, act)
	p.MatMul(matrix(typ[1], dim, dim), act, h, kernels.MatMulOpt{Add: true})
	p.RMSNorm(h, RandomFloats(r, dim, false), 1e-5, act)
	p.MatMul(matrix(typ[1], ffn, dim), act, gate, side)
	half, w := (ffn/16+1)/2*16, matrix(typ[1], ffn, dim)
	p.Stage("up, the first half")
	p.MatMul(w, act, up, kernels.MatMulOpt{Concurrent: true, Outputs: kernels.Range{From: 0, To: half}})
	p.Stage("up, the second half")
	p.MatMul(w, act, up, kernels.MatMulOpt{Outputs: kernels.Range{From: half, To: ffn}})
	p.SiLUMul(gate, up, act2)
	p.MatMul(matrix(typ[2], dim, ffn), act2, h, kernels.MatMulOpt{Add: true})
	p.Gather(h, wanted)
	p.RMSNorm(wanted, RandomFloats(r, dim, false), 1e-5, head)
	p.Stage("output")
	p.MatMul(matrix(typ[0], n.vocab, dim), head, n.logits, kernels.MatMulOpt{})
	p.TopK(n.logits)
	return n
}

// rig compiles the network everywhere, with a cache full of random keys and values.
func (n *Network) rig(t testing.TB, r *rand.Rand, devices []kernels.Device) rig {
	m := newRig(t, devices, n.Program, n.Data, netPages)
	all := map[kernels.Cell]bool{}
	for c := range kernels.Cell(netPages * kernels.PageRows) {
		all[c] = true
	}
	newKeys(t, m, n.KV, netPages).fill(r, all)
	return m
}

// treePass is a pass of two sessions: the first extends its prefix by some rows and then has a tree
// whose rows see those; the second is a tree alone. Cells of the trees lie in pages of their own.
func treePass(r *rand.Rand, prefixA, extend, prefixB, tree int, vocab int) *kernels.Pass {
	p := &kernels.Pass{TopK: 5}
	pages := []int32{7, 3, 9, 0, 11, 5, 1, 8}
	p.Pages = pages
	add := func(table, prefix, pos int, store kernels.Cell, anc []kernels.Cell) {
		p.Rows++
		p.Tokens, p.Pos = append(p.Tokens, int32(r.IntN(vocab))), append(p.Pos, int32(pos))
		p.Table, p.Prefix = append(p.Table, int32(table)), append(p.Prefix, int32(prefix))
		p.AncOff, p.AncLen = append(p.AncOff, int32(len(p.Anc))), append(p.AncLen, int32(len(anc)))
		p.Anc, p.Store = append(p.Anc, anc...), append(p.Store, store)
	}
	for pos := prefixA; pos < prefixA+extend; pos++ {
		add(0, pos+1, pos, kernels.Cell(pages[pos/64])*64+kernels.Cell(pos%64), nil)
	}
	for s, prefix := range []int{prefixA + extend, prefixB} {
		var paths [][]kernels.Cell
		for i := 0; i < tree; i++ {
			var path []kernels.Cell
			if i > 0 {
				path = paths[r.IntN(i)]
			}
			cell := kernels.Cell([]int{2, 4}[s]*64 + 3*i)
			path = append(append([]kernels.Cell(nil), path...), cell)
			paths = append(paths, path)
			add(4*s, prefix, prefix+len(path)-1, cell, path)
		}
	}
	for i := 0; i < p.Rows && len(p.Wanted) < netWanted; i += 2 {
		p.Wanted = append(p.Wanted, int32(i))
	}
	return p
}

// networks: a whole network, with its stages in one go.
func networks(t *testing.T, devices []kernels.Device) {
	for i, s := range []struct {
		heads, kvHeads, headDim, ffn int
		typ                          [3]kernels.Type
	}{
		{4, 2, 64, 512, [3]kernels.Type{kernels.Q6_K, kernels.Q4_K, kernels.Q6_K}},
		{4, 1, 32, 352, [3]kernels.Type{kernels.Q8_0, kernels.Q8_0, kernels.Q4_0}},
		{2, 2, 80, 224, [3]kernels.Type{kernels.F16, kernels.BF16, kernels.F32}},
	} {
		r := rng(uint64(i))
		n := newNetwork(r, netRows, s.heads, s.kvHeads, s.headDim, s.ffn, s.typ)
		m := n.rig(t, r, devices)
		for round := range 2 {
			pass := treePass(r, 100+200*round, 5, 40, 6, n.vocab)
			what := fmt.Sprintf("network %d, round %d", i, round)
			wanted := pass.Wanted
			for _, pass.Wanted = range [][]int32{wanted[:0], wanted}[round:] { // without logits everything after Gather has no rows
				m.run(pass)
				m.same(what, n.hidden, pass.Rows)
				m.same(what, n.logits, len(pass.Wanted))
				m.sameTop(what, len(pass.Wanted))
			}
		}
	}
}

// RowsDiffer runs a pass whole and then each of its rows alone on d, and reports whether any result depends on that.
func RowsDiffer(t testing.TB, d kernels.Device) bool {
	r := rng(99)
	n := newNetwork(r, netRows, 8, 2, 64, 512, [3]kernels.Type{kernels.Q8_0, kernels.Q8_0, kernels.Q8_0})
	m := n.rig(t, r, []kernels.Device{d})[1]
	pass := treePass(r, 320, 3, 40, 6, n.vocab)
	m.run(pass)
	hidden := m.get(n.hidden, pass.Rows)
	dim, differ := n.Buffers[n.hidden].Dim, false
	for i := range pass.Rows { // in order: a row's ancestors are stored before it
		m.run(alone(pass, i))
		if FirstDifference(m.get(n.hidden, 1), hidden[i*dim:(i+1)*dim]) >= 0 {
			differ = true
		}
	}
	return differ
}

func rowAlone(t *testing.T, devices []kernels.Device) {
	for _, d := range devices {
		if RowsDiffer(t, d) {
			t.Errorf("%v: a row alone differs from the row in a wide pass", d.About())
		}
	}
}

// ring hands out weights from memory for one stage, as for a model larger than memory.
type ring struct {
	*machine
	all  kernels.Weights
	mem  []byte
	held int // stage, or -1
	log  []int
	// experts are those that were asked for last; nil: all
	experts []int32
}

func newRing(t testing.TB, m *machine, all kernels.Weights) *ring {
	r, most := &ring{machine: m, all: all, held: -1}, 0
	for i := range m.p.StageCount() {
		n := 0
		for _, w := range m.p.StageWeights(i) {
			n += m.p.Weights[w].Bytes() + 64*max(1, m.p.Weights[w].Experts)
		}
		most = max(most, n)
	}
	r.mem = outside(t, most)
	return r
}

func (r *ring) Resident() bool { return false }

// Acquire copies a stage's weights: of experts, those that are asked for, the last one first.
func (r *ring) Acquire(stage int, experts []int32) (views [][]byte, err error) {
	if r.held >= 0 {
		return nil, fmt.Errorf("stage %d acquired while stage %d is held", stage, r.held)
	}
	all, err := r.all.Acquire(stage, nil)
	if err != nil {
		return nil, err
	}
	at := 0
	take := func(b []byte) []byte {
		view := r.mem[at : at+len(b) : at+len(b)]
		at += (len(b) + 63) &^ 63
		copy(view, b)
		return view
	}
	for i, b := range all {
		w := &r.p.Weights[r.p.StageWeights(stage)[i]]
		if w.Experts == 0 || experts == nil {
			views = append(views, take(b))
			continue
		}
		each, n := len(b)/w.Experts, len(views)
		for _, e := range slices.Backward(experts) {
			views = append(views, take(b[int(e)*each:][:each]))
		}
		slices.Reverse(views[n:])
		r.experts = experts
	}
	r.all.Release(stage)
	r.held, r.log = stage, append(r.log, stage)
	return views, nil
}

// Release overwrites the stage's weights, so that the test notices a pointer that is used too long.
func (r *ring) Release(stage int) {
	if r.held != stage {
		r.t.Errorf("stage %d released, %d is held", stage, r.held)
	}
	for i := range r.mem {
		r.mem[i] = 0xff
	}
	r.held = -1
}

// stages: weights that come stage by stage from a ring give the same bits, and so do passes that are run stage by stage. A device made of
// two does without the ring if its weights are in two layouts, or if one of the two would not see the ring.
func stages(t *testing.T, devices []kernels.Device) {
	r := rng(7)
	n := newNetwork(r, netRows, 4, 2, 64, 192, [3]kernels.Type{kernels.Q8_0, kernels.Q4_K, kernels.F16})
	m := n.rig(t, r, devices)
	pass := treePass(r, 100, 5, 40, 6, n.vocab)
	m.run(pass)
	want := m[0].get(n.logits, len(pass.Wanted))
	for _, on := range m {
		s, runners := *on, []kernels.Runner{on.runner}
		_, err := on.store.Acquire(0, nil)
		from := newRing(t, on, on.store)
		var streamed kernels.Runner
		if err == nil {
			streamed, err = on.dev.Compile(on.p, from, on.cache)
		}
		streams := !errors.As(err, new(*kernels.Unsupported))
		if streams {
			if err != nil {
				t.Fatal(err)
			}
			defer streamed.Close()
			s.runner, runners = streamed, append(runners, streamed)
			for range 2 {
				if s.run(pass); from.held >= 0 {
					t.Errorf("%s: stage %d is held after the pass", on.name, from.held)
				}
				wantSame(t, on.name+", streamed", s.get(n.logits, len(pass.Wanted)), want)
			}
			if once := []int{0, 1, 2, 3, 4}; !slices.Equal(from.log, append(once, once...)) {
				t.Errorf("%s: stages %v acquired in two passes of 5", on.name, from.log)
			}
		}
		for _, runner := range runners {
			if err := runner.Start(pass); err != nil {
				t.Fatal(err)
			}
			for i := range on.p.StageCount() {
				if err := runner.Stage(i); err != nil {
					t.Fatal(err)
				}
			}
			s.runner = runner
			wantSame(t, on.name+", stage by stage", s.get(n.logits, len(pass.Wanted)), want)
			if err := runner.Stage(0); err == nil {
				t.Errorf("%s: a stage without a pass", on.name)
			}
		}
		if streams {
			on.failing(pass)
		}
	}
}

// loans: a program that borrows another's matrix, which lies in a later stage there, computes with it.
func loans(t *testing.T, devices []kernels.Device) {
	const n, rows = 64, 5
	r := rng(12)
	x := RandomFloats(r, rows*n, false)
	product := func(p *kernels.Program, in kernels.Buf, w kernels.W) kernels.Buf {
		act, out := p.Act(n), p.Buf(n)
		p.Feed(in, act)
		p.MatMul(w, act, out, kernels.MatMulOpt{})
		return out
	}
	owner := kernels.NewProgram(rows, 0)
	in := owner.Buf(n)
	first, second := weight(owner, kernels.Q8_0, n, n), weight(owner, kernels.Q8_0, n, n)
	out := product(owner, product(owner, in, first), second)
	owner.Stages = []kernels.Stage{{Name: "first"}, {Name: "second", First: 2}}
	m := newRig(t, devices, owner, [][]byte{RandomRows(r, kernels.Q8_0, n, n), RandomRows(r, kernels.Q8_0, n, n)}, 0)
	m.set(in, x)
	m.run(&kernels.Pass{Rows: rows})
	want, between := m[0].get(out, rows), m[0].get(1, rows)
	for _, on := range m {
		p := kernels.NewProgram(rows, 0)
		in := p.Buf(n)
		out := product(p, in, p.Weight(on.p.Weights[second]))
		loan, err := kernels.Borrow(p, on.p, on.store, []kernels.W{second})
		if err != nil {
			t.Fatal(err)
		}
		s := *on
		if s.p, s.macs = p, nil; !loan.Resident() {
			t.Errorf("%s: a loan is not resident", on.name)
		}
		if s.runner, err = on.dev.Compile(p, loan, nil); err != nil {
			t.Fatal(err)
		}
		defer s.runner.Close()
		s.set(in, between)
		s.run(&kernels.Pass{Rows: rows})
		wantSame(t, on.name+", borrowed", s.get(out, rows), want)
		if _, err := kernels.Borrow(p, on.p, on.store, nil); err == nil {
			t.Error("a program of one weight borrowed none")
		}
		if _, err := kernels.Borrow(p, on.p, on.store, []kernels.W{7}); err == nil {
			t.Error("weight 7 of 2 borrowed")
		}
		if _, err := kernels.Borrow(p, on.p, newRing(t, on, on.store), []kernels.W{second}); err == nil {
			t.Error("weights borrowed from a ring")
		}
		p.Weights[0].Rows = 48
		if _, err := kernels.Borrow(p, on.p, on.store, []kernels.W{second}); err == nil {
			t.Error("a matrix of 64 rows borrowed as one of 48")
		}
	}
}

// failing runs a pass whose weights cannot be acquired.
func (m *machine) failing(pass *kernels.Pass) {
	m.t.Helper()
	r, err := m.dev.Compile(m.p, noWeights{}, m.cache)
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.Close()
	if err := r.Run(pass); !errors.Is(err, errNoDisk) || !strings.Contains(err.Error(), "embedding") {
		m.t.Errorf("%s: %v, want the error of the weights, with the name of the stage", m.name, err)
	}
}

var errNoDisk = errors.New("no disk")

type noWeights struct{}

func (noWeights) Acquire(int, []int32) ([][]byte, error) { return nil, errNoDisk }
func (noWeights) Release(int)                            {}
func (noWeights) Resident() bool                         { return false }
