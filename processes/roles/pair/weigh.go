package pair

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Weigher predicts what drafts bring, before they are loaded.
type Weigher interface {
	// Weigh returns how fast the target is with drafts beside it, or without any, if it streams so much.
	Weigh(drafts []string, s kernels.StreamStats) (Weight, error)
	// Measured returns how many times as fast as plain decoding a draft makes a target in memory; 0 if nobody has measured it.
	Measured(draft string) float64
}

// LeastGain is how many times as fast as plain decoding a draft must make its target to be loaded.
const LeastGain = 1.02

// Weight is what a target is expected to bring.
type Weight struct {
	Speed float64 // tokens per second
	Why   string  // what the figure rests on, such as "if 0.7 of its tokens are right"
}

// choice is one choice of the drafts to load.
type choice struct {
	roles.Divided
	drafts []string // files, in the order of Pair.Drafts
	room   *roles.Room
	inside bool // its draft, the only one, runs in the target's process
	Weight
	err error // it does not fit
}

// weigh chooses which drafts are loaded. A draft that was measured to bring next to nothing is not. All others are if the target then reads
// nothing from the disk. Else the memory of a draft makes the target read more in every pass, and the drafts are loaded with which the most
// tokens per second are predicted: all of them, one, or none. What was chosen, and why, is told in a line for each draft. Errors: those of
// roles.Streaming.Divide, if nothing fits.
func (p *Pair) weigh(room *roles.Room, available memory.Available, say func(note string)) (choice, error) {
	drafts := models(p.Drafts)
	if p.Weigher != nil {
		drafts = slices.DeleteFunc(drafts, func(d string) bool {
			gain := p.Weigher.Measured(d)
			if useless := gain > 0 && gain < LeastGain; !useless {
				return false
			}
			say(fmt.Sprintf("draft %s is not loaded: it brings %.2f x here, as tandem profile measured", roles.ModelName(d), gain))
			return true
		})
	}
	all := p.choose(room, available, drafts)
	if p.Weigher == nil || len(drafts) == 0 || all.err == nil && !all.Streamed() {
		return all, all.err
	}
	choices := []choice{all}
	if len(drafts) > 1 {
		for _, d := range drafts {
			choices = append(choices, p.choose(room, available, []string{d}))
		}
	}
	plain := p.choose(room, available, nil)
	choices = append(choices, plain)
	best := -1
	for i := range choices {
		c := &choices[i]
		if c.err != nil {
			continue
		}
		var err error
		if c.Weight, err = p.Weigher.Weigh(c.drafts, c.Streams); err != nil {
			return all, err
		}
		if best < 0 || c.Speed > choices[best].Speed {
			best = i
		}
	}
	if best < 0 {
		return all, plain.err
	}
	for _, d := range drafts {
		alone := slices.IndexFunc(choices, func(c choice) bool { return slices.Equal(c.drafts, []string{d}) })
		say(told(d, slices.Contains(choices[best].drafts, d), choices[alone], choices[len(choices)-1]))
	}
	return choices[best], nil
}

// choose divides the memory between the target and some of the drafts.
func (p *Pair) choose(room *roles.Room, available memory.Available, drafts []string) choice {
	places, states := []int{0}, false
	for i, d := range models(p.Drafts) {
		if !slices.Contains(drafts, d) {
			continue
		}
		places = append(places, i+1)
		if taps, err := Taps([]string{d}); err == nil && len(taps) > 0 {
			states = true
		}
	}
	c := choice{drafts: drafts, room: room.Of(states, places...)}
	if c.Divided, c.err = p.Streaming.Divide(c.room, available); p.Lends && (c.err != nil || c.Streamed()) {
		c.room = room.Of(states, places...).Apart() // a target that is streamed has no memory that drafts could map
		c.Divided, c.err = p.Streaming.Divide(c.room, available)
	}
	if !states || len(drafts) > 1 || c.err == nil && !c.Streamed() {
		return c
	}
	inside := choice{drafts: drafts, inside: true}
	if inside.room, inside.err = room.Of(states, places...).Hosting(); inside.err == nil {
		inside.Divided, inside.err = p.Streaming.Divide(inside.room, available)
	}
	return inside
}

// told says whether a draft is loaded, and why. with is the choice with it, without that without any.
func told(draft string, loaded bool, with, without choice) string {
	what, why := "is not loaded", "with it "+with.words()
	if loaded {
		what = "is loaded"
	}
	if small := (*roles.TooLittle)(nil); errors.As(with.err, &small) {
		why = fmt.Sprintf("with it at least %s of memory are needed", memory.Bytes(small.Least))
	} else if with.err != nil {
		why = fmt.Sprintf("there is no memory for it (%v)", with.err)
	}
	if without.err == nil {
		why += "; without it " + without.words()
	}
	return fmt.Sprintf("draft %s %s: %s", roles.ModelName(draft), what, why)
}

// words says what a choice brings.
func (c choice) words() string {
	reads := "all of the target is in memory"
	if c.Streamed() {
		reads = fmt.Sprintf("%s of the target are read from the disk in each pass", memory.Bytes(c.Streams.Streamed))
	}
	return strings.TrimSpace(fmt.Sprintf("%s, about %.3g tokens/s %s", reads, c.Speed, c.Why))
}

// keep leaves out all drafts but those, and their side files.
func (p *Pair) keep(drafts []string) {
	sides, err := Sides(p.Drafts, p.DraftHeads) // Check has called it
	gone := func(d string) bool { return d != lookup.Name && !slices.Contains(drafts, d) }
	if err == nil {
		for d, files := range sides {
			if gone(d) {
				p.DraftHeads = slices.DeleteFunc(slices.Clone(p.DraftHeads), func(f string) bool { return slices.Contains(files, f) })
			}
		}
	}
	had := len(p.Drafts)
	p.Drafts = slices.DeleteFunc(slices.Clone(p.Drafts), gone)
	if had > 0 && len(p.Drafts) == 0 {
		p.Drafts = []string{lookup.Name} // stays in any case
	}
}

// models returns the drafts that are models.
func models(drafts []string) []string {
	return slices.DeleteFunc(slices.Clone(drafts), func(d string) bool { return d == lookup.Name })
}
