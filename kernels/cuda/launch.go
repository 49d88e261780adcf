package cuda

import (
	"slices"
	"strconv"

	"github.com/tandem-llm/tandem/kernels"
)

// launch is a kernel's work for one operation, or for several that do not depend on each other, with what follows on them as its tail.
type launch struct {
	*item
	first, count int  // operations, in the runner's list
	tails        int  // those behind them that their last blocks do
	chained      bool // the operation and its tails are one launch of the kernel chain
	meeting      int  // the operation of a meeting behind them, in the runner's list; 0: none
}

// launches gathers neighbouring items that one launch can do.
func launches(items []item, first int) (all []launch) {
	for i := 0; i < len(items); {
		if n := chain(items[i:], items[i].wanted()); n > 1 {
			items[i].c.tails = int32(n - 1)
			all = append(all, launch{item: &items[i], first: first + i, count: 1, tails: n - 1, chained: true})
		} else {
			for n = 1; i+n < len(items) && (together(items[i:i+n], &items[i+n]) || sooner(items[i:], n)); n++ {
			}
			all = append(all, launch{item: &items[i], first: first + i, count: n, tails: tail(items[i:], n)})
		}
		l := &all[len(all)-1]
		i += l.count + l.tails
		if i < len(items) && items[i].form == meeting && l.meets() {
			l.meeting = first + i
			for j := range l.count {
				items[l.first-first+j].c.flags = items[i].c.flags
			}
			i++
		}
	}
	return all
}

// tail returns how many items behind the first n can be their tail (src/tail.h), and says so to these. Halves of a pass in one memory have
// none behind divided products and blocks of attention: what follows reads what the other side writes, and a meeting lies between.
func tail(items []item, n int) (tails int) {
	x, next := &items[0], items[n:]
	spans, blocks := 0, 0
	switch {
	case len(next) == 0 || x.mapped && x.form == expertProduct:
		return 0
	case x.form == attending && x.parts == kernels.None:
		tails = 1 // its join
	case x.form != product && x.form != expertProduct || slices.ContainsFunc(items[:n], divided):
		return 0
	case fillsBehind(items[:n], next) > 0:
		tails, spans, blocks = fillsBehind(items[:n], next), (int(x.c.to)+threads-1)/threads, n
	default:
		tails = chain(next, x.c.wanted)
		for i := range items[:n] {
			blocks += (int(items[i].c.to) + group - 1) / group * max(1, int(items[i].c.used))
		}
	}
	for i := range items[:n] {
		items[i].c.tails, items[i].c.spans, items[i].c.share = int32(tails), int32(spans), int32(blocks)
	}
	return tails
}

// units is the most that launches count the blocks of: rows of an attention; tiles of a product's rows, or 256 columns of these; an
// expert's choices, or 256 columns of these.
func (l *placed) units() int {
	spans, experts := 1, 0
	for _, a := range l.Activations {
		spans = max(spans, (a.Dim+threads-1)/threads)
	}
	rows := max(l.MaxRows, l.MaxWanted)
	for _, o := range l.Ops {
		if o, ok := o.(kernels.ExpertMatMul); ok {
			experts = max(experts, rows*l.Routes[o.Route].Used*((l.Weights[o.W].Rows+threads-1)/threads))
		}
	}
	return max(rows, (rows/8+1)*spans, experts)
}

// divided reports whether a product fills a part of its buffer.
func divided(x item) bool {
	return x.c.side != 0 || x.c.from != 0 || x.c.to != x.c.dim/max(1, x.c.used)
}

// chain returns how many items, from the first on, can follow on each other row by row, for wanted rows or for all.
func chain(items []item, wanted int32) (n int) {
	for n < len(items) && items[n].byRows() && items[n].wanted() == wanted {
		n++
	}
	return n
}

