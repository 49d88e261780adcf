package placement

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	longestChain = 16 // tokens; the deepest tree likewise
	widestTree   = 64 // rows of a pass, root included
	probeBytes   = 64 << 20
	probeTime    = 60 * time.Millisecond
	diskTime     = 200 * time.Millisecond
)

// Weigher predicts how fast a target is with drafts beside it, before any model is loaded.
type Weigher struct {
	target, kv string        // the target's file; the type of keys and values
	plan       *profile.Plan // what was measured; nil: nothing
	version    string        // tandem's

	limits kernels.Limits // the processor's; zero: not measured yet
	disk   float64        // bytes per second; 0: likewise
}

// NewWeigher returns a Weigher of drafts for a target. file is a plan, "" for none; one that cannot be used is ignored. version is this
// tandem's, kv the type of keys and values.
func NewWeigher(file, version, target, kv string) *Weigher {
	w := &Weigher{target: target, kv: kv, version: version}
	if file != "" {
		w.plan, _ = profile.Read(file) // the verifier says what is wrong with it
	}
	return w
}

// Measured implements pair.Weigher.
func (w *Weigher) Measured(draft string) float64 {
	if known := w.known(draft); known != nil {
		return known.Gain()
	}
	return 0
}

// Right returns how often the tokens of a draft's chains are right, as Measured takes it; nil if the plan has no such pair.
func (w *Weigher) Right(draft string) []float64 {
	if known := w.known(draft); known != nil {
		return known.Depths()
	}
	return nil
}

// Brings returns a function that says in one line what a draft brings a target on this machine by the plan in a file; "" if the plan says
// nothing of the two.
func Brings(file, version string) func(target, draft string) string {
	plan, err := profile.Read(file)
	return func(target, draft string) string {
		if err != nil {
			return ""
		}
		p, stale := plan.PairOf(profile.ThisBox(), version, tandem.Identity(target), tandem.Identity(draft))
		if stale != nil {
			return ""
		}
		return p.String()
	}
}

// Weigh implements pair.Weigher. Times of passes and how often drafts are right come from the plan if it has this pair, else from what
// passes must read and multiply, at rates that are measured now, and from a draft that is right in 0.7 of its tokens. Of several drafts the
// best counts. Errors: those of reading the files and of the measurements.
func (w *Weigher) Weigh(drafts []string, s kernels.StreamStats) (out pair.Weight, err error) {
	if err := w.measure(); err != nil {
		return out, err
	}
	read := func(bytes int64) time.Duration { return time.Duration(float64(bytes) / w.disk * 1e9) }
	verify, err := w.passes(w.target)
	if err != nil {
		return out, err
	}
	plain := worth.Terms{Verify: verify, Read: read(s.Streamed), Each: read(s.Streamed - s.Ringed), Ahead: read(min(s.Ring, s.Ringed))}
	out.Speed = plain.Best(0).Speed()
	for _, d := range drafts {
		terms, why := plain, fmt.Sprintf("if %v of its tokens are right", worth.AssumedRight)
		if known := w.known(d); known != nil {
			terms, why = known.Terms(known.Depths()), "as tandem profile measured them"
			terms.Read, terms.Each, terms.Ahead = plain.Read, plain.Each, plain.Ahead
		} else {
			terms.Right = []float64{worth.AssumedRight}
			if terms.Draft, err = w.draftPass(d, verify.Time(1)); err != nil {
				return out, err
			}
		}
		f := terms.BestTree(longestChain)
		if f.Drafted > 0 {
			why = fmt.Sprintf("%s, with trees of %d", why, f.Drafted+1)
		}
		if f.Speed() > out.Speed || out.Why == "" {
			out.Speed, out.Why = f.Speed(), why
		}
	}
	return out, nil
}

// Gain returns how many times as fast as plain decoding a draft is expected to make a target whose weights are in memory, as Weigh finds.
func (w *Weigher) Gain(draft string) (float64, error) {
	if known := w.Measured(draft); known > 0 {
		return known, nil
	}
	plain, err := w.Weigh(nil, kernels.StreamStats{})
	if err != nil {
		return 0, err
	}
	with, err := w.Weigh([]string{draft}, kernels.StreamStats{})
	return with.Speed / plain.Speed, err
}

// known returns what the plan says of the target with a draft; nil if that is nothing.
func (w *Weigher) known(draft string) *profile.Paired {
	if w.plan == nil || w.plan.Machine == nil || len(w.plan.Machine.Pairs) == 0 {
		return nil
	}
	target, err := FileOf(w.target, w.kv)
	if err != nil {
		return nil
	}
	name, err := FileOf(draft, w.kv)
	if err != nil {
		return nil
	}
	p, err := w.plan.Pair(profile.ThisBox(), w.version, target, name)
	if err != nil {
		return nil
	}
	return p
}

// measure finds out how fast this machine's processor and the target's disk are.
func (w *Weigher) measure() error {
	if w.disk > 0 {
		return nil
	}
	d, err := device.Opener{}.Open(device.Spec{}, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	probe, err := d.NewProbe(probeBytes)
	if err != nil {
		return err
	}
	defer probe.Close()
	if w.limits, err = kernels.MeasureLimits(probe, probeTime); err != nil {
		return err
	}
	file := w.target
	if strings.HasPrefix(file, gguf.Builtin) { // the program carries it
		if file, err = os.Executable(); err != nil {
			return err
		}
	}
	w.disk, err = stream.Rate(file, diskTime)
	return err
}

// draftPass returns what a pass of one row of a draft takes, beside a target with such a pass. A draft that reads the target's states has
// about two of its layers.
func (w *Weigher) draftPass(draft string, target time.Duration) (time.Duration, error) {
	side, err := engine.SideOf(draft)
	if err != nil {
		return 0, err
	}
	if side.Kind.IsDraft() {
		info, err := engine.Inspect(w.target)
		if err != nil {
			return 0, err
		}
		return target * 2 / time.Duration(max(info.Config.Layers, 2)), nil
	}
	costs, err := w.passes(draft)
	if err != nil {
		return 0, err
	}
	return costs.Time(1), nil
}

// passes returns what passes of a model take if all of its weights are in memory.
func (w *Weigher) passes(path string) (*worth.Costs, error) {
	info, err := engine.Inspect(path)
	if err != nil {
		return nil, err
	}
	return worth.NewCosts(measure.Nominal(info.Work, w.limits, widestTree)), nil
}
