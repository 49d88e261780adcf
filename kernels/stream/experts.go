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
	cost    int64 // memory that one takes
	class   *class
}

// expert is in memory, or being brought there, if it has a place.
type expert struct {
	of     *mixture
	number int
	place  *list.Element // in class.order; nil: none
	have   []bool        // by weight of the mixture
	left   int           // weights that are not there yet
	wanted bool
}

// place is memory for one expert: a region for each of its weights, of whole pages, as a direct read needs it.
type place struct {
	mem []byte
	of  *expert // nil: it is free
}

// class is the places for experts of one size, in order of use: the one that was used last in front.
type class struct {
	size  int64
	count int
	most  int // experts that a stage may want
	all   int // experts of this size
	order list.List
}

// task is to read an expert's part of one weight.
type task struct {
	of   *expert
	look int
}

// experts are those in memory: the ones that passes used last, as many as there are places. Places get their memory at the start and never
// give it back, so that neither reading nor computing has page faults, and they lie in huge pages where the system has some. To read into
// fresh pages took four to eight times as long.
//
// The stage that acquires a mixture first asks for all weights of its experts, in order of use, so the later ones are read while the first
// ones compute. Which experts the next layer will want is known only when its router has run.
//
// Invariants:
//  1. An expert lies in a place of its size, of which there are enough for every pass.
//  2. What is given up is neither wanted by the mixture that was acquired last, nor being read.
type experts struct {
	memory  int64 // of all places
	all     []*mixture
	classes []*class
	mem     []byte
	feed    feed
	count   *counters

	used, missed, read atomic.Int64 // experts that passes used, that were not there, and the bytes read of them

	mu      sync.Mutex
	changed sync.Cond
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
			if !ok || p.Routes[o.Route].Fixed { // every pass reads all of it
				continue
			}
			w := &p.Weights[o.W]
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
			l.at = m.cost
			m.looks = append(m.looks, l)
			m.each, m.cost = m.each+l.group, m.cost+l.cost
			for e := range m.experts {
				m.experts[e].have = append(m.experts[e].have, false)
			}
		}
	}
	return all, nil
}

// classify finds the sizes of all experts.
func (x *experts) classify() {
	for _, m := range x.all {
		i := slices.IndexFunc(x.classes, func(c *class) bool { return c.size == m.cost })
		if i < 0 {
			i = len(x.classes)
			x.classes = append(x.classes, &class{size: m.cost})
		}
		m.class = x.classes[i]
		m.class.most, m.class.all = max(m.class.most, m.most), m.class.all+len(m.experts)
	}
}

// sizes returns the least memory for experts, what all of them may take, and their bytes: all, and those that a row uses.
func (x *experts) sizes() (least, whole, bytes, row int64) {
	for _, c := range x.classes {
		least += int64(c.most) * c.size
		whole += int64(c.all) * c.size
	}
	for _, m := range x.all {
		bytes += int64(len(m.experts)) * m.each
		row += int64(m.used) * m.each
	}
	return least, whole, bytes, row
}

// divide divides so much memory into places: the least of each size, and of the rest the same share of each.
func (x *experts) divide(memory int64) {
	least, whole, _, _ := x.sizes()
	share := min(1, float64(memory-least)/float64(max(whole-least, 1)))
	for _, c := range x.classes {
		c.count = c.most + int(share*float64(c.all-c.most))
		x.memory += int64(c.count) * c.size
	}
}

// allocate reserves the memory of all places.
func (x *experts) allocate() (err error) {
	if x.mem, err = allocate(x.memory, true); err != nil {
		return err
	}
	at := int64(0)
	for _, c := range x.classes {
		for range c.count {
			c.order.PushBack(&place{mem: x.mem[at : at+c.size : at+c.size]})
			at += c.size
		}
	}
	return nil
}

// start starts the readers.
func (x *experts) start(f feed, count *counters) {
	x.feed, x.count = f, count
	x.changed.L = &x.mu
	for range f.readers() {
		x.readers.Go(x.serve)
	}
}

// region returns the memory of an expert's part of a weight; the part begins at l.phase(number) in it.
func (e *expert) region(l *lookup) []byte {
	return e.place.Value.(*place).mem[l.at : l.at+l.cost : l.at+l.cost]
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
		l := next.of.of.looks[next.look]
		region := next.of.region(l)
		x.mu.Unlock()
		x.count.begin()
		n, err := x.feed.expert(l, next.of.number, region, own)
		x.count.end(n)
		x.read.Add(n)
		x.mu.Lock()
		if err != nil && x.err == nil {
			x.err = err
		}
		next.of.have[next.look] = err == nil
		next.of.left--
		x.changed.Broadcast()
	}
}

// acquire waits until a weight of the experts that a pass has chosen is there, asks for their other weights, and adds where each lies to
// out.
func (x *experts) acquire(m *mixture, look int, chosen []int32, out [][]byte) ([][]byte, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now != m || look == 0 || !slices.Equal(x.wanted, chosen) {
		if err := x.want(m, chosen); err != nil {
			return nil, err
		}
	}
	begun := time.Now()
	defer func() { x.count.waited.Add(int64(time.Since(begun))) }()
	l := m.looks[look]
	for _, n := range chosen {
		e := &m.experts[n]
		for !e.have[look] {
			if err := x.wait(); err != nil {
				return nil, err
			}
		}
		at := l.phase(e.number)
		out = append(out, e.region(l)[at:at+l.group:at+l.group])
	}
	return out, nil
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
			m.class.order.MoveToFront(e.place)
		}
	}
	x.used.Add(int64(len(chosen)))
	x.missed.Add(int64(len(missing)))
	for _, e := range missing {
		if err := x.seat(e); err != nil {
			return err
		}
	}
	for i := range m.looks {
		for _, e := range missing {
			x.queue = append(x.queue, task{e, i})
		}
	}
	x.changed.Broadcast()
	return nil
}

// seat gives e the place that was used longest ago, of those that may be given up. If there is none it waits for a read.
func (x *experts) seat(e *expert) error {
	order := &e.of.class.order
	for {
		for at := order.Back(); at != nil; at = at.Prev() {
			p := at.Value.(*place)
			if p.of != nil && (p.of.wanted || p.of.left > 0) {
				continue
			}
			if p.of != nil {
				p.of.place = nil
			}
			p.of, e.place, e.left = e, at, len(e.have)
			clear(e.have)
			order.MoveToFront(at)
			return nil
		}
		if err := x.wait(); err != nil {
			return err
		}
	}
}

// close ends the readers.
func (x *experts) close() {
	if x.feed != nil {
		x.mu.Lock()
		x.closed = true
		x.changed.Broadcast()
		x.mu.Unlock()
		x.readers.Wait()
	}
	release(x.mem)
	x.mem, x.feed = nil, nil
}
