package grow

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/schedule"
)

// Open opens a session of that kind of draft: see tandem.Drafter. It returns when all tokens but the last that the model will see are in
// the cache; a prefix that other sessions of the tenant have computed is not computed again (engine.Model.NewShared). Further errors:
// Unsupported if the tokens exceed the draft model's context, Stale for an epoch older than the one held, Exhausted if there is no memory
// for them beside the sessions that are held: then there are no drafts for this one until it is opened later.
func (d *Draft) Open(ctx context.Context, kind Kind, o tandem.Opening) (tandem.Opened, error) {
	var s *Session
	opened, err := d.Sched.Open(ctx, o, func() (_ schedule.Session, err error) {
		s, err = d.enter(kind, o)
		return s, err
	})
	if err != nil {
		return opened, err
	}
	if text := s.Parts.Text; text != nil {
		if err = text.Open(ctx, o); err != nil {
			return opened, err
		}
	}
	opened.Identity, opened.Hindsight = d.Config.Model.Names().Identity, s.hindsight
	return opened, nil
}
