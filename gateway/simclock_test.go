package gateway

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/learn"
)

// sim is clients, gateways, drafters, verifiers and the network between them, under a virtual clock. One goroutine delivers its events in
// the order of their times, so a seed and a list of faults determine the run to the last event. Of a gateway, rounds, losses, texts and
// mailboxes are the product's own (packages round and gateway); simSession carries out what they decide, as session does with goroutines.
//
// The rules that hold after every step:
//
//  1. Committed tokens are those of the truth, which is a function of the verifier's identity, the request's seed and the text before.
//  2. A session commits at most one verdict for an epoch and base, and that answers its question.
//  3. A session that has not ended has a timer that will move it, whatever becomes of its messages.
//  4. A round puts at most three tickets for one verifier. What comes after its end changes nothing.
//
// And in the end: every request has ended, at most bound after the last fault, with its whole text or with an error that the faults
// explain, and no peer holds a session.
type sim struct {
	rng     *rand.Rand
	now     time.Duration
	events  []simEvent // a heap
	ordinal uint64
	steps   int
	digest  uint64
	last    [400]simEvent // a ring of the latest
	failure string

	active    []simFault
	horizon   time.Duration // after it there is no fault, and clients ask nothing
	bound     time.Duration // how long after it a request may live
	world     *simNode      // of the faults themselves
	gateways  []*simGateway
	verifiers []*simVerifier
	drafters  []*simDrafter
	clients   []*simClient
	nodes     []*simNode
	links     []simLink // from node to node
	calls     []*simCall
	weights   *learn.Weights
	ids       tandem.SessionID
	planted   string                 // a bug that the simulation must find
	allowed   func(tandem.Kind) bool // whether a request may end so; nil: however
	whole     int                    // requests that got all of their text
	failed    map[tandem.Kind]int
	commits   int
	reached   map[string]int // what rounds wanted to be done and counted
}

// simNode is a process.
type simNode struct {
	number, instance int
	name             string
	down             bool
	stopped          time.Duration // nothing happens in it before that time
}

// simLink is one direction between two processes.
type simLink struct {
	cut          bool
	lose, double float64       // of the tickets and verdicts
	delay        time.Duration // at most, drawn for each message, so that they overtake each other
}

// simEvent happens in a process, unless that has died meanwhile.
type simEvent struct {
	at       time.Duration
	ordinal  uint64
	in       *simNode
	instance int
	what     string
	who      tandem.SessionID
	do       func()
	call     *simCall    // whose deadline it is; nothing happens if it is over
	of       *simSession // whose timer it is; nothing happens if its state is another by now
	life     int
}

// void reports whether the event is one that nobody waits for any more: that is no step.
func (e *simEvent) void() bool {
	return e.in.instance != e.instance || e.call != nil && e.call.over || e.of != nil && e.of.life != e.life
}

func (e *simEvent) before(f *simEvent) bool {
	return e.at < f.at || e.at == f.at && e.ordinal < f.ordinal
}

// after has f happen in a process after a time.
func (w *sim) after(d time.Duration, in *simNode, what string, who tandem.SessionID, f func()) {
	w.add(d, simEvent{in: in, what: what, who: who, do: f})
}

func (w *sim) add(d time.Duration, e simEvent) {
	w.ordinal++
	e.at, e.ordinal, e.instance = w.now+max(d, 0), w.ordinal, e.in.instance
	w.push(e)
}

func (w *sim) push(e simEvent) {
	w.events = append(w.events, e)
	for i := len(w.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !w.events[i].before(&w.events[up]) {
			break
		}
		w.events[i], w.events[up] = w.events[up], w.events[i]
		i = up
	}
}

func (w *sim) pop() simEvent {
	first, last := w.events[0], len(w.events)-1
	w.events[0] = w.events[last]
	w.events[last] = simEvent{}
	w.events = w.events[:last]
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < last && w.events[down].before(&w.events[least]) {
				least = down
			}
		}
		if least == i {
			return first
		}
		w.events[i], w.events[least] = w.events[least], w.events[i]
		i = least
	}
}

// run delivers events until none is left or a rule is broken.
func (w *sim) run() {
	for w.failure == "" && len(w.events) > 0 {
		e := w.pop()
		switch {
		case e.void():
			continue
		case e.in.stopped > e.at:
			e.at = e.in.stopped
			w.push(e)
			continue
		}
		w.now = e.at
		w.steps++
		w.last[w.steps%len(w.last)] = e
		w.digest = mix(w.digest ^ uint64(e.at) ^ uint64(e.who)<<40 ^ uint64(e.in.number)<<56 ^ uint64(len(e.what)))
		e.do()
		w.check()
	}
}

// fail notes the first broken rule.
func (w *sim) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("at %v, step %d: ", w.now, w.steps) + fmt.Sprintf(format, args...)
	}
}

// story is the latest events up to the failure.
func (w *sim) story(most int) string {
	var out strings.Builder
	for i := max(w.steps-most, 0) + 1; i <= w.steps; i++ {
		e := &w.last[i%len(w.last)]
		fmt.Fprintf(&out, "%12.3fms  %-10s s%-3d %s\n", float64(e.at.Microseconds())/1000, e.in.name, e.who, e.what)
	}
	return out.String()
}

func (w *sim) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *sim) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (w *sim) link(from, to *simNode) *simLink { return &w.links[from.number*len(w.nodes)+to.number] }

