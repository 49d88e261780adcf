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

// routeOpts are the ways to choose among n experts.
func routeOpts(r *rand.Rand, n int) []kernels.RouteOpt {
	bias := RandomFloats(r, n, false)
	return []kernels.RouteOpt{{}, {Normed: true}, {Sigmoid: true, Scale: 2.5}, {Sigmoid: true, Normed: true, Bias: bias},
		{Normed: true, Bias: bias, Scale: 0.7}, {Normed: true, Scale: 3, Each: bias},
		{Sigmoid: true, Bias: bias, Each: RandomFloats(r, n, false)}}
}

// routed is a program that chooses experts and joins what lies in parts with their weights.
type routed struct {
	rig
	logits, parts, out kernels.Buf
	dim, used          int
}

func newRouted(t testing.TB, devices []kernels.Device, rows, n, used, dim int, opt kernels.RouteOpt) *routed {
	p := kernels.NewProgram(rows, 0)
	p.Routes = []kernels.RouteShape{{Experts: n, Used: used}}
	x := &routed{logits: p.Buf(n), parts: p.Buf(used * dim), out: p.Buf(dim), dim: dim, used: used}
	p.Add(kernels.ChooseExperts{RouteOpt: opt, Logits: x.logits})
	p.Add(kernels.JoinExperts{In: x.parts, Out: x.out, Add: dim > 1})
	x.rig = newRig(t, devices, p, nil, 0)
	return x
}

// chooseExperts: every way to choose, with equal logits, with those that are no numbers, and with nothing else.
func chooseExperts(t *testing.T, devices []kernels.Device) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, s := range []struct{ n, used, dim int }{{8, 2, 5}, {1, 1, 1}, {128, 8, 40}, {37, 37, 3}} {
		const rows = 7
		r := rng(uint64(s.n))
		for i, opt := range routeOpts(r, s.n) {
			what := fmt.Sprintf("%d of %d, way %d", s.used, s.n, i)
			m := newRouted(t, devices, rows, s.n, s.used, s.dim, opt)
			logits := RandomFloats(r, rows*s.n, false)
			row := func(i int) []float32 { return logits[i*s.n : (i+1)*s.n] }
			for j := range row(1) { // equal ones; a NaN beside numbers; nothing but NaN; infinities; large differences
				row(1)[j] = float32(j / 3)
				row(3)[j] = nan
				row(4)[j] = -inf
				row(6)[j] *= 200
			}
			row(2)[s.n/2], row(5)[s.n-1] = nan, inf
			m.set(m.logits, logits)
			m.set(m.parts, RandomFloats(r, rows*s.used*s.dim, false))
			m.set(m.out, RandomFloats(r, rows*s.dim, false))
			m.run(&kernels.Pass{Rows: rows})
			m.same(what, m.out, rows)
			m.sameRoutes(what, 0, rows)
		}
	}
}

// sameRoutes compares which experts rows have chosen, on devices that can tell.
func (r rig) sameRoutes(what string, route kernels.Route, rows int) {
	r[0].t.Helper()
	of := r[0].runner.(kernels.RouteReader)
	for _, m := range r[1:] {
		x, ok := m.runner.(kernels.RouteReader)
		if !ok {
			continue
		}
		for i := range rows {
			if got, want := x.Chosen(route, i), of.Chosen(route, i); len(want) == 0 || !slices.Equal(got, want) {
				m.t.Fatalf("%s, %s: row %d chose %v, want %v", m.name, what, i, got, want)
			}
		}
		if x.Chosen(route, rows) != nil || x.Chosen(route, -1) != nil || x.Chosen(7, 0) != nil {
			m.t.Fatalf("%s, %s: experts of rows or routes that there are not", m.name, what)
		}
	}
}

// mixture is a feed-forward block of experts.
type mixture struct {
	rig
	Data                [][]byte
	p                   *kernels.Program
	x, logits, hidden   kernels.Buf
	n, used, dim, inner int
	alike               bool // all rows choose the same experts
}

