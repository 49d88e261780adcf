package cuda

import (
	"slices"
	"strconv"

	"github.com/tandem-llm/tandem/kernels"
)

// launch is a kernel's work for one operation, or for several that do not depend on each other.
type launch struct {
	*item
	first, count int // operations, in the runner's list
}

// launches gathers neighbouring items that one launch can do.
func launches(items []item, first int) (all []launch) {
	for i := 0; i < len(items); {
		n := 1
		for i+n < len(items) && together(items[i:i+n], &items[i+n]) {
			n++
		}
		all = append(all, launch{&items[i], first + i, n})
		i += n
	}
	return all
}

// together reports whether next can be launched with the items before it: the same kernel, of the same shape, and none reads or writes what
// another one writes.
func together(before []item, next *item) bool {
	a := &before[0]
	switch next.form {
	case byRow, choosing, attending, joining, topChunks, topJoin, deltaIn, deltaWalk:
		return false
	}
	if a.kernel != next.kernel || a.c.wanted != next.c.wanted || a.c.cols != next.c.cols || len(next.writes) == 0 {
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
type extent struct{ rows, wanted, pairs, walks, steps int }

// up rounds an extent so that few graphs serve all passes.
func (e extent) up() extent {
	return extent{roundRows(e.rows), roundRows(e.wanted), roundPairs(e.pairs), roundRows(e.walks), roundRows(e.steps)}
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
	columns, heads := 0, 0
	for i := range items[:l.count] {
		o := &items[i].c
		columns, heads = max(columns, int(o.dim)), max(heads, int(o.heads))
	}
	blocks := (columns + threads - 1) / threads
	switch l.form {
	case byRow:
		return l.kernel, grid(1, rows, l.count, threads, fillShared), true
	case byHead:
		return l.kernel, grid(heads, rows, l.count, threads, fillShared), true
	case product:
		return l.product(rows, items)
	case choosing:
		return l.kernel, grid(1, rows, 1, threads, fillShared+4*int(c.dim)), true
	case expertProduct:
		return l.experts(rows, items)
	case storing:
		return l.kernel, grid(int(c.kvHeads), rows, l.count, round(int(c.headDim), 32), 0), true
	case attending:
		shared := block*8 + queries*block*4 + queries*8*4 + queries*int(c.headDim)*4 + block*4
		return l.kernel, grid(e.pairs, int(c.kvHeads), 1, block, shared), true
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

// experts has a block for each choice of a row in place of some rows.
func (l *launch) experts(rows int, items []item) (string, Shape, bool) {
	used, groups := 0, 0
	for i := range items[:l.count] {
		used, groups = max(used, int(items[i].c.used)), max(groups, (int(items[i].c.outputs)+group-1)/group)
	}
	warps := min(segments, (int(l.c.cols)+255)/256)
	return l.kernel, Shape{Grid: [3]int{groups, rows * used, l.count}, Block: [3]int{group, warps, 1}, Shared: 2 * warps * group * 4}, true
}

func (l *launch) product(rows int, items []item) (string, Shape, bool) {
	r, groups := tile(rows), 0
	for i := range items[:l.count] {
		o := &items[i].c
		groups = max(groups, (int(o.to)+group-1)/group-int(o.from)/group)
	}
	warps := min(segments, (int(l.c.cols)+255)/256)
	s := Shape{Grid: [3]int{groups, (rows + r - 1) / r, l.count}, Block: [3]int{group, warps, 1}, Shared: 2 * warps * r * group * 4}
	return l.kernel + strconv.Itoa(r), s, groups > 0
}
