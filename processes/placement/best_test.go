package placement

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/processes/profile"
)

// work is a pass, or a side of one, that runs in the simulation. First it waits, then it reads and multiplies at the same time.
type work struct {
	waits, bytes, busy float64 // seconds; left to read; seconds of products left
	reads              float64 // bytes a second, at most
	gpu                bool
}

func (w *work) done() bool { return w.waits <= 0 && w.bytes <= 0 && w.busy <= 0 }

// rate returns what w reads now beside others on the bus.
func (b box) rate(w *work, all []*work) float64 {
	if b.bus == 0 {
		return w.reads
	}
	sum := 0.0
	for _, x := range all {
		if x.waits <= 0 && x.bytes > 0 {
			sum += x.reads
		}
	}
	return w.reads * min(1, b.bus/sum)
}

// step lets all pass the time until the next of them changes, and returns it.
func (b box) step(all []*work) float64 {
	next := math.Inf(1)
	rates := make([]float64, len(all))
	for i, w := range all {
		rates[i] = b.rate(w, all)
		for _, left := range []float64{w.waits, w.bytes / rates[i], w.busy} {
			if left > 0 && (left == w.waits || w.waits <= 0) {
				next = min(next, left)
			}
		}
	}
	const gone = 1e-12 // seconds
	for i, w := range all {
		switch {
		case w.waits > 0:
			w.waits -= next
			if w.waits < gone {
				w.waits = 0
			}
		default:
			w.bytes, w.busy = w.bytes-next*rates[i], w.busy-next
			if w.bytes < gone*rates[i] {
				w.bytes = 0
			}
			if w.busy < gone {
				w.busy = 0
			}
		}
	}
	return next
}

// passes returns a pass as works: groups that follow each other, the works of a group side by side.
func (b box) passes(at device.Spec, m madeModel, rows int) [][]*work {
	on := func(at device.Spec, m madeModel) *work {
		w := &work{bytes: m.bytes, busy: float64(rows) * m.macs / b.of(at).macs, reads: b.of(at).read, gpu: at.GPU != nil}
		if w.gpu {
			w.waits = launches * float64(m.layers) * b.launch.Seconds()
		}
		return w
	}
	switch {
	case at.Right != nil:
		_, x := b.divided(m, rows)
		return [][]*work{{on(onGPU, m.part(x)), on(onCores, m.part(1-x))}, {{waits: launches * float64(m.layers) * b.meeting.Seconds()}}}
	case at.Layers > 0:
		x := b.onGPU(m)
		far := m.part(x)
		far.layers = int(x * float64(m.layers))
		return [][]*work{{on(onGPU, far)}, {{waits: 2 * b.meeting.Seconds()}}, {on(onCores, m.part(1-x))}}
	}
	return [][]*work{{on(at, m)}}
}

const simulated = 80 // rounds

// simulate returns the tokens a second of rounds with chains of n tokens: draft them, verify, join; ahead: the draft meanwhile drafts the
// next chain, as if all were right and the token behind them too. Steps of the draft that were done ahead count where that is so, also
// one that is half done. Hits are spread evenly, as often as they are likely.
func (b box) simulate(p madePair, target, drafts device.Spec, n int, ahead bool) float64 {
	right := func(i int) float64 { return p.right[min(i, len(p.right)-1)] }
	tokens, chance := 1.0, 1.0
	for i := range n {
		chance *= right(i)
		tokens += chance
	}
	hit := chance * right(n)
	took, turn := 0.0, 0.0
	var begun []*work // the step that is under way
	steps := 0        // of the chain that are done
	for range simulated {
		for steps < n { // nothing else runs
			if begun == nil {
				begun = b.passes(drafts, p.draft, 1)[0]
			}
			for !begun[0].done() {
				took += b.step(begun)
			}
			steps, begun = steps+1, nil
		}
		steps = 0
		for _, group := range b.passes(target, p.target, n+1) {
			for {
				var running []*work
				for _, w := range group {
					if !w.done() {
						running = append(running, w)
					}
				}
				if len(running) == 0 {
					break
				}
				if ahead && steps < n {
					if begun == nil {
						begun = b.passes(drafts, p.draft, 1)[0]
					}
					running = append(running, begun[0])
				}
				took += b.step(running)
				if begun != nil && begun[0].done() {
					steps, begun = steps+1, nil
				}
			}
		}
		if turn += hit; turn >= 1 {
			turn--
		} else {
			steps, begun = 0, nil
		}
	}
	return simulated * tokens / took
}