// newMixture returns one with weights of two types, the second for what leads back.
func newMixture(r *rand.Rand, rows, n, used, dim, inner int, typ [2]kernels.Type, curve kernels.Curve, biased bool) *mixture {
	p := kernels.NewProgram(rows, 0)
	m := &mixture{p: p, x: p.Buf(dim), logits: p.Buf(n), hidden: p.Buf(dim), n: n, used: used, dim: dim, inner: inner}
	p.Routes = []kernels.RouteShape{{Experts: n, Used: used}}
	matrix := func(t kernels.Type, rows, cols int) (kernels.W, []float32) {
		w := weight(p, t, rows, cols)
		p.Weights[w].Experts = n
		m.Data = append(m.Data, RandomRows(r, t, n*rows, cols))
		if !biased {
			return w, nil
		}
		return w, RandomFloats(r, n*rows, false)
	}
	gate, up, apart, act, wide := p.Buf(used*inner), p.Buf(used*inner), p.Buf(used*dim), p.Act(dim), p.Act(used*inner)
	p.Stage("choice")
	p.Add(kernels.ChooseExperts{RouteOpt: kernels.RouteOpt{Normed: true}, Logits: m.logits})
	p.Feed(m.x, act)
	p.Stage("experts")
	w, bias := matrix(typ[0], inner, dim)
	p.Add(kernels.ExpertMatMul{W: w, In: act, Bias: bias, Out: gate, Concurrent: true})
	w, bias = matrix(typ[0], inner, dim)
	p.Add(kernels.ExpertMatMul{W: w, In: act, Bias: bias, Out: up})
	p.Add(kernels.Gate{Curve: curve, Gate: gate, Up: up, Out: wide})
	w, bias = matrix(typ[1], dim, inner)
	p.Add(kernels.ExpertMatMul{W: w, In: wide, Bias: bias, Out: apart})
	p.Add(kernels.JoinExperts{In: apart, Out: m.hidden, Add: true})
	return m
}

// alike returns a dimension that rows of a type can have, at least n.
func alike(t kernels.Type, n int) int {
	elems, _ := t.Block()
	return (n + elems - 1) / elems * elems
}

// experts: every type, in passes of every width, gives each row what the definitions give it.
func experts(t *testing.T, devices []kernels.Device) {
	types := kernels.Types()
	for i, typ := range types {
		s := struct {
			n, used, rows int
			typ           [2]kernels.Type
		}{5, 2, 9, [2]kernels.Type{typ, types[(i+1)%len(types)]}}
		if i%3 == 0 {
			s.n, s.used = 3, 3
		}
		t.Run(fmt.Sprint(typ), func(t *testing.T) {
			r := rng(uint64(i))
			m := newMixture(r, s.rows, s.n, s.used, alike(s.typ[0], 72), alike(s.typ[1], 40), s.typ, kernels.Curve(i%3), i%2 == 0)
			m.compare(t, r, devices, s.rows, 1, 2, 3, 5, 9)
		})
	}
}

// compare runs rows everywhere, by the definitions all at once, on the devices in passes of some widths.
func (m *mixture) compare(t *testing.T, r *rand.Rand, devices []kernels.Device, rows int, widths ...int) {
	m.rig = newRig(t, devices, m.p, m.Data, 0)
	x, logits, before := RandomFloats(r, rows*m.dim, false), RandomFloats(r, rows*m.n, false), RandomFloats(r, rows*m.dim, false)
	if m.alike {
		logits = slices.Repeat(logits[:m.n], rows)
	}
	run := func(on *machine, from, n int) []float32 {
		on.set(m.x, x[from*m.dim:][:n*m.dim])
		on.set(m.logits, logits[from*m.n:][:n*m.n])
		on.set(m.hidden, before[from*m.dim:][:n*m.dim])
		on.run(&kernels.Pass{Rows: n})
		return on.get(m.hidden, n)
	}
	want := run(m.rig[0], 0, rows)
	for _, on := range m.rig[1:] {
		for _, width := range widths {
			from := r.IntN(rows - width + 1)
			wantSame(t, fmt.Sprintf("%s, width %d", on.name, width), run(on, from, width), want[from*m.dim:][:width*m.dim])
		}
	}
	for _, on := range m.rig[1:] {
		run(on, 0, rows)
	}
	m.sameRoutes("experts", 0, rows)
}

