package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/settings"
)

// decided returns where the plan in a file says that a target is best computed; nil if it says nothing, or there is no such plan. say hears
// why a plan that decides about targets is not used; nil: nobody wants to know.
func decided(file, target, kv string, say func(why error)) *profile.Decision {
	if file == "" {
		return nil
	}
	plan, err := profile.Read(file)
	if err != nil || plan.Machine == nil || len(plan.Machine.Decisions) == 0 {
		return nil // the verifier tells what is wrong with a plan
	}
	name, err := fileOf(target, kv)
	if err != nil {
		return nil // loading tells it
	}
	d, err := plan.Decision(profile.ThisBox(), buildVersion().Version, name)
	if err != nil {
		if say != nil {
			say(err)
		}
		return nil
	}
	return d
}

// bestPlace returns the best place of a decision for the target. Errors: Invalid for what is no place, or is not there.
func bestPlace(d *profile.Decision) (place, error) {
	return plannedPlace("device", d.Placements[0].Device)
}

// plannedPlace reads a device of a placement: what follows a comma and a space are other settings.
func plannedPlace(flag, device string) (place, error) {
	if bytes, layers := strings.CutPrefix(device, "cpu"+layersSetting); layers {
		n, err := strconv.ParseInt(bytes, 10, 64)
		if err != nil || n < 1 || flag != "device" {
			return place{}, tandem.Errorf("", tandem.Invalid, "%q is no place for --%s", device, flag)
		}
		return place{layers: n}, gpuHas(settings.GPUShare(n))
	}
	name, settings, more := strings.Cut(device, ", ")
	if more {
		return place{}, tandem.Errorf("", tandem.Invalid, "%s needs more than a device: %s", device, settings)
	}
	if err := checkPlace(flag, name); err != nil {
		return place{}, err
	}
	p, err := parsePlace(flag, name)
	if err == nil && p.auto {
		err = tandem.Errorf("", tandem.Invalid, "auto is no place that was measured")
	}
	return p, err
}

// expected says what a decision expects of its best place, and of the next one for the target.
func expected(d *profile.Decision) string {
	best := d.Placements[0]
	words := fmt.Sprintf("the plan expects %.0f tokens/s there", best.TokensPerSecond)
	for _, p := range d.Placements {
		if p.Device != best.Device {
			return words + fmt.Sprintf(", and %.0f on %s", p.TokensPerSecond, p.Device)
		}
	}
	return words
}

// planned fills in what a plan decides for processes that are started together: where the drafts compute with --draft-device auto. Where
// that is the first GPU the drafter chooses it by itself, and goes on without if it cannot be used.
func (l *launch) planned(say func(format string, args ...any)) {
	if l.Device != "auto" && l.DraftDevice != "auto" {
		return
	}
	l.decision = decided(planFile(l.PassCosts), l.target, l.KVType, nil)
	if l.decision == nil || l.DraftDevice != "auto" || len(l.files()) == 0 {
		return
	}
	device := l.decision.Placements[0].Device
	if l.Device != "auto" {
		p, err := parsePlace("device", l.Device)
		if err != nil {
			return
		}
		device = p.String()
	}
	best := l.decision.Drafts(device)
	if best == nil {
		return
	}
	p, err := plannedPlace("draft-device", best.DraftDevice)
	if err == nil {
		err = p.checkThreads("draft-device", "drafter-threads", l.DrafterThreads)
	}
	switch {
	case err != nil:
		say("--draft-device auto does not compute on %s, where the plan has the drafts: %v", best.DraftDevice, err)
	case p.String() != "cuda":
		say("--draft-device auto computes on %v: the plan expects %.0f tokens/s with drafts there", p, best.TokensPerSecond)
		l.DraftDevice = p.String()
	}
}