// fastest returns the most tokens a second that a placement reaches, with any length of chains, drafting ahead where that helps.
func (b box) fastest(p madePair, target, drafts device.Spec) (best float64) {
	for n := range longestChain + 1 {
		best = max(best, b.simulate(p, target, drafts, n, false))
		if n > 0 && !target.Overlaps(drafts) {
			best = max(best, b.simulate(p, target, drafts, n, true))
		}
	}
	return best
}

// TestBest: on emulated boxes, and for several pairs, the chosen placement is within 2 % of the fastest of all that have room, by a
// simulation that steps through rounds and shares nothing with the estimate but the boxes' figures.
func TestBest(t *testing.T) {
	chosen := map[string]bool{}
	for _, b := range boxes {
		for _, p := range pairs {
			m := b.measured(p)
			all := Best(m)
			if len(all) == 0 {
				t.Fatalf("%s, %s: no placement", b.name, p.target.name)
			}
			most, at, got := 0.0, "", 0.0
			for _, target := range m.Targets {
				for _, draft := range m.Drafts {
					if !m.fits(target, draft) {
						continue
					}
					speed := b.fastest(p, target.At, draft.At)
					where := target.At.String() + " | " + draft.At.String()
					if speed > most {
						most, at = speed, where
					}
					if all[0].Device == target.At.String() && all[0].DraftDevice == draft.At.String() {
						got = speed
					}
				}
			}
			t.Logf("%-6s %-4s + %-6s: %-20s %8.2f tokens/s simulated, %8.2f expected; best %-20s %8.2f", b.name, p.target.name,
				p.draft.name, all[0].Device+" | "+all[0].DraftDevice, got, all[0].TokensPerSecond, at, most)
			if got < 0.98*most {
				t.Errorf("%s, %s with %s: chosen %s and %s with %.2f tokens/s: want %s with %.2f", b.name, p.target.name, p.draft.name,
					all[0].Device, all[0].DraftDevice, got, at, most)
			}
			chosen[all[0].Device+" | "+all[0].DraftDevice] = true
		}
	}
	if len(chosen) < 4 {
		t.Errorf("only %v were chosen: the boxes say little", chosen)
	}
}

// TestReason: the line names what was chosen, what it is expected to bring, and what the place until now, or the next best, does.
func TestReason(t *testing.T) {
	now, far := profile.Placement{Device: "cpu", DraftDevice: "cpu", TokensPerSecond: 31.04},
		profile.Placement{Device: "cuda", DraftDevice: "cpu", TokensPerSecond: 84.21}
	for _, c := range []struct {
		all  []profile.Placement
		want string
	}{
		{[]profile.Placement{far, now}, "the target on cuda and drafts on cpu: about 84 tokens/s, and 31 where they were, with the"},
		{[]profile.Placement{now, far}, "all stays where it is, the target on cpu and drafts on cpu: about 31 tokens/s, and 84 with"},
		{[]profile.Placement{now}, "all stays where it is, the target on cpu and drafts on cpu: about 31 tokens/s"},
	} {
		if got := Reason(c.all, now); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: want %q", got, c.want)
		}
	}
}

// TestBestKeeps: a placement that is hardly faster is not worth the move, and one without room for both models is none.
func TestBestKeeps(t *testing.T) {
	b, p := boxes[0], pairs[0]
	m := b.measured(p)
	m.Targets = m.Targets[:2]
	m.Targets[1].Costs = m.Targets[0].Costs
	m.Drafts = m.Drafts[:1]
	m.Drafts[0].Burden = map[string]float64{"cuda": 1} // nothing is hidden
	if all := Best(m); len(all) != 2 || all[0].Device != "cpu" {
		t.Errorf("equal: %+v: want the present one first", all)
	}
	m = b.measured(p)
	m.Free["gpu"] = int64(p.target.bytes+p.draft.bytes) + 1
	for _, x := range Best(m) {
		if x.Device == "cuda+cpu" {
			t.Errorf("%+v has no room for a second copy", x)
		}
	}
	m.Targets, m.Drafts = m.Targets[:1], nil
	if all := Best(m); len(all) != 1 || all[0].DraftDevice != "" || all[0].Device != "cpu" {
		t.Errorf("without a draft: %+v", all)
	}
}