// fillsBehind returns how many of next fill an activation with what the products compute, column by column: biases of these, and the fill.
func fillsBehind(products, next []item) (n int) {
	of := func(b kernels.Buf) bool {
		return slices.ContainsFunc(products, func(p item) bool { return p.writes[0] == b })
	}
	for n < len(next) && next[n].c.kind == rowsBias && products[0].form == product && of(next[n].writes[0]) {
		n++
	}
	if n == len(next) || next[n].form != gating || len(next[n].reads) != len(products) {
		return 0
	}
	x := &next[n]
	for i := range products {
		p := &products[i]
		whole := p.form == product || (x.c.dst.q == 0 || p.c.to%32 == 0) && (x.c.dst.q256 == 0 || p.c.to%256 == 0)
		if x.wanted() != p.c.wanted || p.c.dim != x.c.dim || p.c.src == x.c.dst || !whole || !slices.Contains(x.reads, p.writes[0]) {
			return 0
		}
	}
	return n + 1
}

// widest is how many columns a tail takes that follows row by row where a launch of its own would have a block for 256 of them.
const widest = 8192

// byRows reports whether follow of src/tail.h does the item.
func (x *item) byRows() bool {
	switch x.form {
	case byRow, byHead, turning, storing:
		return true
	}
	return x.c.kind != 0 && x.c.dim <= widest
}

// wanted tells whether an item is on the wanted rows alone.
func (x *item) wanted() int32 { return max(x.c.wanted, x.c.dst.wanted) }

// sooner moves a product before the operations by row that follow on the first n items, if it can be launched with these and needs nothing
// of those; it reports whether there was one.
func sooner(items []item, n int) bool {
	if items[0].form != product || fillsBehind(items[:n], items[n:]) > 0 {
		return false
	}
	m := n + chain(items[n:], items[0].wanted())
	if m == n || m == len(items) || !together(items[:n], &items[m]) {
		return false
	}
	x := items[m]
	for i := range items[n:m] {
		b := &items[n+i]
		mine := func(b kernels.Buf) bool { return slices.Contains(x.writes, b) }
		needed := func(b kernels.Buf) bool { return mine(b) || slices.Contains(x.reads, b) }
		if b.c.dst == x.c.src || slices.ContainsFunc(b.writes, needed) || slices.ContainsFunc(b.reads, mine) {
			return false
		}
	}
	copy(items[n+1:m+1], items[n:m])
	items[n] = x
	return true
}

// together reports whether next can be launched with the items before it: the same kernel, of the same shape, and none reads or writes what
// another one writes.
func together(before []item, next *item) bool {
	a := &before[0]
	switch next.form {
	case byRow, gating, attending, joining, topChunks, topJoin, deltaIn, deltaWalk:
		return false
	}
	if a.kernel != next.kernel || a.form != next.form || a.c.wanted != next.c.wanted || a.c.cols != next.c.cols || len(next.writes) == 0 {
		return false
	}
	for i := range before {
		b := &before[i]
		for _, w := range next.writes {
			if slices.Contains(b.reads, w) || slices.Contains(b.writes, w) {
				return false
			}
		}
		if slices.ContainsFunc(next.reads, func(r kernels.Buf) bool { return slices.Contains(b.writes, r) }) {
			return false
		}
	}
	return true
}

// extent is how large a pass is, as far as launches depend on it. Kernels do nothing for rows, pairs and so on that a pass does not have,
// so that one graph serves all passes up to its extent.
type extent struct{ rows, wanted, pairs, walks, steps, each, enters int }

// up rounds an extent so that few graphs serve all passes.
func (e extent) up() extent {
	return extent{roundRows(e.rows), roundRows(e.wanted), roundPairs(e.pairs), roundRows(e.walks), roundRows(e.steps), e.each,
		roundRows(e.enters)}
}

func roundRows(n int) int {
	for _, most := range []int{0, 1, 2, 4} {
		if n <= most {
			return most
		}
	}
	return round(n, 8)
}

func roundPairs(n int) int {
	step := 4
	for step*8 < n {
		step *= 2
	}
	return round(n, step)
}

// tile returns how many rows a thread of a product takes.
func tile(rows int) int {
	for _, n := range []int{1, 2, 4} {
		if rows <= n {
			return n
		}
	}
	return 8
}

func grid(x, y, z, threads, shared int) Shape {
	return Shape{Grid: [3]int{x, y, z}, Block: [3]int{threads, 1, 1}, Shared: shared}
}

const fillShared = 64 // bytes that fills and norms share

