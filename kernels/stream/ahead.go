package stream

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// router is how a mixture chooses: from the norm of its input to the choice.
type router struct {
	norm    kernels.RMSNorm
	product kernels.MatMul
	bias    []kernels.AddBias
	choice  kernels.ChooseExperts
	known   bool // it is made of these operations alone
}

// routerAt returns the router whose choice is operation i of p.
func routerAt(p *kernels.Program, i int) (r router) {
	r.choice = p.Ops[i].(kernels.ChooseExperts)
	for i--; i >= 0; i-- {
		if p.Uses(p.Ops[i]).Writes != r.choice.Logits {
			continue
		}
		if b, ok := p.Ops[i].(kernels.AddBias); ok {
			r.bias = append([]kernels.AddBias{b}, r.bias...)
			continue
		}
		var ok bool
		if r.product, ok = p.Ops[i].(kernels.MatMul); !ok || r.product.Add || r.product.Side != kernels.Whole {
			return r
		}
		break
	}
	for i--; i >= 0; i-- {
		if p.Uses(p.Ops[i]).Fills == r.product.In {
			r.norm, r.known = p.Ops[i].(kernels.RMSNorm)
			return r
		}
	}
	return r
}

// foretold returns p with guesses: behind the choice of each mixture the router of the next one is run on the state that enters the
// feed-forward part here (A. Eliseev, D. Mazur, 2023: arXiv 2312.17238), and that of the first one behind the first stage, on what enters
// the layers. Nothing else reads what they choose.
func foretold(p *kernels.Program) *kernels.Program {
	q, last, at := *p, -1, map[int]router{} // by the operation behind which the next router runs
	first := slices.Concat(p.Stages, []kernels.Stage{{}, {}})[1].First
	for i, o := range p.Ops {
		if _, ok := o.(kernels.ChooseExperts); !ok {
			continue
		}
		r := routerAt(p, i)
		switch {
		case !r.known:
		case last >= 0 && r.norm.In == routerAt(p, last).norm.In:
			at[last] = r
		case last < 0 && slices.ContainsFunc(p.Ops[:first], func(o kernels.Op) bool { return p.Uses(o).Writes == r.norm.In }):
			at[first-1] = r
		}
		last = i
	}
	q.Ops, q.Stages = nil, slices.Clone(p.Stages)
	q.Buffers, q.Activations, q.Routes = slices.Clip(p.Buffers), slices.Clip(p.Activations), slices.Clip(p.Routes)
	in, logits := map[int]kernels.Act{}, map[int]kernels.Buf{} // by columns
	for i, o := range p.Ops {
		q.Ops = append(q.Ops, o)
		r, ok := at[i]
		if !ok {
			continue
		}
		shape := p.Routes[r.choice.Out]
		dim := p.Activations[r.product.In].Dim
		if _, ok := in[dim]; !ok {
			in[dim] = q.Act(dim)
		}
		if _, ok := logits[shape.Experts]; !ok {
			logits[shape.Experts] = q.Buf(shape.Experts)
		}
		r.norm.Out, r.product.In, r.product.Concurrent = in[dim], in[dim], false
		r.product.Out, r.choice.Logits, r.choice.Out = logits[shape.Experts], logits[shape.Experts], kernels.Route(len(q.Routes))
		q.Routes = append(q.Routes, shape)
		before := len(q.Ops)
		q.Ops = append(q.Ops, r.norm, r.product)
		for _, b := range r.bias {
			b.Buf = r.product.Out
			q.Ops = append(q.Ops, b)
		}
		q.Ops = append(q.Ops, r.choice)
		for s := range q.Stages {
			if p.Stages[s].First > i {
				q.Stages[s].First += len(q.Ops) - before
			}
		}
	}
	return &q
}

// guessesOf returns, by the operation that makes it, which route each guess of p is about.
func guessesOf(p *kernels.Program) map[int]kernels.Route {
	computed, of, guesses := map[kernels.Route]bool{}, map[kernels.W]kernels.Route{}, map[int]kernels.Route{}
	for _, o := range p.Ops {
		if o, ok := o.(kernels.ExpertMatMul); ok {
			computed[o.Route] = true
		}
	}
	for i, o := range p.Ops {
		if c, ok := o.(kernels.ChooseExperts); ok && computed[c.Out] {
			if r := routerAt(p, i); r.known {
				of[r.product.W] = c.Out
			}
		}
	}
	for i, o := range p.Ops {
		if c, ok := o.(kernels.ChooseExperts); ok && !computed[c.Out] {
			if route, ok := of[routerAt(p, i).product.W]; ok {
				guesses[i] = route
			}
		}
	}
	return guesses
}

// heldOf returns the weights of routers that two stages of p read. They stay in memory.
func heldOf(p *kernels.Program) map[kernels.W]bool {
	held := map[kernels.W]bool{}
	for i := range guessesOf(p) {
		held[routerAt(p, i).product.W] = true
	}
	return held
}
