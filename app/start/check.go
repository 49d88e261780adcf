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
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Checked returns l with what was found out about its models. It refuses what cannot run before any process is started.
func (l Launch) Checked(env Env, r tandem.Request) (Launch, error) {
	err := l.check()
	if err != nil {
		return l, err
	}
	if l.Heads, err = find.Heads(l.Heads); err != nil {
		return l, err
	}
	p := pair.Pair{Target: l.TargetFile, Drafts: l.DraftFiles, Heads: l.Heads, DraftHeads: l.DraftHeads,
		Sizes:    settings.Sizes{Ctx: l.Ctx, Sessions: l.AtOnce},
		Options:  engine.Options{Device: device.Planner(), KVType: l.KVType},
		KVMemory: l.KVMemory.Bytes(),
		Features: int64(l.FeatureMemory) << 20, Own: l.ownMemory(),
		Streaming: Budget{l.Budget}.Streaming(env, l.Device, l.GPULayers, l.CacheFolder)}
	if !l.DraftAnyway {
		p.Weigher = placement.NewWeigher(PlanFile(l.PassCosts), env.Version, l.TargetFile, l.KVType)
	}
	say := func(note string) { env.Say("tandem: %s", note) }
	err = p.Check(r.Prompt, say)
	l.verifierBudget, l.Streamed, l.DraftFiles, l.DraftHeads = p.Budget, p.Streamed, p.Drafts, p.DraftHeads
	l.Room = Room{Capacity: modelinfo.Capacity{Fit: p.Fit, Free: p.Free}, target: p.TargetKV, drafts: p.DraftKV}
	if err == nil && l.Room.Cut() {
		say(l.Room.Shortage())
	}
	l.planned(env)
	return l, err
}

// Widen gives the planner room for wide trees where the target is streamed, unless a tree is named.
func (l Launch) Widen(r *tandem.Request, tree string) {
	if l.Streamed && tree == "" && r.Strategy == tandem.StrategyPlanner && !r.Bounds.Plain() {
		r.Bounds = tandem.StreamedBounds
	}
}

// check refuses values that no process accepts.
func (l Launch) check() error {
	for _, f := range []struct {
		device, at, threads string
		n                   int
	}{{"device", l.Device, "verifier-threads", l.VerifierThreads}, {"draft-device", l.DraftDevice, "drafter-threads", l.DrafterThreads}} {
		p, err := device.Parse(f.device, f.at)
		if err = cmp.Or(err, p.CheckThreads(f.device, f.threads, f.n)); err != nil {
			return err
		}
		if err := device.Check(f.device, f.at); err != nil {
			return err
		}
	}
	if err := cmp.Or(l.GPULayers.Check(l.Device), gpuHas(l.GPUMemory)); err != nil {
		return err
	}
	if _, err := PrefixPages(l.Prefixes); err != nil {
		return err
	}
	if !l.Lookup && slices.Contains(l.DraftFiles, drafter.Lookup) {
		return tandem.Errorf("", tandem.Invalid, "--no-lookup, and no draft but %s for this target: want --draft FILE, or --no-draft",
			drafter.Lookup)
	}
	if _, err := l.Beside(l.Prefixes, true); err != nil {
		return err
	}
	_, err := Rules(l.Strategies)
	budget := Budget{l.Budget}
	return cmp.Or(budget.Validate(), budget.On(l.Device, l.GPULayers), CheckPlan(l.PassCosts), err)
}

// Wide gives the planner of a server whose target is streamed room for wide trees, unless a tree is named.
func (l *Launch) Wide() {
	if planner := string(tandem.StrategyPlanner); l.Streamed && l.Tree == "" && cmp.Or(l.Strategy, planner) == planner {
		l.Strategy, l.Tree = planner, tandem.StreamedBounds.String()
	}
}

// planned asks the plan for processes that are started together where the target computes, and with --draft-device auto where the drafts
// do.
func (l *Launch) planned(env Env) {
	if l.Device != "auto" && l.DraftDevice != "auto" {
		return
	}
	l.decision = placement.Decided(PlanFile(l.PassCosts), env.Version, l.TargetFile, l.KVType, nil)
	if l.decision != nil && l.DraftDevice == "auto" && len(l.files()) > 0 {
		l.DraftDevice = placement.Drafts(l.decision, l.Device, l.DrafterThreads,
			func(format string, args ...any) { env.Say("tandem: "+format, args...) })
	}
}

// CheckPlan refuses a plan that somebody has named and that is not there; the default one may be missing.
func CheckPlan(m settings.PassCosts) error {
	if m.Plan == "" || m.Plan == "off" {
		return nil
	}
	if _, err := os.Stat(m.Plan); errors.Is(err, fs.ErrNotExist) {
		return tandem.Errorf("", tandem.Invalid, "--plan %s: no such file: want what 'tandem profile' has written, or off", m.Plan)
	}
	return nil
}

// PlanFile returns the file of the plan to look for; "" for none.
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
