package start

import (
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/spec/worth"
)

// named reports whether somebody has named a draft.
func (s *Setup) named() bool {
	return slices.ContainsFunc(s.Draft, func(d string) bool { return d != "" })
}

// judged returns the only draft model, beside a target that somebody has named: "" if there are none or several, or both are shipped.
func (s *Setup) judged() string {
	if all := s.files(); len(all) == 1 && s.Target != "" {
		return all[0]
	}
	return ""
}

// earnings returns what is kept of drafts on this box, and how the target and a draft look now.
func (s *Setup) earnings(env Env, draft string) (k profile.Kept, target, d profile.Sighting, err error) {
	k = profile.Kept{Cache: KeepIn(s.CacheDir).Cache, Version: env.Version}
	if target, err = profile.See(s.TargetFile); err == nil {
		d, err = profile.See(draft)
	}
	return k, target, d, err
}

// earned returns Invalid if a draft that tandem has found itself is remembered not to pay here.
func (s *Setup) earned(env Env, draft string) error {
	k, target, d, err := s.earnings(env, draft)
	if err != nil || s.DraftAnyway {
		return nil // whoever opens the file says what is wrong with it
	}
	e, _ := k.Earned(target, d) // what cannot be read does not count
	if e.Useless(pair.LeastGain) {
		return tandem.Errorf("", tandem.Invalid, "%v; --draft %s has it draft nevertheless", e, terminal.Shown(draft))
	}
	return nil
}

// ownEarned leaves the draft in the target's own file, which nobody has named, if it is remembered not to pay.
func (s *Setup) ownEarned(env Env) {
	own := s.judged()
	if own == "" || s.named() || !s.Lookup {
		return
	}
	if err := s.earned(env, own); err != nil {
		env.Say("tandem: draft %s is left: %s", terminal.Shown(own), terminal.OneLine(err.Error()))
		s.DraftFiles = []string{drafter.Lookup}
	}
}

// heard returns what takes the gateway's word on each answer: the first is passed on, and drafts are judged.
func (s *Setup) heard(env Env) func(p *group.Processes, line string) {
	judge, first := s.judge(env), sync.OnceFunc(func() {
		if s.Answered != nil {
			s.Answered()
		}
	})
	return func(p *group.Processes, line string) {
		e, ok := worth.ParseEarned(line)
		if ok && judge != nil && e.Counts() {
			judge(p, e)
		}
		if ok {
			first()
		}
	}
}

// judge returns what hears of each answer what draft models brought to it, and remembers that. A draft that does not pay is closed if
// tandem has found it itself; one that was named stays, and a line says so. nil: there is no such draft.
func (s *Setup) judge(env Env) func(p *group.Processes, now worth.Earned) {
	draft := s.judged()
	if draft == "" {
		return nil
	}
	k, target, d, err := s.earnings(env, draft)
	if err != nil {
		return nil
	}
	told := new(sync.Once)
	return func(p *group.Processes, now worth.Earned) {
		sum, err := k.Earn(target, d, now)
		if !sum.Useless(pair.LeastGain) {
			return
		}
		told.Do(func() {
			switch {
			case s.named() || s.DraftAnyway:
				env.Say("tandem: draft %s does not pay: %v; it stays, since it was asked for", terminal.Shown(draft), sum)
				return
			case err != nil:
				env.Say("tandem: it cannot be remembered what drafts bring: %s", terminal.OneLine(err.Error()))
			}
			if s.inside {
				env.Say("tandem: draft %s does not pay: %v; it stays in the verifier's process until that ends, and the next start leaves "+
					"it; --draft %s keeps it", terminal.Shown(draft), sum, terminal.Shown(draft))
				return
			}
			p.End("drafter")
			env.Say("tandem: draft %s is closed, and its memory given back: %v; lookup and recycling go on, and --draft %s keeps it",
				terminal.Shown(draft), sum, terminal.Shown(draft))
		})
	}
}