// fixedRoute: every row uses all experts in order, each with an input of its own, or all with the same.
func fixedRoute(t *testing.T, devices []kernels.Device) {
	for i, typ := range []kernels.Type{kernels.F32, kernels.F16, kernels.Q8_0, kernels.Q4_K} {
		const n, rows, outputs = 3, 11, 40
		r, cols := rng(uint64(i)), alike(typ, 72)
		p := kernels.NewProgram(rows, 0)
		p.Routes = []kernels.RouteShape{{Experts: n, Used: n, Fixed: true}}
		w := weight(p, typ, outputs, cols)
		p.Weights[w].Experts = n
		apart, same, own, first := p.Buf(n*cols), p.Buf(cols), p.Act(n*cols), p.Act(cols)
		outs := []kernels.Buf{p.Buf(n * outputs), p.Buf(n * outputs)}
		p.Feed(apart, own)
		p.Feed(same, first)
		p.Add(kernels.ExpertMatMul{W: w, In: own, Out: outs[0], Concurrent: true})
		p.Add(kernels.ExpertMatMul{W: w, In: first, Out: outs[1]})
		m := newRig(t, devices, p, [][]byte{RandomRows(r, typ, n*outputs, cols)}, 0)
		x := RandomFloats(r, rows*n*cols, false)
		m.set(apart, x)
		m.set(same, x[:rows*cols])
		m.run(&kernels.Pass{Rows: rows})
		for i, out := range outs {
			m.same(fmt.Sprintf("%v, output %d", typ, i), out, rows)
		}
		m.sameRoutes("fixed", 0, rows)
		on := m[len(m)-1]
		want := on.get(outs[0], rows)
		on.set(apart, x[(rows-1)*n*cols:])
		on.run(&kernels.Pass{Rows: 1})
		wantSame(t, fmt.Sprintf("%v, last row alone", typ), on.get(outs[0], 1), want[(rows-1)*n*outputs:])
	}
}

// wideExperts: more rows chose an expert than a kernel takes at once.
func wideExperts(t *testing.T, devices []kernels.Device) {
	for _, typ := range []kernels.Type{kernels.Q4_0, kernels.Q4_K, kernels.F16, kernels.MXFP4} {
		r := rng(uint64(typ))
		m := newMixture(r, 75, 3, 2, alike(typ, 64), alike(typ, 32), [2]kernels.Type{typ, typ}, kernels.SiLU, false)
		m.alike = true
		m.compare(t, r, devices, 75, 75, 67)
	}
}

// expertsFromRing: of weights that come stage by stage, a pass asks for the experts that its rows chose.
func expertsFromRing(t *testing.T, devices []kernels.Device) {
	const rows = 3
	r := rng(5)
	m := newMixture(r, rows, 16, 2, 64, 32, [2]kernels.Type{kernels.Q8_0, kernels.Q4_0}, kernels.SiLU, true)
	m.rig = newRig(t, devices, m.p, m.Data, 0)
	m.set(m.x, RandomFloats(r, rows*m.dim, false))
	m.set(m.logits, RandomFloats(r, rows*m.n, false))
	zero := make([]float32, rows*m.dim)
	m.set(m.hidden, zero)
	m.run(&kernels.Pass{Rows: rows})
	var used []int32
	for i := range rows {
		used = append(used, m.rig[0].runner.(kernels.RouteReader).Chosen(0, i)...)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	want := m.rig[0].get(m.hidden, rows)
	for _, on := range m.rig {
		from := newRing(t, on, on.store)
		streamed, err := on.dev.Compile(on.p, from, nil)
		if errors.As(err, new(*kernels.Unsupported)) {
			t.Logf("%s takes no weights but its own: %v", on.name, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer streamed.Close()
		s := *on
		s.runner, s.macs = streamed, nil
		s.set(m.x, on.get(m.x, rows))
		s.set(m.logits, on.get(m.logits, rows))
		s.set(m.hidden, zero)
		s.run(&kernels.Pass{Rows: rows})
		wantSame(t, on.name+", streamed", s.get(m.hidden, rows), want)
		all := strings.Contains(on.name, "cuda") // it fetches whole stages
		if _, tells := streamed.(kernels.RouteReader); tells && !all && !slices.Equal(from.experts, used) {
			t.Errorf("%s: experts %v acquired, want %v", on.name, from.experts, used)
		}
	}
}
