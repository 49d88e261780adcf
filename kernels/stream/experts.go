package stream

import (
	"fmt"
	"math"
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
	at      int // in order of the program
	passes  int
	seated  int // experts that have a place
	guesses
}

// expert is in memory, or being brought there, if it has a place.
type expert struct {
	of      *mixture
	number  int
	place   *place  // nil: none
	parts   []piece // by weight of the mixture
	coming  int     // parts that are being read
	wanted  bool    // by the mixture that was acquired last
	guessed bool    // that the next choice of its mixture has it
	fresh   bool    // read because of a guess, and not used since
	heat    float64 // uses, of which each counts half as much after halfLife passes, up to pass `at` of the mixture
	at      int
}

// piece is how far a part of an expert is.
type piece uint8

const (
	absent piece = iota
	asked
	coming
	there
)

// place is memory for one expert: a region for each of its weights, of whole pages, as a direct read needs it.
type place struct {
	mem []byte
	of  *expert // nil: it is free
}

// class is the places for experts of one size.
type class struct {
	size   int64
	count  int
	most   int // experts that a stage may want
	all    int // experts of this size
	places []*place
}

// task is to read an expert's part of one weight, unless it is no longer asked for.
type task struct {
	of   *expert
	look int
}

// experts are those in memory: the ones that passes used most and last, as many as there are places. Places get their memory at the start
// and never give it back, so that neither reading nor computing has page faults, and they lie in huge pages where the system has some. To
// read into fresh pages took four to eight times as long.
//
// The stage that acquires a mixture first asks for all weights of its experts, in order of use, so the later ones are read while the first
// ones compute. Which experts the next layer will want is guessed (guess.go). What a pass wants overtakes what is guessed, and waits for at
// most guessReads blocks.
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
	read    atomic.Int64 // bytes
	foresight

	mu      sync.Mutex
	changed sync.Cond // a read has ended
	asking  sync.Cond // there is something to read
	queue   []task    // that a pass waits for
	now     *mixture  // that was acquired last
	wanted  []int32   // of now
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
				m := &mixture{route: o.Route, at: i, experts: make([]expert, r.Experts), used: r.Used,
					most: min(r.Experts, p.MaxRows*r.Used)}
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
				m.experts[e].parts = append(m.experts[e].parts, absent)
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
			c.places = append(c.places, &place{mem: x.mem[at : at+c.size : at+c.size]})
			at += c.size
		}
	}
	return nil
}

// start starts the readers.
func (x *experts) start(f feed, count *counters) {
	x.feed, x.count = f, count
	x.changed.L, x.asking.L = &x.mu, &x.mu
	for range f.readers() {
		x.readers.Go(x.serve)
	}
}

// region returns the memory of an expert's part of a weight; the part begins at l.phase(number) in it.
func (e *expert) region(l *lookup) []byte { return e.place.mem[l.at : l.at+l.cost : l.at+l.cost] }

// whole reports whether all parts of an expert are there.
func (e *expert) whole() bool {
	return !slices.ContainsFunc(e.parts, func(p piece) bool { return p != there })
}

// halfLife is after how many passes a use counts half. On recorded choices of a mixture with room for 30, 50 and 70 % of its experts 32 and
// 64 read 0.78, 0.76 and 0.9 of what is read by last use alone; 8 and 256 read more (docs/measurements/experts.md).
const halfLife = 64

// worth returns the uses of an expert, of which older ones count less, and those of a layer that is foretold up to half as much: to read
// such an expert may cost no time.
func (e *expert) worth() float64 { return e.uses() * (1 - e.of.ahead.mean/2) }

func (e *expert) uses() float64 { return e.heat * faded[min(e.of.passes-e.at, len(faded)-1)] }

// faded is what a use counts after so many passes.
var faded = func() (f [16 * halfLife]float64) {
	for i := range f {
		f[i] = math.Exp2(-float64(i) / halfLife)
	}
	return f
}()

