package pull

import (
	"context"
	"os"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/hub"
)

// Service fetches and removes models for the clients of a gateway, from the configured hub and registry alone. What was pulled, by clients
// or by commands, takes at most Most bytes of the disk: a pull that would take more is refused. It counts a transfer under way as a whole.
// The memory that a model needs does not matter: nothing is started. Safe for concurrent use.
type Service struct {
	Puller Puller
	Most   int64
	Served string // path of the model that the gateway serves, which is not removed

	mu     sync.Mutex
	coming map[*hub.Plan]bool
}

// Pull implements httpapi.Models.
func (s *Service) Pull(ctx context.Context, name string, told func(status, digest string, done, total int64)) error {
	n, err := s.Puller.Hub.ParseOf(name)
	if err != nil {
		return err
	}
	if _, ok, err := s.Puller.Hub.Find(n); err != nil || ok {
		return outward(err)
	}
	if err := s.Puller.Hub.Writable(n); err != nil {
		return err
	}
	plan, err := s.Puller.Hub.Plan(ctx, n)
	if err != nil {
		return outward(err)
	}
	defer plan.Close()
	if err := s.admit(plan); err != nil {
		return err
	}
	defer s.left(plan)
	if _, err := s.Puller.Look(ctx, plan); err != nil {
		return outward(err)
	}
	told("pulling manifest", "", 0, 0)
	_, err = s.Puller.Hub.Fetch(ctx, plan, func(done, total int64, _ bool) {
		told("pulling "+plan.Name.String(), plan.Digest(), done, total)
	})
	return outward(err)
}

// admit notes a plan, unless what is pulled would take too much with it.
func (s *Service) admit(plan *hub.Plan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := plan.Size
	for p := range s.coming {
		if p.Digest() != plan.Digest() { // two pulls of one file share it
			want += p.Size
		}
	}
	if taken := s.Puller.Hub.Taken() - plan.Here(); taken+want > s.Most {
		return tandem.Errorf("", tandem.Invalid, "%s has %s, and pulled models take %s already, of at most %s (--allow-pull): "+
			"delete one first", plan.Name, memory.Bytes(plan.Size), memory.Bytes(taken+want-plan.Size), memory.Bytes(s.Most))
	}
	if s.coming == nil {
		s.coming = map[*hub.Plan]bool{}
	}
	s.coming[plan] = true
	return nil
}

func (s *Service) left(plan *hub.Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.coming, plan)
}

// Delete implements httpapi.Models.
func (s *Service) Delete(name string) (found bool, err error) {
	n, err := s.Puller.Hub.ParseOf(name)
	if err != nil {
		return false, err
	}
	f, ok, err := s.Puller.Hub.Find(n)
	if err != nil {
		return true, outward(err)
	}
	served, _ := os.Stat(s.Served) // nil for a shipped model
	if ok && slices.ContainsFunc(f.Files, func(path string) bool {
		st, err := os.Stat(path)
		return err == nil && served != nil && os.SameFile(st, served)
	}) {
		return true, tandem.Errorf("", tandem.Invalid, "%s is the model that is served here: it is not removed", n)
	}
	if !ok && !s.Puller.Hub.Begun(n) {
		return false, nil
	}
	_, err = s.Puller.Hub.Remove(n, false)
	return true, outward(err)
}

// outward returns an error as a client is told it: what a hub's server does wrong is no fault of this one, and its refusal of this server's
// token no refusal of the client's key.
func outward(err error) error {
	switch tandem.KindOf(err) {
	case tandem.Corrupt:
		return &tandem.Error{Kind: tandem.Unavailable, RetryAfter: tandem.RetryAfter(err), Err: err}
	case tandem.Unauthenticated:
		return &tandem.Error{Kind: tandem.Invalid, Err: err}
	}
	return err
}
