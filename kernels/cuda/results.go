package cuda

import (
	"github.com/tandem-llm/tandem/kernels"
)

// mirror is what the caller has seen of a buffer that the processor cannot read itself: rows copied on demand, which go back
// before a stage that reads them, since the caller may have written to them.
type mirror struct {
	rows  [][]float32
	fresh []bool // rows that were copied since the last stage or pass
	lent  []int
	given []bool // rows that come with the next pass
}

// Row returns row i of a buffer: the row itself where the processor sees the GPU's memory, otherwise a copy.
func (r *runner) Row(b kernels.Buf, i int) []float32 {
	if !r.has(b, i) {
		return nil
	}
	dim := r.program.Buffers[b].Dim
	at := r.program.bufs[b] + 4*dim*i
	if r.buffers.Host != nil {
		return as[float32](r.buffers.Host[at:][: 4*dim : 4*dim])
	}
	m := r.mirror(b, i)
	if !m.fresh[i] {
		// An error means that the device is lost, which the next pass tells.
		_ = r.dev.do(func(g Driver) error { return g.Read(view(m.rows[i]), r.row(b, i)) })
		m.fresh[i] = true
		m.lent = append(m.lent, i)
	}
	return m.rows[i]
}

// has reports whether a buffer has a row i.
func (r *runner) has(b kernels.Buf, i int) bool {
	return !r.closed && b >= 0 && int(b) < len(r.program.Buffers) && i >= 0 && i < r.program.most(r.program.Buffers[b].Wanted)
}

// mirror returns the mirror of a buffer with room for row i.
func (r *runner) mirror(b kernels.Buf, i int) *mirror {
	m, of := &r.mirrors[b], r.program.Buffers[b]
	if m.rows == nil {
		m.rows, m.given = make([][]float32, r.program.most(of.Wanted)), make([]bool, r.program.most(of.Wanted))
	}
	if m.fresh == nil {
		m.fresh = make([]bool, len(m.rows))
	}
	if m.rows[i] == nil {
		m.rows[i] = make([]float32, of.Dim)
	}
	return m
}

// upload brings rows that the caller may have written to, of buffers that are read before they are filled.
func (r *runner) upload(g Driver, reads []bool) error {
	for b := range r.mirrors {
		m := &r.mirrors[b]
		for _, i := range m.lent {
			if !reads[b] {
				break
			}
			if err := g.Write(r.row(kernels.Buf(b), i), view(m.rows[i])); err != nil {
				return err
			}
		}
		m.lent, m.fresh = m.lent[:0], nil
	}
	for i := range r.parts {
		if err := r.parts[i].upload(g); err != nil {
			return err
		}
	}
	return nil
}

// readResults copies the results of so many wanted rows, and has then waited for the pass.
func (r *runner) readResults(g Driver, wanted, stride int, at Pointer) error {
	r.tops, r.stride, r.found = make([]int32, stride*wanted), stride, wanted
	return g.Read(view(r.tops), at)
}

// Top returns what TopK found in wanted row i.
func (r *runner) Top(i int) kernels.Top {
	if r.closed || i < 0 || i >= r.found {
		return kernels.Top{}
	}
	ids := r.tops[i*r.stride:][:topRow]
	vals := as[float32](view(ids[kernels.MaxTop:]))
	return kernels.Top{IDs: ids[:r.pass.topk], Logits: vals[:r.pass.topk], Max: vals[kernels.MaxTop], Sum: vals[kernels.MaxTop+1]}
}

// partMemory holds the blocks of a divided attention of this pass: for each pair and query head o, m and Σ.
type partMemory struct {
	mem   Memory
	size  int // of this pass, in bytes
	host  []float32
	lent  bool
	fresh bool
}

// growParts makes room for the parts of the pass.
func (r *runner) growParts(g Driver) error {
	grown := false
	for i, s := range r.program.Parts {
		p := &r.parts[i]
		p.size, p.fresh, p.lent = 4*r.pass.npairs*s.Heads*(s.Dim+2), false, false
		if r.program.shared {
			p.size = r.tiledBytes(kernels.Parts(i))
		}
		if p.size <= p.mem.Size {
			continue
		}
		if p.mem.Size > 0 {
			if err := g.Release(p.mem); err != nil {
				return err
			}
			p.mem = Memory{}
		}
		var err error
		alloc := g.Alloc
		if r.program.shared {
			alloc = g.AllocShared
		}
		if p.mem, err = alloc(2 * p.size); err != nil {
			return err
		}
		grown = true
		for j := range r.items {
			if r.items[j].parts == kernels.Parts(i) {
				r.items[j].c.parts = p.mem.At
			}
		}
	}
	if !grown {
		return nil
	}
	return r.writeOps(g)
}

// Part points to the result of a block.
func (r *runner) Part(p kernels.Parts, row, block, head int) kernels.Part {
	if r.closed || p < 0 || int(p) >= len(r.parts) || head < 0 || head >= r.program.Parts[p].Heads || row < 0 || row >= r.pass.rows ||
		block < 0 {
		return kernels.Part{}
	}
	m, s := &r.parts[p], r.program.Parts[p]
	pair, end := int(r.pass.first[row])+block, r.pass.npairs
	if row+1 < r.pass.rows {
		end = int(r.pass.first[row+1])
	}
	if pair >= end || m.size == 0 {
		return kernels.Part{}
	}
	if !m.fresh {
		m.host = make([]float32, m.size/4)
		// An error means that the device is lost, which the next pass tells.
		_ = r.dev.do(func(g Driver) error { return g.Read(view(m.host), m.mem.At) })
		m.fresh, m.lent = true, true
	}
	x := m.host[(pair*s.Heads+head)*(s.Dim+2):][:s.Dim+2]
	return kernels.Part{Max: &x[s.Dim], Sum: &x[s.Dim+1], O: x[:s.Dim:s.Dim]}
}

// upload brings back parts that the caller may have written to.
func (p *partMemory) upload(g Driver) error {
	p.fresh = false
	if !p.lent {
		return nil
	}
	p.lent = false
	return g.Write(p.mem.At, view(p.host))
}
