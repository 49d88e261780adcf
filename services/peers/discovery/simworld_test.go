package discovery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	simProcesses = 5
	simLength    = 2 * time.Minute
	simLease     = DefaultLease
	simLate      = time.Second             // the longest way of an announcement; one that a cluster has delayed takes longer
	simDelayed   = 2500 * time.Millisecond // the longest that a fault adds
	simSilence   = 10 * time.Second        // until a connection to a host that is gone is given up
	simJoins     = 3 * time.Second         // all that is well must be a member after that
	simLeaves    = simLease + simSilence + 2*(simLate+simDelayed) + time.Second
)

// sim is processes that announce themselves, and one table's membership, under a virtual clock; see TestSimulation.
type sim struct {
	rng     *rand.Rand
	now     time.Duration
	queue   []simEvent // by time
	steps   int
	digest  uint64
	kind    Kind
	m       membership
	all     []*simProcess
	faults  []simFault
	active  []simFault
	conn    bool          // the table is connected to NATS
	silent  bool          // it is, as it believes
	stopped time.Duration // the table, until then
	well    time.Duration // since when the table's world has been in order
	failure string
	story   []string
	tell    bool
}

// simProcess is an address, and the process there.
type simProcess struct {
	addr      string
	static    bool
	instance  uint64 // unlike that of any other, and greater than that of those before it
	sequence  uint64
	alive     bool
	stopped   time.Duration // until then
	draining  bool
	reachable bool          // over gRPC, if alive
	ready     bool          // the table's connection is
	since     time.Duration // when the latest change of what is true of it was
	newest    uint64        // instance that the table has shown
	key       *wire.Announcement
	keyed     time.Duration // when the key was last put
}

type simEvent struct {
	at   time.Duration
	what string
	do   func()
}

// simFault is what goes wrong, from when and for how long.
type simFault struct {
	do       string
	at, long time.Duration
	who      int
}

func (f simFault) String() string {
	return fmt.Sprintf("%s of %d at %v for %v", f.do, f.who, f.at.Round(time.Millisecond), f.long.Round(time.Millisecond))
}

var simDoes = []string{"restart", "kill", "stop", "vanish", "drain", "unreachable", "lose", "delay", "double", "NATS away", "NATS silent",
	"no registry", "table stopped"}

func genFaults(seed uint64) (out []simFault) {
	r := rand.New(rand.NewPCG(seed, 38))
	for range r.IntN(14) {
		f := simFault{do: simDoes[r.IntN(len(simDoes))], who: r.IntN(simProcesses), at: time.Duration(r.Int64N(int64(simLength * 3 / 4)))}
		f.long = time.Duration(r.Int64N(int64(time.Second)))
		if r.IntN(2) == 0 {
			f.long = time.Duration(r.Int64N(int64(simLength / 4)))
		}
		out = append(out, f)
	}
	return out
}

func newSim(seed uint64, faults []simFault) *sim {
	w := &sim{rng: rand.New(rand.NewPCG(seed, 39)), faults: faults, conn: true}
	w.kind = []Kind{Drafters, Verifiers, Gateways}[seed%3]
	w.m = newMembership(w.kind, DefaultBeat, simLease)
	for i := range simProcesses {
		p := &simProcess{addr: fmt.Sprintf("10.0.0.%d:1", i), instance: uint64(i+1) * 1000, reachable: true,
			static: i == 0 && w.kind.describe != nil}
		w.all = append(w.all, p)
		if p.static {
			w.enter(p)
		}
		w.after(w.upTo(time.Second), "starts", func() { w.start(p) })
	}
	for _, f := range faults {
		w.after(f.at, f.do, func() { w.begin(f) })
		w.after(f.at+f.long, "end of "+f.do, func() { w.end(f) })
	}
	w.after(0, "tick", w.tick)
	return w
}

func (w *sim) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (w *sim) after(d time.Duration, what string, f func()) {
	e := simEvent{w.now + d, what, f}
	i, _ := slices.BinarySearchFunc(w.queue, e, func(a, b simEvent) int {
		if a.at <= b.at {
			return -1
		}
		return 1
	})
	w.queue = slices.Insert(w.queue, i, e)
}

// run delivers the events up to the end.
func (w *sim) run() *sim {
	for w.failure == "" && len(w.queue) > 0 {
		e := w.queue[0]
		w.queue = slices.Delete(w.queue, 0, 1)
		w.now = e.at
		w.steps++
		w.digest = (w.digest ^ uint64(e.at) ^ uint64(len(e.what))<<56) * 0x9e3779b97f4a7c15
		if w.tell && e.what != "tick" {
			w.story = append(w.story, fmt.Sprintf("%10.3fs %s", e.at.Seconds(), e.what))
		}
		e.do()
		if w.now > simLength {
			break
		}
	}
	return w
}

func (w *sim) time() time.Time { return time.Unix(1000, 0).Add(w.now) }

func (w *sim) has(do string, who int) bool {
	return slices.ContainsFunc(w.active, func(f simFault) bool { return f.do == do && (who < 0 || f.who == who) })
}

