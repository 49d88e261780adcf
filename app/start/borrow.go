package start

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/roles"
)

// lender reports whether the target has packed weights in memory that other processes can map: it computes on the cores, and is a file.
func (s Setup) lender() bool {
	target, _, err := s.places()
	return err == nil && !s.Streamed && s.GPUMemory == 0 && onCores(target) && !strings.HasPrefix(s.TargetFile, gguf.Builtin)
}

// onCores reports whether p is cores alone that compute each pass together.
func onCores(p device.Spec) bool { return p.GPU == nil && p.Right == nil && p.Layers == 0 }

// near reports whether drafts compute where they can read weights of the target: on the cores, or on a GPU that shares their memory. why
// says what a GPU lacks for it.
func (s Setup) near(env Env) (yes bool, why error) {
	_, drafts, err := s.places()
	switch {
	case err != nil || !s.lender():
		return false, nil
	case onCores(drafts):
		return true, nil
	case drafts.Right != nil:
		return false, fmt.Errorf("%s wants its bytes in another order", s.DraftDevice)
	}
	chips, err := env.GPUs()
	if err == nil && *drafts.GPU < len(chips) {
		err = chips[*drafts.GPU].Borrows()
	}
	return err == nil, err
}

// borrow decides how a draft gets at the target's output matrix, by which it multiplies: it maps that, or runs in the target's process if
// both are on one GPU. Else it has a copy, and a line says why.
func (s *Setup) borrow(env Env) {
	target, drafts, err := s.places()
	if err != nil || s.inside {
		return
	}
	alone := func(p device.Spec) bool { return p.GPU != nil && p.Right == nil }
	if alone(target) && alone(drafts) && *target.GPU == *drafts.GPU && len(s.files()) == 1 {
		s.inside = true
		env.Say("tandem: draft %s runs in its target's process: there both multiply by one output matrix", roles.ModelName(s.files()[0]))
		return
	}
	var why error
	if s.lends, why = s.near(env); why != nil {
		env.Say("tandem: drafts have copies of their target's output matrix: %v", why)
	}
}
