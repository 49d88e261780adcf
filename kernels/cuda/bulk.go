package cuda

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// bulk is a runner whose memory the processor cannot see: what another device needs is packed on the GPU and copied at once.
type bulk struct{ *runner }

var _ kernels.BulkCopier = bulk{}

// cSpan is Span of src/abi.h: numbers that lie together, and where they lie packed.
type cSpan struct{ at, packed, n int64 }

const spanBytes = 24

// spans are the numbers of one copy.
type spans struct {
	all   []cSpan
	total int64
	most  int64 // of one span
}

// add appends n numbers; those that follow the last ones join them.
func (s *spans) add(at, n int) {
	if n == 0 {
		return
	}
	if last := len(s.all) - 1; last >= 0 && s.all[last].at+s.all[last].n == int64(at) {
		s.all[last].n += int64(n)
	} else {
		s.all = append(s.all, cSpan{int64(at), s.total, int64(n)})
	}
	s.total += int64(n)
	s.most = max(s.most, s.all[len(s.all)-1].n)
}

// columns returns the spans of a buffer's columns.
func (r bulk) columns(b kernels.Buf, n int, cols kernels.Range, packed []float32) (s spans, err error) {
	if r.closed {
		return s, errFreed
	}
	if b < 0 || int(b) >= len(r.program.Buffers) || n < 0 || n > r.program.most(r.program.Buffers[b].Wanted) || cols.From < 0 ||
		cols.From > cols.To || cols.To > r.program.Buffers[b].Dim {
		return s, fmt.Errorf("cuda: columns %d to %d of %d rows of buffer %d: there are none", cols.From, cols.To, n, b)
	}
	for i := range n {
		s.add(i*r.program.Buffers[b].Dim+cols.From, cols.To-cols.From)
	}
	return s, s.check(packed)
}

// partSpans returns the spans of parts.
func (r bulk) partSpans(p kernels.Parts, of []kernels.Range, packed []float32) (s spans, err error) {
	if r.closed {
		return s, errFreed
	}
	if p < 0 || int(p) >= len(r.parts) || len(of) > r.pass.rows {
		return s, fmt.Errorf("cuda: parts %d of %d rows: there are %d, and the pass has %d rows", p, len(of), len(r.parts), r.pass.rows)
	}
	shape := r.program.Parts[p]
	for row, x := range of {
		first, end := int(r.pass.first[row]), r.pass.npairs
		if row+1 < r.pass.rows {
			end = int(r.pass.first[row+1])
		}
		if x.From < 0 || x.From > x.To || x.To > (end-first)*shape.Heads {
			return s, fmt.Errorf("cuda: parts %d to %d of row %d, which has %d", x.From, x.To, row, (end-first)*shape.Heads)
		}
		s.add((first*shape.Heads+x.From)*(shape.Dim+2), (x.To-x.From)*(shape.Dim+2))
	}
	return s, s.check(packed)
}

func (s *spans) check(packed []float32) error {
	if int64(len(packed)) != s.total {
		return fmt.Errorf("cuda: %d numbers to copy, and place for %d", s.total, len(packed))
	}
	return nil
}

// ReadRows copies columns of a buffer.
func (r bulk) ReadRows(b kernels.Buf, n int, cols kernels.Range, dst []float32) error {
	s, err := r.columns(b, n, cols, dst)
	if err != nil {
		return err
	}
	return r.dev.do(func(g Driver) error {
		for _, i := range r.mirrors[b].lent { // the caller may have written to it
			if err := g.Write(r.row(b, i), view(r.mirrors[b].rows[i])); err != nil {
				return err
			}
		}
		return r.gather(g, r.row(b, 0), &s, dst)
	})
}