// fail notes the first broken rule.
func (w *sim) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("at %v: ", w.now) + fmt.Sprintf(format, args...)
	}
}

// tick is the table's beat.
func (w *sim) tick() {
	if w.stopped <= w.now {
		w.look()
	}
	w.after(DefaultBeat, "tick", w.tick)
}

// look is what Table.run does after each event.
func (w *sim) look() {
	if w.stopped > w.now {
		return
	}
	w.m.leased = !w.has("no registry", -1)
	if w.m.server(w.time(), w.conn) {
		w.after(w.upTo(20*time.Millisecond), "asks all", func() {
			for _, p := range w.all {
				w.announce(p)
			}
		})
		w.watch()
	}
	gone, again := w.m.sweep(w.time(), func(e *entry) bool { return w.at(e.Addr).ready })
	slices.SortFunc(again, func(a, b *entry) int { return strings.Compare(a.Addr, b.Addr) })
	for _, e := range again {
		w.ask(w.at(e.Addr))
	}
	for _, e := range gone {
		if w.at(e.Addr).ready = false; !w.conn {
			w.fail("%s is removed while NATS is away", e.Addr)
		}
	}
	w.check(w.m.list())
}

func (w *sim) at(addr string) *simProcess {
	return w.all[slices.IndexFunc(w.all, func(p *simProcess) bool { return p.addr == addr })]
}

// enter makes an entry and connects to the process.
func (w *sim) enter(p *simProcess) *entry {
	e := &entry{Process: Process{Addr: p.addr}, static: p.static, seen: w.time(), called: w.kind.describe != nil}
	w.m.entries[p.addr] = e
	w.connect(p)
	return e
}

// connect has the table's connection come up as soon as the process can be reached.
func (w *sim) connect(p *simProcess) {
	if w.kind.describe == nil {
		return
	}
	w.after(w.upTo(300*time.Millisecond), "connects", func() {
		switch {
		case w.m.entries[p.addr] == nil || p.ready:
		case p.alive && p.reachable && p.stopped <= w.now:
			if p.ready = true; p.static {
				w.ask(p)
			}
			w.look()
		default:
			w.connect(p)
		}
	})
}

// ask has the process describe itself.
func (w *sim) ask(p *simProcess) {
	w.after(w.upTo(20*time.Millisecond), "is asked", func() {
		if !p.alive || !p.reachable || p.stopped > w.now {
			return
		}
		a := w.announcement(p)
		w.after(w.upTo(20*time.Millisecond), "told", func() {
			if e := w.m.entries[p.addr]; e != nil && w.stopped <= w.now {
				w.m.tell(w.time(), e, a)
				w.look()
			}
		})
	})
}

func (w *sim) announcement(p *simProcess) wire.Announcement {
	a := wire.Announcement{Addr: p.addr, Instance: p.instance, Sequence: p.sequence, Draining: p.draining}
	switch w.kind.subject {
	case Drafters.subject:
		a.Drafters = []wire.AnnouncedDrafter{{Name: "d"}}
	case Verifiers.subject:
		a.Verifier = &wire.AnnouncedVerifier{Model: "m"}
	default:
		a.Gateway = &wire.AnnouncedGateway{}
	}
	return a
}

// start starts a process at its address.
func (w *sim) start(p *simProcess) {
	if p.alive {
		return
	}
	p.alive, p.draining, p.stopped = true, false, 0
	p.instance++
	p.sequence, p.since = 0, w.now
	instance := p.instance
	var beat, renew func()
	beat = func() {
		if p.alive && p.instance == instance {
			w.announce(p)
			w.after(DefaultBeat, "beat", beat)
		}
	}
	renew = func() {
		if p.alive && p.instance == instance {
			w.put(p)
			w.after(simLease/renewals, "renews", renew)
		}
	}
	beat()
	renew()
	w.connect(p)
}

// announce sends an announcement over NATS.
func (w *sim) announce(p *simProcess) {
	if !p.alive || p.stopped > w.now {
		return
	}
	p.sequence++
	w.send(p, w.announcement(p), false)
}

// put renews the key in the registry.
func (w *sim) put(p *simProcess) {
	if !p.alive || p.stopped > w.now || w.has("no registry", -1) {
		return
	}
	p.sequence++
	a := w.announcement(p)
	p.key, p.keyed = &a, w.now
	w.send(p, a, true)
}

// watch is a new watch of the registry: it delivers all keys that have not ended.
func (w *sim) watch() {
	for _, p := range w.all {
		if p.key != nil && w.now-p.keyed < simLease && w.m.leased {
			w.send(p, *p.key, true)
		}
	}
}

// send brings an announcement to the table, or the news that a key was taken away: a without an instance.
func (w *sim) send(p *simProcess, a wire.Announcement, registry bool) {
	who := slices.Index(w.all, p)
	copies, late := 1, w.upTo(20*time.Millisecond)
	switch {
	case w.has("lose", who) && w.rng.IntN(2) == 0 && !registry:
		return
	case w.has("delay", who):
		late += w.upTo(simDelayed)
	case w.has("double", who):
		copies = 2
	}
	for range copies {
		w.after(late, "message", func() { w.arrive(p, a) })
		late += w.upTo(simLate)
	}
}

