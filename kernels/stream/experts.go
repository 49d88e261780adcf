package stream

import (
	"container/list"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

// mixture is the experts of one layer: an expert is its part of each weight whose products follow the same route.
type mixture struct {
	route   kernels.Route
	looks   []*lookup // in order of stage
	experts []expert
	used    int   // by a row
	most    int   // by a pass
	each    int64 // bytes of an expert
	cost    int64 // memory that one takes, at most
}

// expert is in memory, or being brought there, if place is not nil.
type expert struct {
	of     *mixture
	number int
	place  *list.Element // in experts.order
	left   int           // weights that are not there yet
	wanted bool
}

// task is to read an expert's part of one weight.
type task struct {
	of   *expert
	look *lookup
}

// experts are those in memory: the ones that passes used last, as many as there is memory for.
//
// The stage that acquires a mixture first asks for all weights of its experts, in order of use, so the later ones are read while the first
// ones compute. Which experts the next layer will want is known only when its router has run.
//
// Invariants:
//  1. held, the cost of the experts in order, is at most `most`.
//  2. What is given up is neither wanted by the mixture that was acquired last, nor being read.
type experts struct {
	most  int64
	all   []*mixture
	feed  feed
	count *counters

	used, missed, read atomic.Int64 // experts that passes used, that were not there, and the bytes read of them

	mu      sync.Mutex
	changed sync.Cond
	held    int64
	order   list.List // of *expert, the one that was used last in front
	queue   []task
	now     *mixture // that was acquired last
	wanted  []int32  // of now
	closed  bool
	err     error // of a reader; it stays
	readers sync.WaitGroup
}

// mixturesOf returns the mixtures of a divided program, whose weights get lookups of their own. Errors: *kernels.Unsupported.
func mixturesOf(p *kernels.Program) (all []*mixture, err error) {
	seen := map[kernels.W]bool{}
	for s := range p.StageCount() {
		from, to := p.StageOps(s)
		for _, o := range p.Ops[from:to] {
			o, ok := o.(kernels.ExpertMatMul)
			if !ok {
				continue
			}
			w := &p.Weights[o.W]
			if p.Routes[o.Route].Fixed {
				return nil, &kernels.Unsupported{Device: name, What: fmt.Sprintf("streaming of the matrices of heads (weight %q)", w.Name)}
			}
			if _, ok := p.StageRoute(s); !ok || seen[o.W] {
				return nil, &kernels.Unsupported{Device: name, What: fmt.Sprintf(
					"streaming of experts (weight %q) that their own stage chooses, or that two operations read", w.Name)}
			}
			seen[o.W] = true
			i := slices.IndexFunc(all, func(m *mixture) bool { return m.route == o.Route })
			if i < 0 {
				i = len(all)
				r := p.Routes[o.Route]
				m := &mixture{route: o.Route, experts: make([]expert, r.Experts), used: r.Used, most: min(r.Experts, p.MaxRows*r.Used)}
				for e := range m.experts {
					m.experts[e] = expert{of: m, number: e}
				}
				all = append(all, m)
			}
			m, l := all[i], newLookup(p, o.W)
			m.looks = append(m.looks, l)
			m.each, m.cost = m.each+l.group, m.cost+l.cost
		}
	}
	return all, nil
}

// sizes returns the least memory for experts, what all of them may take, and their bytes: all, and those that a row uses.
func (x *experts) sizes() (least, whole, bytes, row int64) {
	for _, m := range x.all {
		least = max(least, int64(m.most)*m.cost)
		whole += int64(len(m.experts)) * m.cost
		bytes += int64(len(m.experts)) * m.each
		row += int64(m.used) * m.each
	}
	return least, whole, bytes, row
}

// start starts the readers.
func (x *experts) start(f feed, count *counters) {
	x.feed, x.count = f, count
	x.changed.L = &x.mu
	for range f.readers() {
		x.readers.Go(x.serve)
	}
}

// serve reads what is asked for until the weights are closed or a read fails.
func (x *experts) serve() {
	own := new(scratch)
	defer own.free()
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		for !x.closed && x.err == nil && len(x.queue) == 0 {
			x.changed.Wait()
		}
		if x.closed || x.err != nil {
			return
		}
		next := x.queue[0]
		x.queue = x.queue[1:]
		x.mu.Unlock()
		x.count.begin()
		n, err := x.feed.rows(next.look, next.of.number, own)
		x.count.end(n)
		x.read.Add(n)
		x.mu.Lock()
		if err != nil && x.err == nil {
			x.err = err
		}
		next.look.have[next.of.number] = err == nil
		next.of.left--
		x.changed.Broadcast()
	}
}