// next returns what to read next, if there is anything: first what is waited for. guess: it is only guessed.
func (x *experts) next() (t task, guess, ok bool) {
	for _, q := range []*[]task{&x.queue, &x.guessed} {
		for len(*q) > 0 && (q == &x.queue || x.flying < guessReads) {
			t = (*q)[0]
			if *q = (*q)[1:]; t.of.place != nil && t.of.parts[t.look] == asked {
				return t, q == &x.guessed, true
			}
		}
	}
	return t, false, false
}

// serve reads what is asked for until the weights are closed or a read fails.
func (x *experts) serve() {
	own := new(scratch)
	defer own.free()
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		t, guess, ok := x.next()
		for !x.closed && x.err == nil && !ok {
			x.asking.Wait()
			t, guess, ok = x.next()
		}
		if x.closed || x.err != nil {
			return
		}
		e, l := t.of, t.of.of.looks[t.look]
		e.parts[t.look] = coming
		e.coming++
		if guess {
			x.flies(e)
		}
		region := e.region(l)
		x.mu.Unlock()
		x.count.begin()
		n, err := x.feed.expert(l, e.number, region, own)
		x.count.end(n)
		x.read.Add(n)
		x.mu.Lock()
		e.coming--
		if e.parts[t.look] = there; err != nil {
			e.parts[t.look] = absent
		}
		if guess {
			x.flying--
		}
		switch {
		case err == nil:
		case guess && !e.wanted: // who needs it reads it again
			e.fresh = false
			x.blind()
		case x.err == nil:
			x.err = err
			x.asking.Broadcast()
		}
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
		for e.parts[look] != there {
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
	m.passes++
	var missing []*expert
	for _, n := range chosen {
		e := &m.experts[n]
		e.wanted, e.heat, e.at = true, e.uses()+1, m.passes
		if !e.whole() {
			missing = append(missing, e)
		}
	}
	x.settle(m, chosen)
	for _, e := range missing {
		for e.place == nil {
			if !x.seat(e, math.Inf(1)) {
				if err := x.wait(); err != nil {
					return err
				}
			}
		}
	}
	for i := range m.looks {
		for _, e := range missing {
			if e.parts[i] <= asked {
				e.parts[i] = asked
				x.queue = append(x.queue, task{e, i})
			}
		}
	}
	x.asking.Broadcast()
	return nil
}

// seat gives e a free place, or that of the expert that is worth least, if that is less than `above`; of several one of the layer that has
// most, so that no part of a pass reads much more than another. What is guessed goes last, and what is wanted or being read does not.
// false: there is no such place now.
func (x *experts) seat(e *expert, above float64) bool {
	var best *place
	least, last := 0.0, false
	for _, p := range e.of.class.places {
		if p.of == nil {
			best = p
			break
		}
		if p.of.wanted || p.of.coming > 0 || p.of.guessed && !math.IsInf(above, 1) {
			continue
		}
		w := p.of.worth()
		if w < above && (best == nil || last && !p.of.guessed || last == p.of.guessed &&
			(w < least || w == least && p.of.of.seated > best.of.of.seated)) {
			best, least, last = p, w, p.of.guessed
		}
	}
	if best == nil {
		return false
	}
	if best.of != nil {
		best.of.leave()
	}
	best.of, e.place = e, best
	e.of.seated++
	return true
}

// leave gives the place of an expert up.
func (e *expert) leave() {
	clear(e.parts)
	e.of.seated--
	e.place.of, e.place, e.fresh, e.guessed = nil, nil, false, false
}

// close ends the readers.
func (x *experts) close() {
	if x.feed != nil {
		x.mu.Lock()
		x.closed = true
		x.changed.Broadcast()
		x.asking.Broadcast()
		x.mu.Unlock()
		x.readers.Wait()
	}
	release(x.mem)
	x.mem, x.feed = nil, nil
}
