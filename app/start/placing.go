package start

import (
	"cmp"
	"errors"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

const (
	auto  = "auto"
	cores = "cpu"
)

// survey finds out where the target and the drafts of processes are fastest, while these serve.
type survey struct {
	kept             profile.Kept
	of               profile.Placed
	target, drafts   bool     // whether each may move
	places, draftsTo []string // where each could be
}

// planned puts the target and the drafts that --device auto and --draft-device auto leave open where the plan has them, else where they
// were measured to be fastest, else on the cores. If processes are to serve on for long, it is then measured what a GPU would bring.
func (s *Setup) planned(env Env) {
	target, drafts := s.Device == auto, s.DraftDevice == auto
	if !target && !drafts {
		return
	}
	chips, _ := env.GPUs() // why there are none, 'tandem version' says
	gpus := device.GPUs(chips)
	say := func(format string, args ...any) { env.Say("tandem: "+format, args...) }
	if s.decision = placement.Decided(PlanFile(s.PassCosts), env.Version, s.TargetFile, s.KVType, nil); s.decision != nil {
		if drafts && len(s.files()) > 0 {
			s.DraftDevice = placement.Drafts(s.decision, s.Device, s.DrafterThreads, say)
		}
		if s.DraftDevice == auto && gpus == "" {
			s.DraftDevice = cores
		}
		return
	}
	if target {
		s.Device = cores
	}
	if drafts {
		s.DraftDevice = cores
	}
	target = target && !s.inside && s.verifierBudget == 0 // a draft beside its target, and a budget, are for where they are
	if drafts = drafts && !s.inside; gpus == "" || !target && !drafts {
		return
	}
	s.orCPU = [2]bool{target, drafts} // also of processes that move later: they keep their command lines
	v := &survey{kept: profile.Kept{Cache: KeepIn(s.CacheDir).Cache, Version: env.Version, GPU: gpus}, target: target, drafts: drafts}
	var err error
	if v.of, err = profile.SeePlaced(s.TargetFile, s.files(), s.KVType); err != nil || v.kept.Cache == "" {
		return // whoever opens the file says what is wrong with it
	}
	placed, err := v.kept.Placed(v.of)
	switch kind := tandem.KindOf(err); {
	case err == nil:
		if to, _, ok := s.moved(v, placed); ok {
			env.Say("tandem: placed as measured: %s", terminal.OneLine(placement.Reason(placed.Placements, placed.Now)))
			if *s = to; s.lends {
				s.lends, _ = s.near(env)
			}
		}
		return
	case kind != tandem.Stale:
		env.Say("tandem: where models were placed is not used, and measured again: %s", terminal.OneLine(err.Error()))
	}
	if s.KeepGateway && s.Measure && v.where(s, chips[0]) {
		s.survey = v
	}
}

// where fills in where both could be; false: nowhere but where they are. A target that the first GPU has no room for could have layers
// there.
func (v *survey) where(s *Setup, chip cuda.Chip) bool {
	if v.target {
		v.places = []string{"cuda", "cuda+cpu"}
		info, err := engine.Inspect(s.TargetFile)
		if err == nil && placement.Needs(info.FileBytes) > placement.Room(chip.Total) {
			v.places = []string{device.Spec{Layers: placement.Room(chip.Total)}.String()}
		}
	}
	if v.drafts && len(s.files()) > 0 {
		v.draftsTo = []string{"cuda"}
	}
	return len(v.places)+len(v.draftsTo) > 0
}

// moved returns s with the target and the drafts where the first of the placements has them that leaves in place what may not move, and
// that placement; false if that is where they are, or cannot be used.
func (s Setup) moved(v *survey, p profile.Placed) (Setup, profile.Placement, bool) {
	for _, best := range p.Placements {
		if !v.target && best.Device != s.Device || !v.drafts && best.DraftDevice != "" && best.DraftDevice != s.DraftDevice {
			continue
		}
		at, err := placement.Parse("device", best.Device)
		if err != nil {
			continue // of another version's making
		}
		to := s
		if to.Device = best.Device; at.Layers > 0 {
			to.Device, to.GPUMemory = cores, settings.GPUShare(at.Layers)
		}
		if best.DraftDevice != "" {
			to.DraftDevice = best.DraftDevice
		}
		return to, best, to.Device != s.Device || to.GPUMemory != s.GPUMemory || to.DraftDevice != s.DraftDevice
	}
	return s, p.Now, false
}

// moving moves the models of running processes to where a survey finds them fastest. Methods run on keepers' goroutines.
type moving struct {
	env   Env
	group processes
	dir   *supervise.RunDir
	addr  string                 // the gateway's
	now   *atomic.Pointer[Setup] // of the processes that there are
}

// processes are what moving needs of those that run: *group.Processes.
type processes interface {
	Add(s supervise.Spec)
	Again(name string)
}

var _ processes = (*group.Processes)(nil)

// begin starts the survey.
func (m *moving) begin() {
	s := m.now.Load()
	c, err := s.children(m.dir, m.addr)
	if err != nil {
		m.say("nothing is measured for --device auto: %v", err)
		return
	}
	v := c.verifier
	v.Listen, v.Verifier = "unix://"+m.dir.File("survey.sock"), []string{c.verifier.Listen}
	args := []string{"--survey-at=" + s.Device, "--survey-drafts-at=" + s.DraftDevice}
	for _, p := range s.survey.places {
		args = append(args, "--survey-place="+p)
	}
	for _, p := range s.survey.draftsTo {
		args = append(args, "--survey-drafts-place="+p)
	}
	for _, d := range s.files() {
		args = append(args, "--survey-draft="+d)
	}
	m.add("survey", "survey", v, args, func(why error) {
		if why == nil {
			m.place(s)
		}
	})
}

// add starts a process of a verifier's settings that is not restarted.
func (m *moving) add(role, name string, v settings.Verifier, args []string, ended func(why error)) {
	line, err := group.Configured(m.dir, name, settings.Marshal(&v))
	if err != nil {
		m.say("%s does not start: %v", name, err)
		return
	}
	line[0] = role
	m.group.Add(supervise.Spec{Name: name, Args: append(line, args...), Late: true, Ended: ended})
}

// place moves what the survey has found to be faster elsewhere: drafts begin anew there, and a target gets a second verifier, which new
// conversations go to while it lives. Where there is no memory for both, the only verifier begins anew.
func (m *moving) place(s *Setup) {
	placed, err := s.survey.kept.Placed(s.survey.of)
	if err != nil {
		return // the survey has said why
	}
	m.say("measured in idle moments: %s", placement.Reason(placed.Placements, placed.Now))
	to, best, moves := s.moved(s.survey, placed)
	if !moves {
		return
	}
	next := *s // the processes that there are already
	next.DraftDevice = to.DraftDevice
	target := to.Device != s.Device || to.GPUMemory != s.GPUMemory
	alone := target && !(shorter(best, placed.Now) && m.beside(s.TargetFile))
	if alone {
		next.Device, next.GPUMemory = to.Device, to.GPUMemory
	}
	m.now.Store(&next)
	if _, err := next.specs(m.dir, m.addr); err != nil {
		m.say("nothing moves: %v", err)
		return
	}
	if to.DraftDevice != s.DraftDevice {
		m.group.Again("drafter")
	}
	switch {
	case alone:
		m.group.Again("verifier")
	case target:
		c, err := to.children(m.dir, m.addr)
		if err != nil {
			m.say("the target does not move: %v", err)
			return
		}
		v := c.verifier
		v.Listen = "unix://" + m.dir.File("placed.sock")
		m.add("verifier", "placed", v, nil, func(why error) {
			m.say("the verifier on the GPU has ended (%v): conversations are answered on the cores again",
				cmp.Or(why, errors.New("it was told to")))
		})
	}
}

// shorter reports whether the target's passes of as many rows are shorter at one placement than at another.
func shorter(at, than profile.Placement) bool {
	for i, r := range at.Rounds {
		if i >= len(than.Rounds) || r.VerifyNS >= than.Rounds[i].VerifyNS || r.Nodes < than.Rounds[i].Nodes {
			return false
		}
	}
	return true
}

func (m *moving) say(format string, args ...any) { m.env.Say("tandem: "+format, args...) }

// beside reports whether there is memory for a target on the first GPU beside the one on the cores.
func (m *moving) beside(path string) bool {
	chips, err := m.env.GPUs()
	if err != nil {
		return false
	}
	info, err := engine.Inspect(path)
	return err == nil && fits(chips[0], info.FileBytes, memory.Free().Bytes)
}

// fits reports whether a model with a file of so many bytes has room on a GPU, if so much of the processor's memory is free.
func fits(c cuda.Chip, file, free int64) bool { return !c.Integrated || placement.Needs(file) < free }
