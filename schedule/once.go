package schedule

import (
	"context"

	"github.com/tandem-llm/tandem"
)

// Once calls enter on the owner's goroutine to make sessions, and returns when the prompts of all are in; then they are dropped. So they
// share passes. enter may return sessions beside an error: they are dropped, too. told is as tandem.Opening.Progress; may be nil.
func (s *Schedule) Once(ctx context.Context, told func(tandem.Progress), enter func() ([]Session, error)) error {
	var made []Session
	var calls []*Call
	err := s.owner.Do(ctx, func() (err error) {
		s.rouse()
		made, err = enter()
		s.countEvicted()
		for _, x := range made {
			calls = append(calls, NewCall(ctx))
			s.Enter(x, calls[len(calls)-1])
		}
		return err
	})
	defer s.owner.Post(func() {
		for _, x := range made {
			if s.Holds(x) {
				s.Drop(x, err)
			}
		}
	})
	for i := 0; i < len(calls) && err == nil; i++ {
		err = s.await(calls[i], told)
	}
	return err
}
