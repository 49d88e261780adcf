package stream

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

const (
	// page is the alignment of extents in the file and in memory: that of O_DIRECT, and at least the system's page.
	page = 4096
	// leastSlots are those of the smallest ring: one stage is computed with while the next is read.
	leastSlots = 2
	// usualSlots are those of a ring for which there is memory: reading goes on while a stage is given back.
	usualSlots = 3
)

// pages rounds a size up to whole pages.
func pages(n int64) int64 { return (n + page - 1) &^ (page - 1) }

// extent is where a matrix lies in its stage's bytes, in the file as in memory.
type extent struct {
	w        kernels.W
	at, size int64
	groups   int  // of kernels.GroupRows rows, each with a checksum
	product  bool // a MatMul of the stage reads it
}

// stage is a stage of the divided program and its weights.
type stage struct {
	name    string
	weights []extent
	size    int64 // whole pages; 0: it has no weights of its own
	// looks lists the weights of which only single rows are read. They follow the others in StageWeights' order by place.
	looks []kernels.W
	// experts lists those of which only some experts are read: see experts.
	experts []kernels.W
}

// divided returns p with more stages, so that each has as few weights as its largest matrix allows, and which of its stages those of p
// begin with. Weights of which rows are looked up do not count, nor those that always stay. It has guesses of which experts are next.
func divided(p *kernels.Program) (q *kernels.Program, first []int) {
	p = foretold(p)
	fine, stays := *p, heldOf(p)
	fine.Stages = nil
	for s := range p.StageCount() {
		from, to := p.StageOps(s)
		first = append(first, len(fine.Stages))
		fine.Stages = append(fine.Stages, kernels.Stage{Name: p.StageName(s), First: from})
		most, held, seen := 0, 0, map[kernels.W]bool{}
		for _, o := range p.Ops[from:to] {
			if w, ok := product(p, o); ok && !stays[w] {
				most = max(most, p.Weights[w].Bytes())
			}
		}
		for i, o := range p.Ops[from:to] {
			w, ok := product(p, o)
			if !ok || seen[w] || stays[w] {
				continue
			}
			if n := p.Weights[w].Bytes(); held > 0 && held+n > most {
				fine.Stages = append(fine.Stages, kernels.Stage{Name: p.Weights[w].Name, First: from + i})
				held, seen = 0, map[kernels.W]bool{}
			}
			held, seen[w] = held+p.Weights[w].Bytes(), true
		}
	}
	return &fine, append(first, len(fine.Stages))
}

// product returns the weight of an operation that reads all of it.
func product(p *kernels.Program, o kernels.Op) (kernels.W, bool) {
	w := p.Uses(o).W
	_, look := o.(kernels.Embed)
	return w, w != kernels.None && !look
}

// stagesOf returns the stages of a divided program, and behind them one of the weights that two of them read, if there are any.
func stagesOf(p *kernels.Program) []stage {
	chosen := map[kernels.W]bool{} // weights of which rows choose experts
	for _, o := range p.Ops {
		if o, ok := o.(kernels.ExpertMatMul); ok && !p.Routes[o.Route].Fixed {
			chosen[o.W] = true
		}
	}
	stays, more := heldOf(p), stage{name: "the routers"}
	all := make([]stage, p.StageCount())
	for i := range all {
		s := &all[i]
		s.name = p.StageName(i)
		read, matmul := map[kernels.W]bool{}, map[kernels.W]bool{}
		from, to := p.StageOps(i)
		for _, o := range p.Ops[from:to] {
			if w, ok := product(p, o); ok {
				read[w] = true
				_, is := o.(kernels.MatMul)
				matmul[w] = matmul[w] || is
			}
		}
		for _, w := range p.StageWeights(i) {
			if chosen[w] {
				s.experts = append(s.experts, w)
				continue
			}
			if !read[w] {
				s.looks = append(s.looks, w)
				continue
			}
			if !stays[w] {
				s.add(w, p, matmul[w])
			} else if !slices.ContainsFunc(more.weights, func(e extent) bool { return e.w == w }) {
				more.add(w, p, false)
			}
		}
		s.size = pages(s.size)
	}
	if more.size = pages(more.size); more.size > 0 {
		all = append(all, more)
	}
	return all
}

