package placement

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/spec/worth"
)

// leastBetter is how many times as fast as the present placement another must be to be chosen: below that lies what measurements differ by.
const leastBetter = 1.01

// Timed is a model on one place of a box, as it was measured there.
type Timed struct {
	At    device.Spec
	Costs []tandem.Cost    // of its passes; of a target on two processors what they take to meet is part of that
	Needs map[string]int64 // bytes, by memory
	// Burden is, of a draft, the share of its speed that the processor of a target loses while the draft computes, by the target's place.
	Burden map[string]float64
}

// Measured is what Best chooses from. The first target and the first draft are where they are now. A target without a draft has no Drafts.
type Measured struct {
	Targets, Drafts []Timed
	Right           []float64        // how often token i+1 of a draft's chain is right if those before are; the last for all behind
	Free            map[string]int64 // bytes of a memory for both; one that is not here has room for all
}

// Best returns the placements for which there is memory, most tokens per second first, by profile.Judge. One that is hardly faster than the
// present placement comes after it. None without a target whose passes were measured.
func Best(m Measured) []profile.Placement {
	var options []profile.Option
	lengths := m.lengths()
	for _, t := range m.Targets {
		plain := profile.Option{Device: t.At.String(), Text: "assumed", Verify: t.Costs}
		if len(m.Drafts) == 0 && m.fits(t) {
			options = append(options, plain)
		}
		for _, d := range m.Drafts {
			cost := worth.NewCosts(d.Costs)
			if !cost.Known() || !m.fits(t, d) {
				continue
			}
			with := plain
			with.DraftDevice = d.At.String()
			options = append(options, with) // each round may do without
			with.Drafter, with.Lengths, with.Depths = "draft", lengths, m.depths()
			with.Draft, with.Apart, with.Burden = cost.Time(1), !t.At.Overlaps(d.At), d.Burden[plain.Device]
			options = append(options, with)
		}
	}
	all := profile.Judge(options)
	for i, p := range all {
		if m.now(p) && all[0].TokensPerSecond < leastBetter*p.TokensPerSecond {
			copy(all[1:i+1], all[:i])
			all[0] = p
			break
		}
	}
	return all
}

// now reports whether p is where target and draft are.
func (m Measured) now(p profile.Placement) bool {
	return p.Device == m.Targets[0].At.String() && (len(m.Drafts) == 0 || p.DraftDevice == m.Drafts[0].At.String())
}

// fits reports whether there is memory for what models need together.
func (m Measured) fits(all ...Timed) bool {
	sums := map[string]int64{}
	for _, t := range all {
		for memory, bytes := range t.Needs {
			sums[memory] += bytes
			if free, bounded := m.Free[memory]; bounded && sums[memory] > free {
				return false
			}
		}
	}
	return true
}

// depths returns Right for each token of the longest chain.
func (m Measured) depths() (all []float64) {
	for i := 0; i < longestChain && len(m.Right) > 0; i++ {
		all = append(all, m.Right[min(i, len(m.Right)-1)])
	}
	return all
}

// lengths returns what chains bring.
func (m Measured) lengths() (all []profile.Length) {
	tokens := 1.0
	for i, chance := range worth.Chain(m.Right, longestChain) {
		tokens += chance
		all = append(all, profile.Length{Nodes: i + 2, Expected: tokens, Measured: tokens})
	}
	return all
}

// Reason says in a line what the first of the placements is, and why: what it is expected to bring, and beside it the best of the others.
// present is where target and draft were measured to be.
func Reason(all []profile.Placement, present profile.Placement) string {
	best := all[0]
	said := fmt.Sprintf("%s: about %s tokens/s", words(best), speed(best))
	if best.Device == present.Device && best.DraftDevice == present.DraftDevice {
		said = "all stays where it is, " + said
	} else {
		for _, p := range all {
			if p.Device == present.Device && p.DraftDevice == present.DraftDevice {
				return fmt.Sprintf("%s, and %s where they were, with %s", said, speed(p), words(p))
			}
		}
	}
	if len(all) > 1 {
		said += fmt.Sprintf(", and %s with %s", speed(all[1]), words(all[1]))
	}
	return said
}

// speed writes tokens per second with two digits at least.
func speed(p profile.Placement) string {
	if p.TokensPerSecond < 10 {
		return fmt.Sprintf("%.1f", p.TokensPerSecond)
	}
	return fmt.Sprintf("%.0f", p.TokensPerSecond)
}

// words names a placement.
func words(p profile.Placement) string {
	if p.DraftDevice == "" {
		return "the target on " + p.Device
	}
	return fmt.Sprintf("the target on %s and drafts on %s", p.Device, p.DraftDevice)
}
