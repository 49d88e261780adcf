package settings

import "github.com/tandem-llm/tandem"

const (
	// DefaultSessions is how many sessions a process holds by default.
	DefaultSessions = 8
	mostSessions    = 4096
)

// Sizes bound what a process holds at once.
type Sizes struct {
	Ctx      int `help:"Longest session in tokens; 0 = the model's context. The prompt counts." default:"0" group:"Memory"`
	Sessions int `help:"Sessions held at once; 0 = 8, for generate 1." default:"0" group:"Memory"`
}

// Check refuses impossible sizes.
func (s Sizes) Check() error {
	switch {
	case s.Ctx < 0 || s.Ctx == 1:
		return tandem.Errorf("", tandem.Invalid, "--ctx is %d: want at least 2, or 0 for the model's context", s.Ctx)
	case s.Sessions < 0 || s.Sessions > mostSessions:
		return tandem.Errorf("", tandem.Invalid, "--sessions is %d: want 1 to %d, or 0 for the default", s.Sessions, mostSessions)
	}
	return nil
}

// OrDefault returns s with DefaultSessions in place of 0 sessions.
func (s Sizes) OrDefault() Sizes {
	if s.Sessions == 0 {
		s.Sessions = DefaultSessions
	}
	return s
}

// ContextOf returns the longest session, in tokens, of a model whose context is that many.
func (s Sizes) ContextOf(model int) int {
	if s.Ctx == 0 || s.Ctx > model {
		return model
	}
	return s.Ctx
}