func (s *stage) add(w kernels.W, p *kernels.Program, product bool) {
	m := &p.Weights[w]
	n := int64(m.Bytes())
	groups := max(1, m.Experts) * ((m.Rows + kernels.GroupRows - 1) / kernels.GroupRows)
	if m.Layout != kernels.Groups16 {
		groups = 1
	}
	s.weights = append(s.weights, extent{w, s.size, n, groups, product})
	s.size += (n + 63) &^ 63
}

// budget says what the memory for weights holds: which stages stay there, and how large the rest is.
type budget struct {
	resident []bool // by stage
	slots    int    // of the ring; 0: nothing is streamed
	slot     int64  // bytes of each
	held     int64  // bytes of resident stages
	streamed int64  // bytes that a pass reads
	looked   int64  // bytes for looked-up rows, at most
}

// bytes returns that memory.
func (p *budget) bytes() int64 { return p.held + int64(p.slots)*p.slot + p.looked }

// choose divides so many bytes of memory among stages of those sizes. Stages above some size are resident, so that the slots of the ring
// can be small; of the others as many as fit, spread evenly, so that reading never has to catch up. The ring has a third slot if it costs
// little beside what is resident. It returns what reads least. Errors: *kernels.TooSmall.
func choose(sizes []int64, looked, memory int64) (*budget, error) {
	limits := slices.Compact(append([]int64{0}, slices.Sorted(slices.Values(sizes))...))
	var best *budget
	least := int64(0)
	for _, limit := range limits {
		p := budgetOf(sizes, limit, leastSlots, looked)
		if n := p.bytes(); least == 0 || n < least {
			least = n
		}
		if p.bytes() > memory {
			continue
		}
		p.spread(sizes, memory)
		if more := budgetOf(sizes, limit, usualSlots, looked); p.slot > 0 && more.bytes() <= memory {
			if more.spread(sizes, memory); more.slot*6 <= more.held {
				p = more
			}
		}
		if best == nil || p.streamed < best.streamed {
			best = p
		}
	}
	if best == nil {
		return nil, &kernels.TooSmall{Bytes: memory, Least: least}
	}
	return best, nil
}

// budgetOf returns the budget with a ring of so many slots of that size. Stages that do not fit into a slot are resident.
func budgetOf(sizes []int64, slot int64, slots int, looked int64) *budget {
	p := &budget{resident: make([]bool, len(sizes)), slots: slots, slot: slot, looked: looked}
	for i, n := range sizes {
		if n > slot {
			p.keep(i, n)
		}
	}
	return p
}

// spread makes further stages resident, as evenly over the pass as their sizes allow.
func (p *budget) spread(sizes []int64, memory int64) {
	left, rest := memory-p.bytes(), int64(0)
	for i, n := range sizes {
		if !p.resident[i] {
			rest += n
		}
	}
	if left >= rest {
		left = rest
	}
	share, due := float64(left)/float64(max(rest, 1)), 0.0
	for i, n := range sizes {
		if p.resident[i] || n == 0 {
			continue
		}
		if due += share * float64(n); due >= float64(n)/2 && n <= left {
			p.keep(i, n)
			due, left = due-float64(n), left-n
		}
	}
	for i, n := range sizes {
		if !p.resident[i] && n > 0 && n <= left {
			p.keep(i, n)
			left -= n
		}
	}
	p.streamed = 0
	for i, n := range sizes {
		if !p.resident[i] {
			p.streamed += n
		}
	}
	if p.streamed == 0 {
		p.slots, p.slot = 0, 0
	}
}

func (p *budget) keep(i int, n int64) { p.resident[i], p.held = true, p.held+n }
