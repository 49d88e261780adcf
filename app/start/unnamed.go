package start

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
)

// pair returns the models of s, to be checked.
func (s *Setup) pair(env Env) pair.Pair {
	p := pair.Pair{Target: s.TargetFile, Drafts: s.DraftFiles, Heads: s.Heads, DraftHeads: s.DraftHeads,
		Sizes:    settings.Sizes{Ctx: s.Ctx, Sessions: s.AtOnce},
		Options:  engine.Options{Device: device.Planner(), KVType: s.KVType},
		KVMemory: s.KVMemory.Bytes(),
		Features: int64(s.FeatureMemory) << 20, Own: s.ownMemory(),
		Streaming: Budget{s.Budget}.Streaming(env, s.Device, s.GPULayers, s.CacheFolder)}
	p.Lends, _ = s.near(env)
	if !s.DraftAnyway {
		p.Weigher = placement.NewWeigher(PlanFile(s.PassCosts), env.Version, s.TargetFile, s.KVType)
	}
	return p
}

// fitted checks the models together, with the first of Candidates that fits. One that does not is left, with a line that says why. Errors:
// those of pair.Pair.Check without candidates.
func (s *Setup) fitted(env Env, prompt string) (pair.Pair, error) {
	for _, c := range s.Candidates {
		with := *s
		p, notes, err := with.tried(env, c, prompt)
		if err != nil {
			env.Say("tandem: draft %s is left: %s", terminal.Shown(c.File), terminal.OneLine(err.Error()))
			continue
		}
		if *s = with; c.Sibling == "" {
			s.Fetch = nil // a sibling would not be used
		}
		for _, note := range notes {
			env.Say("tandem: %s", note)
		}
		return p, nil
	}
	if s.Unknown {
		env.Say("tandem: no draft is known to pay for this target: lookup and recycling alone draft")
	}
	p := s.pair(env)
	return p, p.Check(prompt, func(note string) { env.Say("tandem: %s", note) })
}

// Pays checks that a draft runs beside the target, or has its vocabulary and is expected to pay; its file may be a header alone. Errors:
// Invalid for one that does not, and those of tried and of reading both files.
func (s Setup) Pays(env Env, draft string) error {
	if spec, err := engine.SideOf(draft); err != nil || spec.Kind != "" {
		if err == nil {
			_, _, err = s.tried(env, find.Candidate{File: draft}, "")
		}
		return err
	}
	if err := pair.Same(s.TargetFile, draft); err != nil {
		return err
	}
	_, _, err := s.gainOf(env, find.Candidate{File: draft})
	return err
}

// gainOf returns what a sibling is expected to bring, and how that is known. Errors: Invalid if it does not pay; Weigher.Gain's.
func (s *Setup) gainOf(env Env, c find.Candidate) (gain float64, how string, err error) {
	if gain, how = c.Gain, "measured"; gain == 0 {
		how = "computed"
		if gain, err = placement.NewWeigher(PlanFile(s.PassCosts), env.Version, s.TargetFile, s.KVType).Gain(c.File); err != nil {
			return 0, "", err
		}
	}
	if gain < pair.LeastGain && !s.DraftAnyway {
		err = tandem.Errorf("", tandem.Invalid, "%.2f × plain is what it would bring, %s", gain, how)
	}
	return gain, how, err
}

// tried checks the models with a candidate, and returns what is to be told. Errors: Invalid for one that is not expected to pay, or not
// loaded, and those of route and pair.Pair.Check.
func (s *Setup) tried(env Env, c find.Candidate, prompt string) (p pair.Pair, notes []string, err error) {
	s.DraftFiles = []string{c.File}
	if err := s.route(); err != nil {
		return p, nil, err
	}
	if err := s.earned(env, c.File); err != nil {
		return p, nil, err
	}
	p = s.pair(env)
	p.Same, s.late = true, len(s.files()) > 0
	why := "it lies beside the target"
	if c.Sibling != "" {
		gain, how, err := s.gainOf(env, c)
		if err != nil {
			return p, nil, err
		}
		why = fmt.Sprintf("the small model of %s; %.2g × plain, %s", c.Sibling, gain, how)
	}
	err = p.Check(prompt, func(note string) { notes = append(notes, note) })
	if err == nil && len(p.Heads) == 0 && !slices.ContainsFunc(p.Drafts, func(d string) bool { return d != drafter.Lookup }) {
		err = tandem.Errorf("", tandem.Invalid, "%s", strings.Join(notes, "; "))
	}
	return p, append(notes, fmt.Sprintf("draft %s: %s", terminal.Shown(c.File), why)), err
}
