package gateway_test

import (
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// roomsFaults are what may go wrong; how many there are of a kind is how often it does. None of the first costs a request.
var (
	roomsPassing = []string{"kill verifier", "kill drafter", "kill gateway", "stop verifier", "stop drafter", "drain verifier",
		"garbage drafter", "slow drafter", "requests lost", "answers lost", "partition", "lose", "double"}
	roomsOthers = []string{"garbage verdicts", "cancel", "silent clients", "nobody verifies", "other identity", "lose", "partition"}
)

// faults lets faults happen until the play is over, and returns when no further ones begin.
func (b *box) faults(over func() bool) {
	all := append(append([]string{}, roomsPassing...), roomsOthers...)
	for !over() {
		if b.mild {
			testkit.Sleep(b.n.upTo(5 * time.Second))
			b.fault(roomsPassing[b.n.pick(len(roomsPassing))], b.n.upTo(12*time.Second))
			testkit.Sleep(5 * time.Second)
			continue
		}
		testkit.Sleep(b.n.upTo(10 * time.Second))
		long := b.n.upTo(2 * time.Second)
		if b.n.pick(3) == 0 {
			long = b.n.upTo(75 * time.Second)
		}
		what := all[b.n.pick(len(all))]
		b.clients.Go(func() { b.fault(what, long) })
	}
}

// fault is one fault, from its beginning to its end.
func (b *box) fault(what string, long time.Duration) {
	b.mu.Lock()
	which := b.n.pick(len(b.gateways))
	g := &b.gateways[which].proc
	b.mu.Unlock()
	v, d := b.verifiers[b.n.pick(len(b.verifiers))], b.drafters[b.n.pick(len(b.drafters))]
	peer := []*proc{&v.proc, &d.proc}[b.n.pick(2)]
	share := float64(b.n.upTo(1000)) / 1000
	from, to := g, &v.proc
	if b.n.pick(2) == 0 {
		from, to = to, from
	}
	during := func(do, undo func()) {
		b.n.change(do)
		testkit.Sleep(long)
		b.n.change(undo)
	}
	switch set := b.n.set; what {
	case "kill verifier":
		b.restart(v, long)
	case "kill drafter":
		if b.killDrafter(d) {
			testkit.Sleep(long)
			b.startDrafter(d)
		}
	case "kill gateway":
		b.killGateway(which, long)
	case "stop verifier":
		during(func() { v.until = time.Now().Add(long) }, func() {})
	case "stop drafter":
		during(func() { d.until = time.Now().Add(long) }, func() {})
	case "drain verifier":
		during(func() { v.draining = true }, func() {})
		b.restart(v, 0)
	case "garbage verdicts":
		during(func() { v.garbage = share }, func() { v.garbage = 0 })
	case "garbage drafter":
		during(func() { d.garbage = share }, func() { d.garbage = 0 })
	case "slow drafter":
		during(func() { d.slow = time.Duration(share * float64(time.Second)) }, func() { d.slow = 0 })
	case "requests lost":
		during(func() { set(g, peer).cut = true }, func() { set(g, peer).cut = false })
	case "answers lost":
		during(func() { set(peer, g).cut = true }, func() { set(peer, g).cut = false })
	case "partition":
		during(func() { set(g, peer).cut, set(peer, g).cut = true, true }, func() { set(g, peer).cut, set(peer, g).cut = false, false })
	case "lose":
		during(func() { set(from, to).lose = share / 2 }, func() { set(from, to).lose = 0 })
	case "double":
		during(func() { set(from, to).double, set(from, to).delay = share, time.Duration(share*float64(3*time.Second)) },
			func() { set(from, to).double, set(from, to).delay = 0, 0 })
	case "cancel":
		b.mu.Lock()
		for c, cancel := range b.cancels {
			if c%2 == which {
				cancel()
			}
		}
		b.mu.Unlock()
	case "silent clients":
		b.silence(true)
		testkit.Sleep(long)
		b.silence(false)
	case "nobody verifies", "other identity": // the one of another identity is the last
		for i, v := range b.verifiers {
			if i < 2 || what == "nobody verifies" {
				b.clients.Go(func() { b.restart(v, long) })
			}
		}
	default:
		b.t.Errorf("fault %q is unknown", what)
	}
}

// restart kills a verifier, and starts it again after a while.
func (b *box) restart(v *verifying, after time.Duration) {
	if b.killVerifier(v) {
		testkit.Sleep(after)
		b.startVerifier(v)
	}
}

func (b *box) silence(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = yes
}