// acquire waits until a weight of the experts that a pass has chosen is there, and asks for their other weights.
func (x *experts) acquire(m *mixture, l *lookup, chosen []int32) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now != m || l == m.looks[0] || !slices.Equal(x.wanted, chosen) {
		if err := x.want(m, chosen); err != nil {
			return err
		}
	}
	begun := time.Now()
	defer func() { x.count.waited.Add(int64(time.Since(begun))) }()
	for _, e := range chosen {
		for !l.have[e] {
			if err := x.wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits for a read to end.
func (x *experts) wait() error {
	switch {
	case x.err != nil:
		return x.err
	case x.closed:
		return errClosed
	}
	x.changed.Wait()
	return x.err
}

// want asks for experts of a mixture, in place of those that were wanted before.
func (x *experts) want(m *mixture, chosen []int32) error {
	if len(chosen) > m.most || len(chosen) > 0 && int(chosen[len(chosen)-1]) >= len(m.experts) {
		return fmt.Errorf("stream: %d experts, the last %d: want at most %d of %d", len(chosen), chosen[len(chosen)-1], m.most,
			len(m.experts))
	}
	if x.now != nil {
		for _, e := range x.wanted {
			x.now.experts[e].wanted = false
		}
	}
	x.now, x.wanted = m, append(x.wanted[:0], chosen...)
	var missing []*expert
	for _, n := range chosen {
		e := &m.experts[n]
		if e.wanted = true; e.place == nil {
			missing = append(missing, e)
		} else {
			x.order.MoveToFront(e.place)
		}
	}
	x.used.Add(int64(len(chosen)))
	x.missed.Add(int64(len(missing)))
	for _, e := range missing {
		for x.held+m.cost > x.most {
			if err := x.giveUp(); err != nil {
				return err
			}
		}
		x.held += m.cost
		e.place, e.left = x.order.PushFront(e), len(m.looks)
	}
	for _, l := range m.looks {
		for _, e := range missing {
			x.queue = append(x.queue, task{e, l})
		}
	}
	x.changed.Broadcast()
	return nil
}

// giveUp gives the memory of the expert back that was used longest ago, of those that may go. If there is none it waits for a read.
func (x *experts) giveUp() error {
	for at := x.order.Back(); at != nil; at = at.Prev() {
		e := at.Value.(*expert)
		if e.wanted || e.left > 0 {
			continue
		}
		x.order.Remove(at)
		e.place, x.held = nil, x.held-e.of.cost
		for _, l := range e.of.looks {
			l.have[e.number] = false
			from, to := e.of.alone(l, e.number)
			if from < to {
				if err := drop(l.mem[from:to]); err != nil {
					return fmt.Errorf("stream: the system does not take memory back: %w", err)
				}
			}
		}
		return nil
	}
	return x.wait()
}

// alone returns the pages of an expert's part of a weight that hold nothing of other experts in memory.
func (m *mixture) alone(l *lookup, number int) (from, to int64) {
	at := l.phase + l.group*int64(number)
	shared := func(start int64) bool {
		first, last := max(0, start-l.phase)/l.group, (start+page-1-l.phase)/l.group
		for e := first; e <= min(last, int64(len(m.experts)-1)); e++ {
			if int(e) != number && m.experts[e].place != nil {
				return true
			}
		}
		return false
	}
	from, to = at&^(page-1), pages(at+l.group)
	if shared(from) {
		from += page
	}
	if from < to && shared(to-page) {
		to -= page
	}
	return from, to
}

// close ends the readers.
func (x *experts) close() {
	if x.feed == nil {
		return
	}
	x.mu.Lock()
	x.closed = true
	x.changed.Broadcast()
	x.mu.Unlock()
	x.readers.Wait()
}