func (w *sim) arrive(p *simProcess, a wire.Announcement) {
	if w.stopped > w.now { // it waits in the table's inbox
		w.after(w.stopped-w.now, "message from the inbox", func() { w.arrive(p, a) })
		return
	}
	if !w.conn || w.silent {
		return
	}
	e := w.m.entries[p.addr]
	switch {
	case a.Instance == 0:
		w.m.withdraw(w.kind.key(p.addr), p.instance)
	case e == nil && a.Draining:
	default:
		if e == nil {
			e = w.enter(p)
		}
		w.m.hear(w.time(), e, a)
	}
	w.look()
}

// stop ends a process. Its connection breaks, or nobody notices for long.
func (w *sim) stop(p *simProcess, vanishes bool) {
	if !p.alive {
		return
	}
	p.alive, p.since = false, w.now
	wait := w.upTo(50 * time.Millisecond)
	if vanishes {
		wait = simSilence
	} else if p.stopped <= w.now && w.rng.IntN(2) == 0 { // it had the time to take its key away
		p.key = nil
		w.send(p, wire.Announcement{Addr: p.addr}, true)
	}
	instance := p.instance
	w.after(wait, "connection breaks", func() {
		if p.instance == instance || !vanishes {
			p.ready = false
			w.connect(p)
		}
	})
}

// begin lets a fault begin.
func (w *sim) begin(f simFault) {
	w.active = append(w.active, f)
	p := w.all[f.who]
	switch f.do {
	case "restart":
		w.stop(p, false)
		w.after(w.upTo(200*time.Millisecond), "starts again", func() { w.start(p) })
	case "kill":
		w.stop(p, false)
	case "vanish":
		w.stop(p, true)
	case "stop":
		p.stopped = max(p.stopped, w.now+f.long)
	case "drain":
		p.draining = true
		w.announce(p)
		w.put(p)
	case "unreachable":
		p.reachable = false
		w.after(simSilence, "unreachable", func() { p.ready = p.ready && p.reachable })
	case "NATS away":
		w.conn = false
		w.look()
	case "NATS silent":
		w.silent = true
	case "table stopped":
		w.stopped = max(w.stopped, w.now+f.long)
	}
	w.disturb(f, p)
}

// end lets a fault end.
func (w *sim) end(f simFault) {
	w.active = slices.DeleteFunc(w.active, func(x simFault) bool { return x == f })
	p := w.all[f.who]
	switch f.do {
	case "kill", "vanish":
		w.start(p)
	case "drain": // its successor
		w.stop(p, false)
		w.start(p)
	case "unreachable":
		p.reachable = !w.has("unreachable", f.who)
		w.connect(p)
	case "NATS away":
		w.conn = !w.has("NATS away", -1)
	case "NATS silent":
		w.silent = w.has("NATS silent", -1)
	}
	w.disturb(f, p)
}

// disturb notes that what is true of the process, or of the table and all that it hears, has just changed.
func (w *sim) disturb(f simFault, p *simProcess) {
	switch p.since = w.now; f.do {
	case "NATS away", "NATS silent", "no registry", "table stopped":
		w.well = w.now
	}
}

// check holds the rules against what the table shows.
func (w *sim) check(shown []Process) {
	disturbed := func(who int, alive bool) bool { // the table, or what it hears of this process
		for _, f := range w.active {
			switch f.do {
			case "NATS away", "NATS silent", "table stopped":
				return true
			case "restart", "kill", "vanish":
			default:
				if f.who == who && alive {
					return true
				}
			}
		}
		return w.stopped+simJoins > w.now
	}
	if !w.conn && slices.ContainsFunc(shown, func(x Process) bool { return x.Lapsed }) {
		w.fail("a lease has lapsed while NATS is away: %+v", shown)
	}
	for i, p := range w.all {
		at := slices.IndexFunc(shown, func(x Process) bool { return x.Addr == p.addr })
		if at >= 0 {
			x := shown[at]
			if x.Instance != 0 && x.Instance < p.newest {
				w.fail("%s is shown as instance %d after %d", p.addr, x.Instance, p.newest)
			}
			p.newest = max(p.newest, x.Instance)
		}
		calm := min(w.now-p.since, w.now-w.well)
		switch {
		case disturbed(i, p.alive):
		case p.alive && calm > simJoins+simDelayed+simLate:
			if at < 0 || shown[at].Instance != p.instance || !shown[at].Up || shown[at].Lapsed || shown[at].Draining != p.draining {
				w.fail("%s has been well for %v, but the table shows %+v of %+v", p.addr, calm, shown, *p)
			}
		case !p.alive && calm > simLeaves && at >= 0 && !p.static:
			w.fail("%s has been dead for %v, but the table shows %+v", p.addr, calm, shown[at])
		}
	}
}
