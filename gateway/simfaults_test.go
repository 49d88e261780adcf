package gateway

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// simFault is what goes wrong, from when, for how long, and where.
type simFault struct {
	do       string
	at, long time.Duration
	who      int     // of the processes of its kind
	to       int     // the other end of a link
	much     float64 // chance, share or size, from 0 to 1
}

func (f simFault) String() string {
	return fmt.Sprintf("{do: %q, at: %d, long: %d, who: %d, to: %d, much: %g}, // %v for %v", f.do, f.at, f.long, f.who, f.to, f.much,
		f.at.Round(time.Millisecond), f.long.Round(time.Millisecond))
}

var (
	// simPassing are faults of which none costs a request, if they are short and few.
	simPassing = []string{"kill verifier", "stop verifier", "drain verifier", "memory", "pool full", "kill drafter", "stop drafter",
		"slow drafter", "garbage drafter", "kill gateway", "stop gateway", "lose", "double", "delay", "cut", "cut both ways"}
	// simOthers may.
	simOthers = []string{"garbage verdicts", "other identity", "clock", "cancel", "silent clients"}
)

// genSimFaults draws a run's faults. After an odd seed there are only passing ones, and no request may fail.
func genSimFaults(seed uint64) (out []simFault) {
	r := rand.New(rand.NewPCG(seed, 36))
	kinds, most, longest := slices.Concat(simPassing, simOthers), r.IntN(16), 100*time.Second
	if simMild(seed) {
		kinds, most, longest = simPassing, r.IntN(5), 12*time.Second
	}
	at := time.Duration(0)
	for range most {
		f := simFault{do: kinds[r.IntN(len(kinds))], who: r.IntN(6), to: r.IntN(6), much: r.Float64()}
		f.long = time.Duration(r.Int64N(int64(time.Second)))
		if r.IntN(3) > 0 {
			f.long = time.Duration(r.Int64N(int64(longest)))
		}
		f.at = time.Duration(r.Int64N(int64(20 * time.Second)))
		if simMild(seed) { // one after the other, with time to recover
			f.at = at + time.Duration(r.Int64N(int64(5*time.Second)))
			at = f.at + f.long + 2*time.Second
		}
		out = append(out, f)
	}
	return out
}

func simMild(seed uint64) bool { return seed%2 == 1 }

// begin lets a fault begin.
func (w *sim) begin(f simFault) {
	w.active = append(w.active, f)
	v, d, g := w.verifiers[f.who%simVerifiers], w.drafters[f.who%simDrafters], w.gateways[f.who%simGateways]
	switch f.do {
	case "kill verifier":
		w.killVerifier(v)
	case "other identity":
		w.killVerifier(v)
		v.swap()
		w.startVerifier(v)
	case "stop verifier":
		v.stopped = max(v.stopped, w.now+f.long)
	case "kill drafter":
		w.kill(d.simNode)
		d.held = nil
	case "stop drafter":
		d.stopped = max(d.stopped, w.now+f.long)
	case "kill gateway":
		w.killGateway(g)
	case "stop gateway":
		g.stopped = max(g.stopped, w.now+f.long)
	case "cut both ways":
		a, b := w.ends(f)
		w.after(simDisconnect, w.world, "disconnected", 0, func() { w.disconnected(a, b) })
	case "cancel":
		for _, g := range w.gateways {
			for _, s := range slices.Clone(g.sessions) {
				if w.chance(max(f.much, 0.5)) {
					w.after(0, g.simNode, "cancelled", s.id, s.cancel)
				}
			}
		}
	}
	w.apply()
}

// end lets a fault end.
func (w *sim) end(f simFault) {
	if i := slices.Index(w.active, f); i >= 0 {
		w.active = slices.Delete(w.active, i, i+1)
	}
	v, d, g := w.verifiers[f.who%simVerifiers], w.drafters[f.who%simDrafters], w.gateways[f.who%simGateways]
	switch f.do {
	case "kill verifier":
		w.startVerifier(v)
	case "other identity":
		w.killVerifier(v)
		v.swap()
		w.startVerifier(v)
	case "drain verifier": // its successor
		w.killVerifier(v)
		w.startVerifier(v)
	case "kill drafter":
		d.down = false
	case "kill gateway":
		g.down = false
	}
	w.apply()
}

// ends are the processes of a link that a fault has chosen: a gateway and a peer, in this order or the other, or a drafter and a verifier.
func (w *sim) ends(f simFault) (from, to *simNode) {
	from = w.gateways[f.who%simGateways].simNode
	if f.to < simVerifiers {
		to = w.verifiers[f.to].simNode
	} else {
		to = w.drafters[f.to-simVerifiers].simNode
	}
	switch {
	case f.who == 5 && f.to >= simVerifiers:
		from, to = to, w.verifiers[f.to-simVerifiers].simNode
	case f.who%4 >= 2:
		from, to = to, from
	}
	return from, to
}

// apply sets what lasts as long as its faults do.
func (w *sim) apply() {
	clear(w.links)
	for _, v := range w.verifiers {
		v.draining, v.full, v.garbage, v.memory = false, 0, 0, simMemory
	}
	for _, d := range w.drafters {
		d.slow, d.garbage = 0, 0
	}
	for _, g := range w.gateways {
		g.step = 0
	}
	w.silent(false)
	for _, f := range w.active {
		v, d := w.verifiers[f.who%simVerifiers], w.drafters[f.who%simDrafters]
		from, to := w.ends(f)
		switch f.do {
		case "drain verifier":
			v.draining = true
		case "memory":
			v.memory = 60 + int(f.much*200)
		case "pool full":
			v.full = 0.3 + 0.6*f.much
		case "garbage verdicts":
			v.garbage = f.much
		case "slow drafter":
			d.slow = time.Duration(f.much * float64(2*time.Second))
		case "garbage drafter":
			d.garbage = f.much
		case "lose":
			w.link(from, to).lose = 0.4 * f.much
		case "double":
			w.link(from, to).double = f.much
		case "delay":
			w.link(from, to).delay = time.Duration(f.much * float64(3*time.Second))
		case "cut both ways":
			w.link(to, from).cut = true
			fallthrough
		case "cut":
			w.link(from, to).cut = true
		case "clock":
			w.gateways[f.who%simGateways].step = time.Duration((f.much - 0.5) * float64(20*time.Minute))
		case "silent clients":
			w.silent(true)
		}
	}
}

// silent stops clients reading, or lets them read.
func (w *sim) silent(yes bool) {
	for i, c := range w.clients {
		if c.silent = yes && i%2 == 0; !c.silent {
			w.after(0, w.world, "client reads", 0, func() { w.read(c) })
		}
	}
}

// simCause reports whether a request may end with an error of that kind while such faults were there.
func simCause(faults []simFault, kind tandem.Kind) bool {
	has := func(any ...string) bool {
		return slices.ContainsFunc(faults, func(f simFault) bool { return slices.Contains(any, f.do) })
	}
	switch kind {
	case tandem.Canceled:
		return has("cancel")
	case tandem.Corrupt, tandem.Internal:
		return has("garbage verdicts")
	case tandem.Deadline: // nothing was read for long
		return has("silent clients")
	case tandem.Exhausted:
		return has("memory", "pool full")
	case tandem.Unavailable:
		return has("kill verifier", "stop verifier", "drain verifier", "other identity", "garbage verdicts", "lose", "delay", "cut",
			"cut both ways", "clock", "stop gateway", "memory", "garbage drafter", "slow drafter", "pool full")
	}
	return false
}
