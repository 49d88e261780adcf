package start

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Checked returns s with what was found out about its models: the fields below "Found out by Checked", and the drafts that pay. r is a
// request like those to come. Call it before Start: it returns an error for what cannot run, before any process is started.
func (s Setup) Checked(env Env, r tandem.Request) (Setup, error) {
	err := s.check()
	if err != nil {
		return s, err
	}
	if s.Heads, err = find.Heads(s.Heads); err != nil {
		return s, err
	}
	if err := s.route(); err != nil {
		return s, err
	}
	s.ownEarned(env)
	p, err := s.fitted(env, r.Prompt)
	s.verifierBudget, s.Streamed, s.inside, s.rows, s.DraftFiles, s.DraftHeads = p.Budget, p.Streamed, p.Inside, p.Rows, p.Drafts,
		p.DraftHeads
	if err == nil && p.Borrows {
		s.borrow(env)
	}
	s.Room = Room{Capacity: modelinfo.Capacity{Fit: p.Fit, Free: p.Free}, target: p.TargetKV, drafts: p.DraftKV}
	if err == nil && s.Room.Cut() {
		env.Say("tandem: %s", s.Room.Shortage())
	}
	if err == nil {
		s.planned(env)
	}
	return s, err
}

// route moves side files that run in the verifier from the drafts to the heads: --draft takes a file of any kind. If no draft is left,
// lookup drafts beside them, unless it is off. Errors: those of engine.SideOf.
func (s *Setup) route() error {
	var drafts []string
	for _, d := range s.DraftFiles {
		var kind side.Kind
		if d != drafter.Lookup {
			spec, err := engine.SideOf(d)
			if err != nil {
				return err
			}
			kind = spec.Kind
		}
		if kind.InVerifier() {
			s.Heads = append(s.Heads, d)
		} else {
			drafts = append(drafts, d)
		}
	}
	if len(drafts) == 0 && len(s.DraftFiles) > 0 && s.Lookup {
		drafts = []string{drafter.Lookup}
	}
	s.DraftFiles = drafts
	return nil
}

// Widen gives a request of the planner bounds for wide trees if the target is streamed; tree is the tree that was named, "" for none.
func (s Setup) Widen(r *tandem.Request, tree string) {
	if s.Streamed && tree == "" && r.Strategy == tandem.StrategyPlanner && !r.Bounds.Plain() {
		r.Bounds = s.wide()
	}
}

// wide returns the bounds of trees for a streamed target: its pass verifies no more nodes.
func (s Setup) wide() tandem.Bounds {
	b := tandem.StreamedBounds
	if s.rows > 0 {
		b.Nodes = min(b.Nodes, s.rows)
	}
	return b
}

// check refuses values that no process accepts.
func (s *Setup) check() error {
	if s.Device == auto && s.GPUMemory > 0 {
		s.Device = "cpu" // with layers on the GPU: that is a place
	}
	for _, f := range []struct {
		device, at, threads string
		n                   int
	}{{"device", s.Device, "verifier-threads", s.VerifierThreads}, {"draft-device", s.DraftDevice, "drafter-threads", s.DrafterThreads}} {
		p, err := device.Parse(f.device, f.at)
		if err = cmp.Or(err, p.CheckThreads(f.device, f.threads, f.n)); err != nil {
			return err
		}
		if err := device.Check(f.device, f.at); err != nil {
			return err
		}
	}
	if err := cmp.Or(s.GPULayers.Check(s.Device), gpuHas(s.GPUMemory)); err != nil {
		return err
	}
	if _, err := PrefixPages(s.Prefixes); err != nil {
		return err
	}
	if !s.Lookup && slices.Contains(s.DraftFiles, drafter.Lookup) {
		return tandem.Errorf("", tandem.Invalid, "--no-lookup, and no draft but %s for this target: want --draft FILE, or --no-draft",
			drafter.Lookup)
	}
	if _, err := s.Beside(s.Prefixes, true); err != nil {
		return err
	}
	_, err := Rules(s.Strategies)
	budget := Budget{s.Budget}
	return cmp.Or(budget.Validate(), budget.On(s.Device, s.GPULayers), CheckPlan(s.PassCosts), err)
}

// Wide makes bounds for wide trees the gateway's default if the target is streamed, the planner chooses and s names no tree.
func (s *Setup) Wide() {
	if planner := string(tandem.StrategyPlanner); s.Streamed && s.Tree == "" && cmp.Or(s.Strategy, planner) == planner {
		s.Strategy, s.Tree = planner, s.wide().String()
	}
}

// CheckPlan returns Invalid if m names the file of a plan and there is none. The default file may be missing.
func CheckPlan(m settings.PassCosts) error {
	if m.Plan == "" || m.Plan == "off" {
		return nil
	}
	if _, err := os.Stat(m.Plan); errors.Is(err, fs.ErrNotExist) {
		return tandem.Errorf("", tandem.Invalid, "--plan %s: no such file: want what 'tandem profile' has written, or off", m.Plan)
	}
	return nil
}

// PlanFile returns the path of the plan to read: the named one or the default, whether or not it is there; "" if plans are off.
func PlanFile(m settings.PassCosts) string {
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
