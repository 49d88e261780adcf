package stream

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem/kernels"
)

// lookup is a matrix of which only single rows are read: an embedding. It has addresses for all of its bytes, and memory for those groups
// of rows that passes have asked for, up to a bound.
type lookup struct {
	w      kernels.W
	rows   int
	group  int64  // bytes of a group of kernels.GroupRows rows
	groups int    //
	cost   int64  // memory that a group takes, at most
	most   int64  // memory of all groups
	home   int64  // where the matrix lies in the packed file
	mem    []byte // nil: the matrix is resident
	phase  int64  // where it begins in mem, as in its first page of the file
	have   []bool // by group
	held   int64
}

// newLookup returns the rows of a matrix for passes of so many rows.
func newLookup(p *kernels.Program, w kernels.W) *lookup {
	m := &p.Weights[w]
	l := &lookup{w: w, rows: m.Rows, groups: (m.Rows + kernels.GroupRows - 1) / kernels.GroupRows}
	l.group = int64(m.Bytes() / l.groups)
	l.cost = pages(l.group) + page
	l.most = l.cost * int64(min(p.MaxRows, l.groups))
	l.have = make([]bool, l.groups)
	return l
}

// bytes returns the whole matrix; only rows that were asked for are there.
func (l *lookup) bytes() []byte { return l.mem[l.phase : l.phase+l.group*int64(l.groups)] }

// allocate reserves addresses.
func (l *lookup) allocate() (err error) {
	l.phase = l.home % page
	l.mem, err = allocate(pages(l.phase+l.group*int64(l.groups)), false)
	return err
}

// want makes the rows of tokens be there. If there is no memory for those that are missing, the others are given up.
func (l *lookup) want(tokens []int32, f feed, count *counters) error {
	need := map[int]bool{}
	for _, t := range tokens {
		if t >= 0 && int(t) < l.rows {
			need[int(t)/kernels.GroupRows] = true
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
				n, err := f.rows(l, missing[i], own)
				count.read.Add(n)
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
