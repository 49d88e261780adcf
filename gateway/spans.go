package gateway

import (
	"context"

	"github.com/tandem-llm/tandem"
)

const (
	groupRounds      = 32  // rounds in one StageRounds
	roundSpans       = 6   // of a recorded round: round, draft, send, process, verify, commit
	strayTicketSpans = 3   // of a second ticket in a round, because the drafter's was late: send, process, verify
	openSpans        = 2   // of a recorded prefill: prefill, open
	spansFull        = 580 // beyond, FullTrace records one round in 32 like any other
	spansRound       = 850 // beyond, groups are recorded without a round
	spansGroup       = 930 // beyond, each group is twice as long as the one before
	spansOpen        = 960 // beyond, rebuilding a session is not recorded
)

// spans keeps a request's trace within 1000 spans, however long the request: the further the trace
// has grown, the less is recorded. It counts what the other processes record too.
type spans struct {
	full  bool
	spent int
	size  int // rounds in the latest group
}

// group returns the number of rounds in the next StageRounds.
func (s *spans) group() int {
	s.spent++
	switch {
	case s.size == 0:
		s.size = groupRounds
	case s.spent > spansGroup:
		s.size = min(2*s.size, 1<<30)
	}
	return s.size
}

// round reports whether a round is recorded; first says that it begins its group.
func (s *spans) round(first bool) bool {
	if first && s.spent < spansRound || s.full && s.spent < spansFull {
		s.spent += roundSpans
		return true
	}
	return false
}

// open returns ctx, muted if one more prefill is too much for the trace.
func (s *spans) open(ctx context.Context, e tandem.Events) context.Context {
	if s.spent >= spansOpen {
		return e.Mute(ctx)
	}
	s.spent += openSpans
	return ctx
}
