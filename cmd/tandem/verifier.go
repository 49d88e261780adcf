package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/cache"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/roles/verifier"
)

type verifierCmd struct {
	Target string `short:"m" aliases:"model" help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	headsFlags
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
	measureFlags
	batchFlags
	spareFlags
	tapFlags
	featureFlags
	budgetFlags
	cacheFlags
}

// tapFlags are the verifier's alone: whoever starts all processes knows the drafts.
type tapFlags struct {
	Taps []int `help:"Hidden states that drafters may read: N for those after N layers, -1 for those after the final norm. up, generate and bench choose them by the drafts." placeholder:"N"`
}

func (f tapFlags) check() error {
	if len(f.Taps) > tandem.MostTaps {
		return tandem.Errorf("", tandem.Invalid, "--taps names %d hidden states: want at most %d", len(f.Taps), tandem.MostTaps)
	}
	for i, n := range f.Taps {
		if slices.Contains(f.Taps[:i], n) {
			return tandem.Errorf("", tandem.Invalid, "--taps names %d twice: want each hidden state once", n)
		}
	}
	return nil
}

// featureFlags bound what a verifier keeps for drafters that read the target's hidden states.
type featureFlags struct {
	FeatureMemory int `help:"Memory in MiB for the hidden states of all sessions that drafters may still read." default:"64"`
}

func (f featureFlags) check() error {
	const most = 1 << 20
	if f.FeatureMemory < 1 || f.FeatureMemory > most {
		return tandem.Errorf("", tandem.Invalid, "--feature-memory is %d: want 1 to %d MiB", f.FeatureMemory, most)
	}
	return nil
}

// headsFlags name what the target guesses with by itself.
type headsFlags struct {
	Heads []string `help:"Side file of the target by which it guesses by itself, of kind medusa, ppd or gemma4-assistant; may be repeated, one of each kind; medusa and ppd are those shipped for the shipped target. Requests know it as the drafter medusa, ppd or assistant." placeholder:"FILE" sep:"none"`
}

// draftHeadsFlags name what draft models foretell with.
type draftHeadsFlags struct {
	DraftHeads []string `help:"Side file, of kind ppd, of a draft model: it needs fewer passes for a tree. May be repeated, for drafts of its own each." placeholder:"FILE" sep:"none"`
}

// measureFlags are the verifier's alone.
type measureFlags struct {
	Measure bool   `help:"Measure at the start, for at most a second or eight passes, what passes of the target cost. The planner uses this; without it, it learns from the passes that it sees." default:"true" negatable:""`
	Plan    string `help:"Take the costs of passes from this plan of 'tandem profile', if it was made on this machine, instead of measuring them (default: plan.json in the default cache folder); off = do not." placeholder:"FILE|off"`
}

// check refuses a plan that somebody has named and that is not there; the default one may be missing.
func (m measureFlags) check() error {
	if m.Plan == "" || m.Plan == "off" {
		return nil
	}
	if _, err := os.Stat(m.Plan); errors.Is(err, fs.ErrNotExist) {
		return tandem.Errorf("", tandem.Invalid, "--plan %s: no such file: want what 'tandem profile' has written, or off", m.Plan)
	}
	return nil
}

// plan returns the file of the plan to look for; "" for none.
func (m measureFlags) plan() string {
	switch m.Plan {
	case "off":
		return ""
	case "":
		dir, err := cache.Dir()
		if err != nil {
			return "" // a user without a folder has no plan
		}
		return filepath.Join(dir, profile.Name)
	}
	return m.Plan
}

// batchFlags say how sessions share the passes of the target.
type batchFlags struct {
	Batches int `help:"Divide the running sessions into this many batches: a pass verifies one of them while the others are drafted for; 1 = draft for all, then verify all. 0 = a pass takes whatever waits when it can begin." default:"0"`
}

func (b batchFlags) check() error {
	if b.Batches < 0 {
		return tandem.Errorf("", tandem.Invalid, "--batches is %d: want 0 or more", b.Batches)
	}
	return nil
}

// spareFlags say what a verifier leaves to other processes on the same machine.
type spareFlags struct {
	SpareThreads int `help:"Threads to leave to a drafter on the same machine, if passes measured at the start take at most a twentieth longer without them." default:"0"`
}

// Run runs a verifier until it is stopped.
func (c *verifierCmd) Run(a *app) error {
	if err := cmp.Or(c.batchFlags.check(), c.tapFlags.check(), c.featureFlags.check(), c.measureFlags.check(), c.budgetFlags.check(),
		c.budgetFlags.on(c.Device, c.gpuMemoryFlags)); err != nil {
		return err
	}
	path, err := targetPath(c.Target)
	if err != nil {
		return err
	}
	models, err := c.models(a)
	if err != nil {
		return err
	}
	heads, err := headPaths(c.Heads)
	if err != nil {
		return err
	}
	models.Sides = map[string][]string{path: heads}
	prefixes, err := c.pages()
	if err != nil {
		return err
	}
	var decision *profile.Decision
	if c.Device == "auto" {
		decision = decided(c.plan(), path, c.KVType, func(why error) {
			fmt.Fprintln(a.stderr, "tandem: "+oneLine(fmt.Sprintf("--device auto: plan not used: %v", why)))
		})
	}
	return c.chooseBy(a, decision, func(p place) error {
		models.Device, models.Threads, models.Streaming = c.at(p), c.threads(p), c.streaming(a, p.String(), c.gpuMemoryFlags, c.cacheFlags)
		spare := c.SpareThreads
		if !p.shared() {
			spare = 0 // its cores are its own
		}
		return verifier.Run(a.ctx, verifier.Config{Config: c.config(a, c.Listen), Models: models, Target: path, Pool: c.Pool,
			Drafters:    c.Drafter,
			PrefixCache: prefixes, Batches: c.Batches, Measure: c.Measure, Plan: c.plan(), SpareThreads: spare,
			Taps: c.Taps, FeatureBytes: c.FeatureMemory << 20})
	})
}