// WriteRows changes columns of a buffer.
func (r bulk) WriteRows(b kernels.Buf, n int, cols kernels.Range, src []float32) error {
	s, err := r.columns(b, n, cols, src)
	if err != nil {
		return err
	}
	if err := r.dev.do(func(g Driver) error { return r.scatter(g, r.row(b, 0), &s, src) }); err != nil {
		return err
	}
	for _, i := range r.mirrors[b].lent {
		if width := cols.To - cols.From; i < n {
			copy(r.mirrors[b].rows[i][cols.From:cols.To], src[i*width:])
		}
	}
	return nil
}

// row is where a row of a buffer lies.
func (r *runner) row(b kernels.Buf, i int) Pointer {
	return r.buffers.At + Pointer(r.program.bufs[b]+4*r.program.Buffers[b].Dim*i)
}

// ReadParts copies parts of the pass.
func (r bulk) ReadParts(p kernels.Parts, of []kernels.Range, dst []float32) error {
	s, err := r.partSpans(p, of, dst)
	if err != nil {
		return err
	}
	return r.dev.do(func(g Driver) error {
		if err := r.parts[p].upload(g); err != nil {
			return err
		}
		return r.gather(g, r.parts[p].mem.At, &s, dst)
	})
}

// WriteParts changes parts of the pass.
func (r bulk) WriteParts(p kernels.Parts, of []kernels.Range, src []float32) error {
	s, err := r.partSpans(p, of, src)
	if err != nil {
		return err
	}
	return r.dev.do(func(g Driver) error {
		if err := r.parts[p].upload(g); err != nil {
			return err
		}
		return r.scatter(g, r.parts[p].mem.At, &s, src)
	})
}

// gather reads numbers that lie behind an address: in one copy, after a kernel has packed them if they do not lie together.
func (r *runner) gather(g Driver, from Pointer, s *spans, dst []float32) error {
	if s.total == 0 {
		return nil
	}
	if len(s.all) == 1 {
		return g.Read(view(dst), from+Pointer(4*s.all[0].at))
	}
	head, err := r.handing(g, s)
	if err != nil {
		return err
	}
	packed := r.hand.At + Pointer(len(head))
	head = s.head(head, cOp{in: from, out: packed})
	if err := g.Write(r.hand.At, head); err != nil {
		return err
	}
	if err := g.Launch("pack", s.shape(), r.hand.At, 0); err != nil {
		return err
	}
	return g.Read(view(dst), packed)
}

// scatter writes numbers behind an address: in one copy, and a kernel puts them in their places if these are apart.
func (r *runner) scatter(g Driver, to Pointer, s *spans, src []float32) error {
	if s.total == 0 {
		return nil
	}
	if len(s.all) == 1 {
		return g.Write(to+Pointer(4*s.all[0].at), view(src))
	}
	head, err := r.handing(g, s)
	if err != nil {
		return err
	}
	n := len(head)
	head = append(s.head(head, cOp{in: r.hand.At + Pointer(n), out: to}), view(src)...)
	if err := g.Write(r.hand.At, head); err != nil {
		return err
	}
	return g.Launch("unpack", s.shape(), r.hand.At, 0)
}

// handing makes room for an operation, its spans and the packed numbers, and returns place for what stands before the numbers.
func (r *runner) handing(g Driver, s *spans) (head []byte, err error) {
	n := opBytes + round(spanBytes*len(s.all), 16)
	need := n + 4*int(s.total)
	if need > r.hand.Size {
		if r.hand.Size > 0 {
			if err := g.Release(r.hand); err != nil {
				return nil, err
			}
			r.hand = Memory{}
		}
		if r.hand, err = g.Alloc(need); err != nil {
			return nil, err
		}
	}
	r.packed = slices.Grow(r.packed[:0], need)
	return r.packed[:n], nil
}

// head fills in the operation and its spans.
func (s *spans) head(b []byte, o cOp) []byte {
	clear(b)
	copy(b, view([]cOp{o}))
	copy(b[opBytes:], view(s.all))
	return b
}

func (s *spans) shape() Shape {
	return grid((int(s.most)+threads-1)/threads, len(s.all), 1, threads, 0)
}
