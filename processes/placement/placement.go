// Package placement chooses where a target and its drafts compute, by the decision of a profile (tandem profile --device A --device B).
package placement

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Decided returns what the profile in a file decides about a target; nil if it decides nothing, or there is no such profile. version is
// this tandem's. If the profile decides about targets but cannot be used, tell is called with the reason; tell may be nil.
func Decided(file, version, target, kv string, tell func(why error)) *profile.Decision {
	if file == "" {
		return nil
	}
	p, err := profile.Read(file)
	if err != nil || p.Machine == nil || len(p.Machine.Decisions) == 0 {
		return nil // the verifier says what is wrong with a profile
	}
	name, err := FileOf(target, kv)
	if err != nil {
		return nil // loading the model says why
	}
	d, err := p.Decision(profile.ThisBox(), version, name)
	if err != nil {
		if tell != nil {
			tell(err)
		}
		return nil
	}
	return d
}

// Target returns where a decision has the target. Errors: Invalid for what is no device, or is not there.
func Target(d *profile.Decision) (device.Spec, error) {
	return At("device", d.Placements[0].Device)
}

// At reads a device of a placement for the flag --device or --draft-device: what follows a comma and a space are other settings. Errors:
// Invalid for what is no device, or is not there.
func At(flag, at string) (device.Spec, error) {
	p, err := Parse(flag, at)
	switch {
	case err != nil:
		return p, err
	case p.Layers > 0:
		return p, device.CheckLayers(p.Layers)
	}
	return p, device.Check(flag, at)
}

// Parse is At for a device that need not be there.
func Parse(flag, at string) (device.Spec, error) {
	if bytes, layers := strings.CutPrefix(at, "cpu"+device.LayersSetting); layers {
		n, err := strconv.ParseInt(bytes, 10, 64)
		if err != nil || n < 1 || flag != "device" {
			return device.Spec{}, tandem.Errorf("", tandem.Invalid, "%q is no device for --%s", at, flag)
		}
		return device.Spec{Layers: n}, nil
	}
	if _, settings, more := strings.Cut(at, ", "); more {
		return device.Spec{}, tandem.Errorf("", tandem.Invalid, "%s needs more than a device: %s", at, settings)
	}
	p, err := device.Parse(flag, at)
	if err == nil && p.Auto {
		err = tandem.Errorf("", tandem.Invalid, "auto is no device that was measured")
	}
	return p, err
}

// Expected says how many tokens per second a decision expects of its best device for the target, and of the next one.
func Expected(d *profile.Decision) string {
	best := d.Placements[0]
	words := fmt.Sprintf("the plan expects %.0f tokens/s there", best.TokensPerSecond)
	for _, p := range d.Placements {
		if p.Device != best.Device {
			return words + fmt.Sprintf(", and %.0f on %s", p.TokensPerSecond, p.Device)
		}
	}
	return words
}

// Choose calls run with where to compute. flag is the value of --device, threads that of --threads, and d what a profile decides, or nil.
// With auto, the best device of d comes first, then a GPU, if there is one; if run says that this one cannot be used or has not enough
// memory, it is called again with the next, at last with the processor. Each choice of auto is told, with its reason.
func Choose(flag string, threads int, d *profile.Decision, tell func(format string, args ...any), run func(p device.Spec) error) error {
	p, err := device.Parse("device", flag)
	if err != nil {
		return err
	}
	if !p.Auto {
		return run(p)
	}
	if d != nil {
		p, err := Target(d)
		if err == nil {
			err = p.CheckThreads("device", "threads", threads)
		}
		if err == nil {
			tell("--device auto computes on %v: %s", p, Expected(d))
			err = run(p)
			if !device.NoRoom(err) {
				return err
			}
		}
		tell("--device auto does not compute on %s, where the plan has it: %v", d.Placements[0].Device, err)
	}
	chips, err := gpu.Chips()
	if err != nil {
		tell("--device auto computes on the processor: %v", err)
		return run(device.Spec{})
	}
	tell("--device auto computes on cuda:0: %s", device.About(chips[0]))
	err = run(device.Spec{GPU: new(int)})
	if device.NoRoom(err) {
		tell("--device auto computes on the processor instead: %v", err)
		return run(device.Spec{})
	}
	return err
}

// Drafts returns what --draft-device auto stands for beside a target with that --device, by d; threads is the value of --drafter-threads.
// It is auto if d decides nothing about drafts, or has them on the first GPU: a drafter chooses that GPU by itself, and goes on without it
// if it cannot be used.
func Drafts(d *profile.Decision, target string, threads int, tell func(format string, args ...any)) string {
	const auto = "auto"
	at := d.Placements[0].Device
	if target != auto {
		p, err := device.Parse("device", target)
		if err != nil {
			return auto
		}
		at = p.String()
	}
	best := d.Drafts(at)
	if best == nil {
		return auto
	}
	p, err := At("draft-device", best.DraftDevice)
	if err == nil {
		err = p.CheckThreads("draft-device", "drafter-threads", threads)
	}
	switch {
	case err != nil:
		tell("--draft-device auto does not compute on %s, where the plan has the drafts: %v", best.DraftDevice, err)
	case p.String() != "cuda":
		tell("--draft-device auto computes on %v: the plan expects %.0f tokens/s with drafts there", p, best.TokensPerSecond)
		return p.String()
	}
	return auto
}

// FileOf returns how decisions name a target.
func FileOf(path, kv string) (profile.File, error) {
	info, err := engine.Inspect(path)
	if err != nil {
		return profile.File{}, err
	}
	return profile.File{Name: roles.ModelName(path), Bytes: info.FileBytes, KV: kv}, nil
}
