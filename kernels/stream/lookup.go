package stream

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem/kernels"
)

// lookup is a weight of which only some rows are read: an embedding, or a stack of experts. An embedding has addresses for all of its
// bytes, and memory for those groups of rows that passes have asked for, up to a bound. Experts lie in places of their own: see experts.
type lookup struct {
	w      kernels.W
	rows   int
	unit   int   // rows of a group: kernels.GroupRows, or those of an expert
	group  int64 // bytes of a group
	groups int
	cost   int64 // memory that a group takes, at most
	home   int64 // where the matrix lies in the packed file
	at     int64 // of experts: where their region begins in a place

	// Of an embedding:
	most   int64 // memory of all groups; 0: the matrix is resident
	mapped bool  // mem is its own
	mem    []byte
	begin  int64  // where it begins in mem, as in its first page of the file
	have   []bool // by group
	held   int64
}

// newLookup returns the rows of a weight for passes of so many rows.
func newLookup(p *kernels.Program, w kernels.W) *lookup {
	m := &p.Weights[w]
	l := &lookup{w: w, rows: m.AllRows(), unit: kernels.GroupRows, groups: m.Experts}
	if m.Experts > 0 {
		l.unit = m.Rows
	} else {
		l.groups = (m.Rows + l.unit - 1) / l.unit
	}
	l.group = int64(m.Bytes() / l.groups)
	if l.cost = pages(l.group); l.group%page != 0 {
		l.cost += page // it lies across pages
	}
	if m.Experts == 0 {
		l.most = l.cost * int64(min(p.MaxRows, l.groups))
	}
	l.have = make([]bool, l.groups)
	return l
}

// phase returns where a group begins in its first page of the packed file.
func (l *lookup) phase(group int) int64 { return (l.home + l.group*int64(group)) % page }

// bytes returns the whole matrix; only rows that were asked for are there.
func (l *lookup) bytes() []byte { return l.mem[l.begin : l.begin+l.group*int64(l.groups)] }

// allocate reserves addresses.
func (l *lookup) allocate() (err error) {
	l.begin = l.home % page
	l.mem, err = allocate(pages(l.begin+l.group*int64(l.groups)), false)
	l.mapped = err == nil
	return err
}

// want makes the rows of tokens be there. If there is no memory for those that are missing, the others are given up.
func (l *lookup) want(tokens []int32, f feed, count *counters) error {
	need := map[int]bool{}
	for _, t := range tokens {
		if t >= 0 && int(t) < l.rows {
			need[int(t)/l.unit] = true
		}
	}
	missing := l.missing(need)
	if len(missing) == 0 {
		return nil
	}
	if l.held+int64(len(missing))*l.cost > l.most {
		if err := drop(l.mem); err != nil {
			return err
		}
		clear(l.have)
		l.held = 0
		missing = l.missing(need)
	}
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for range min(f.readers(), len(missing)) {
		wg.Go(func() {
			own := new(scratch)
			defer own.free()
			for i := int(next.Add(1)) - 1; i < len(missing); i = int(next.Add(1)) - 1 {
				count.begin()
				n, err := f.rows(l, missing[i], own)
				count.end(n)
				if err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	if first != nil {
		return first
	}
	for _, g := range missing {
		l.have[g] = true
	}
	l.held += int64(len(missing)) * l.cost
	return nil
}

// missing returns the groups of need that are not there.
func (l *lookup) missing(need map[int]bool) (groups []int) {
	for g := range need {
		if !l.have[g] {
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	return groups
}

// lookUp makes the lookups of all looked-up matrices and returns their memory; total is what all weights take.
func (w *weights) lookUp(total *int64) (looked int64) {
	seen := map[kernels.W]*lookup{}
	for _, s := range w.stages {
		for _, k := range s.looks {
			if seen[k] == nil {
				seen[k] = newLookup(w.prog, k)
				w.looks = append(w.looks, seen[k])
				looked += seen[k].most
			}
		}
	}
	return looked
}

// rows makes the rows of tokens be there.
func (w *weights) rows(tokens []int32) error {
	for _, l := range w.looks {
		if l.most > 0 {
			if err := l.want(tokens, w.feed, &w.count); err != nil {
				return w.failed(err)
			}
		}
	}
	return nil
}

// Matrix implements kernels.RowStore.
func (w *weights) Matrix(k kernels.W) []byte {
	if l := w.embedding(k); l != nil && w.feed != nil {
		return l.bytes()
	}
	return nil
}

// Rows implements kernels.RowStore.
func (w *weights) Rows(k kernels.W, rows []int32) error {
	l := w.embedding(k)
	if l == nil || w.feed == nil {
		return fmt.Errorf("stream: rows of weight %d are not looked up", int(k))
	}
	if l.most == 0 {
		return nil // it is resident
	}
	return w.failed(l.want(rows, w.feed, &w.count))
}

// embedding returns the lookup of a matrix without experts, or nil.
func (w *weights) embedding(k kernels.W) *lookup {
	for _, l := range w.looks {
		if l.w == k && w.prog.Weights[k].Experts == 0 {
			return l
		}
	}
	return nil
}