// send has f happen in another process, unless the network loses the message. Messages of calls are not lost one by one, because TCP
// repeats them; they are late.
func (w *sim) send(from, to *simNode, call bool, what string, who tandem.SessionID, f func()) {
	l, copies := w.link(from, to), 1
	late := w.upTo(time.Millisecond) + w.upTo(l.delay)
	switch lost := w.chance(l.lose); {
	case l.cut:
		return
	case lost && !call:
		return
	case lost:
		late += 200*time.Millisecond + w.upTo(time.Second)
	}
	if !call && w.chance(l.double) {
		copies = 2
	}
	for range copies {
		w.after(late, to, what, who, func() {
			if !to.down && !w.link(from, to).cut {
				f()
			}
		})
		late += w.upTo(20 * time.Millisecond)
	}
}

// simCall is a call that has not ended.
type simCall struct {
	from, to *simNode
	who      tandem.SessionID
	over     bool
	done     func(error)
}

// call calls a process: serve runs there, and what it gives to reply runs back here. done gets nil after that, or why there is no answer.
func (w *sim) call(from, to *simNode, what string, who tandem.SessionID, limit time.Duration, serve func(reply func(func())),
	done func(error)) *simCall {
	c := &simCall{from: from, to: to, who: who}
	c.done = func(err error) {
		if !c.over {
			c.over = true
			done(err)
		}
	}
	if to.down {
		if !w.link(from, to).cut && !w.link(to, from).cut {
			w.after(time.Millisecond, from, what+" refused", who, func() { c.done(unavailable("connection refused")) })
		}
	} else {
		w.calls = append(w.calls, c)
	}
	w.send(from, to, true, what, who, func() {
		serve(func(f func()) {
			w.send(to, from, true, what+" answered", who, func() {
				if !c.over {
					f()
					c.done(nil)
				}
			})
		})
	})
	w.add(limit, simEvent{in: from, what: what + " late", who: who, call: c,
		do: func() { c.done(tandem.Errorf("sim", tandem.Deadline, "no answer")) }})
	return c
}

func unavailable(why string) error { return tandem.Errorf("sim", tandem.Unavailable, "%s", why) }

// kill ends a process at once. Who called it learns that, unless the network is cut.
func (w *sim) kill(n *simNode) {
	n.instance++
	n.down, n.stopped = true, 0
	for _, c := range w.calls {
		if c.to == n && !c.over && !w.link(n, c.from).cut {
			w.after(time.Millisecond, c.from, "connection reset", c.who, func() { c.done(unavailable("connection reset")) })
		}
	}
	w.forgetCalls()
}

func (w *sim) forgetCalls() {
	w.calls = slices.DeleteFunc(w.calls, func(c *simCall) bool { return c.over })
}

func (w *sim) node(name string) *simNode {
	n := &simNode{number: len(w.nodes), name: name}
	w.nodes = append(w.nodes, n)
	return n
}

// newSim returns a world in which the clients are about to ask.
func newSim(seed uint64, faults []simFault, planted string) *sim {
	w := &sim{rng: rand.New(rand.NewPCG(seed, 35)), planted: planted, failed: map[tandem.Kind]int{}, reached: map[string]int{},
		horizon: 20 * time.Second, bound: 2 * time.Minute}
	rules, err := strategy.Rules{}.WithDefaults()
	if err != nil {
		panic(err)
	}
	_, w.weights = strategy.New(tandem.Request{Vote: tandem.VoteTree}, 0, strategy.NewShared(rules))
	w.world = w.node("world")
	for i := range simGateways {
		w.gateways = append(w.gateways, &simGateway{simNode: w.node(fmt.Sprint("gateway", i))})
	}
	for i := range simVerifiers {
		v := &simVerifier{simNode: w.node(fmt.Sprint("verifier", i)), identity: "a", weights: 1}
		if i == simVerifiers-1 {
			v.identity, v.weights = "b", 2
		}
		w.verifiers = append(w.verifiers, v)
	}
	for i := range simDrafters {
		w.drafters = append(w.drafters, &simDrafter{simNode: w.node(fmt.Sprint("drafter", i)), salt: uint64(i)})
	}
	w.links = make([]simLink, len(w.nodes)*len(w.nodes))
	for _, f := range faults {
		w.after(f.at, w.world, f.do, 0, func() { w.begin(f) })
		w.after(f.at+f.long, w.world, "end of "+f.do, 0, func() { w.end(f) })
		w.horizon = max(w.horizon, f.at+f.long)
	}
	w.apply()
	for i := range simClients {
		c := &simClient{number: i}
		w.clients = append(w.clients, c)
		w.after(w.upTo(time.Second), w.world, "client asks", 0, func() { w.ask(c) })
	}
	return w
}

// check holds the rules against the state after a step.
func (w *sim) check() {
	for _, g := range w.gateways {
		for _, s := range g.sessions {
			if s.armed <= 0 {
				w.fail("session s%d waits for ever: %s", s.id, s.state)
			}
		}
	}
	if w.now > w.horizon+w.bound {
		for _, c := range w.clients {
			if c.busy {
				w.fail("a request still runs %v after the last fault: %s", w.bound, c.describe())
			}
		}
	}
	if w.now > w.horizon+w.bound+3*time.Minute {
		w.fail("events go on for more than three minutes after the last request")
	}
}

// leaks says what is left in the peers after the last event.
func (w *sim) leaks() {
	for _, v := range w.verifiers {
		if len(v.held) > 0 {
			w.fail("%s still holds %d sessions", v.name, len(v.held))
		}
	}
	for _, d := range w.drafters {
		if len(d.held) > 0 {
			w.fail("%s still holds %d sessions", d.name, len(d.held))
		}
	}
	for _, g := range w.gateways {
		if len(g.sessions) > 0 {
			w.fail("%s still has %d sessions", g.name, len(g.sessions))
		}
	}
	if w.forgetCalls(); len(w.calls) > 0 {
		w.fail("%d calls have not ended", len(w.calls))
	}
}