// shape returns the kernel's name and shape; ok is false if there is nothing to do.
func (l *launch) shape(e extent, items []item) (kernel string, s Shape, ok bool) {
	rows := e.rows
	if l.c.wanted != 0 {
		rows = e.wanted
	}
	if rows == 0 || (l.form == attending && e.pairs == 0) {
		return "", s, false
	}
	c := &l.c
	columns := 0
	for i := range items[:l.count] {
		columns = max(columns, int(items[i].c.dim))
	}
	if l.chained {
		return "chain", grid(1, rows, 1, threads, fillShared), true
	}
	blocks := (columns + threads - 1) / threads
	switch l.form {
	case byRow, byHead:
		return l.kernel, grid(1, rows, l.count, threads, fillShared), true
	case turning:
		return l.kernel, grid((columns/2+threads-1)/threads, rows, l.count, threads, 0), true
	case product:
		return l.product(rows, items)
	case meeting:
		return l.kernel, grid(1, 1, 1, 1, 0), true
	case expertProduct:
		return l.experts(rows, items)
	case storing:
		return l.kernel, grid((int(c.kvHeads)*round(int(c.headDim), 32)+threads-1)/threads, rows, l.count, threads, 0), true
	case attending:
		shared := block*8 + queries*block*4 + queries*8*4 + queries*int(c.headDim)*4 + block*4
		return l.kernel, grid((e.pairs+e.each-1)/e.each, int(c.kvHeads), 1, block, shared), true
	case joining:
		return l.kernel, grid((int(c.dst.dim)+threads-1)/threads, rows, 1, threads, fillShared), true
	case topChunks:
		return l.kernel, grid(int(c.chunks), rows, 1, threads, fillShared), true
	case deltaIn:
		return l.kernel, grid(e.steps, int(c.delta.keyHeads), 1, threads, 8*int(c.delta.taps)+4*(2*int(c.delta.dim)+2)), true
	case deltaWalk:
		s := grid(e.walks*int(c.delta.valueHeads)*deltaGroups(int(c.delta.dim)), 1, 1, deltaColumns, 0)
		s.Block[1] = deltaSegments(int(c.delta.dim))
		s.Shared = 2 * 2 * 4 * s.Block[1] * deltaColumns
		return l.kernel, s, true
	case topJoin:
		return l.kernel, grid(1, rows, 1, threads, fillShared+4*topChunk), true
	}
	return l.kernel, grid(blocks, rows, l.count, threads, fillShared), true
}

// experts has a block for each choice of a row, where a product has one for a tile of rows. With several rows the first choice of an expert
// does all of them.
func (l *launch) experts(rows int, items []item) (string, Shape, bool) {
	used, groups, r := 0, 0, 1
	for i := range items[:l.count] {
		used, groups = max(used, int(items[i].c.used)), max(groups, (int(items[i].c.outputs)+group-1)/group)
	}
	if rows > 1 {
		r = 4
	}
	kernel, s := l.multiply(r, Shape{Grid: [3]int{rows * used, l.count, groups}}, rows)
	return kernel, s, true
}

// multiply names the kernel for tiles of r rows, and says how many threads its blocks have.
func (l *launch) multiply(r int, s Shape, rows int) (string, Shape) {
	all := (int(l.c.cols) + 255) / 256
	warps := min(segments, all)
	if l.tails > 0 {
		warps = threads / group
	}
	s.Shared = 2 * warps * r * group * 4
	if r == 1 && l.lanes {
		warps = 8
		s.Shared = lanesAtOnce * (256*16 + group*4)
	}
	s.Block = [3]int{group, warps, 1}
	if l.mapped {
		return l.multiplyMany(l.kernel+strconv.Itoa(r), s, rows)
	}
	return l.kernel + strconv.Itoa(r), s
}

func (l *launch) product(rows int, items []item) (string, Shape, bool) {
	r, groups := tile(rows), 0
	for i := range items[:l.count] {
		o := &items[i].c
		groups = max(groups, (int(o.to)+group-1)/group-int(o.from)/group)
	}
	kernel, s := l.multiply(r, Shape{Grid: [3]int{(rows + r - 1) / r, l.count, groups}}, rows)
	return kernel, s, groups > 0
}
