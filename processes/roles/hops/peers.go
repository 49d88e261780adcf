package hops

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// drafter implements tandem.Drafter without drafting. It holds nothing of a session, so it takes every proposal.
type drafter struct{ pool tandem.Pool }

// Open implements tandem.Drafter.
func (d drafter) Open(context.Context, tandem.Opening) (tandem.Opened, error) {
	return tandem.Opened{Hindsight: known()}, nil
}

// Propose implements tandem.Drafter.
func (d drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	if len(p.Suffix) == 0 {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.Invalid, "proposal without committed tokens: want the root at least")
	}
	root := p.Suffix[len(p.Suffix)-1]
	t := tree(root, p.Bounds)
	_, depth := t.Depths()
	done := tandem.Proposed{Nodes: t.Len(), Depth: depth, Passes: depth, Tree: tree(root, p.Bounds), Hindsight: known()}
	return done, d.pool.Put(ctx, p.Ticket(Name, t))
}

// Close implements tandem.Drafter.
func (d drafter) Close(context.Context, tandem.SessionID) error { return nil }

// known is as large as hindsight can be.
func known() tandem.Hindsight {
	return tandem.Hindsight{Tokens: tandem.MaxHindsight, Hits: 0xaaaa_aaaa_aaaa_aaaa}
}

// verifier implements tandem.Verifier without a model. Safe for concurrent use.
type verifier struct {
	read     func(time.Duration) error // reads memory for so long
	describe func() tandem.Description
	passes   chan tandem.Ticket // those for which memory is read; one goroutine does it, as one goroutine runs passes

	mu       sync.Mutex
	sessions map[tandem.SessionID]uint64    // their owners
	subs     map[chan tandem.Verdict]uint64 // likewise
}

const (
	mostTickets  = 16  // that wait for memory to be read
	mostVerdicts = 256 // that a subscriber may lag behind
)

// newVerifier returns a verifier, which ends with ctx.
func newVerifier(ctx context.Context, read func(time.Duration) error, describe func() tandem.Description) *verifier {
	v := &verifier{read: read, describe: describe, passes: make(chan tandem.Ticket, mostTickets),
		sessions: map[tandem.SessionID]uint64{}, subs: map[chan tandem.Verdict]uint64{}}
	go v.run(ctx)
	return v
}

// run answers the tickets for which memory is read.
func (v *verifier) run(ctx context.Context) {
	for {
		select {
		case t := <-v.passes:
			_, long := wordOf(t.Tree.Tokens[0])
			begun := time.Now()
			err := v.read(long)
			answer := verdict(t, time.Since(begun))
			if err != nil {
				answer.Kind, answer.Message = tandem.Internal, err.Error()
			}
			v.answer(answer)
		case <-ctx.Done():
			return
		}
	}
}

// Open implements tandem.Verifier.
func (v *verifier) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sessions[o.Session] = o.Owner
	return tandem.Opened{}, nil
}

// Close implements tandem.Verifier.
func (v *verifier) Close(_ context.Context, id tandem.SessionID) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.sessions, id)
	return nil
}

// Submit implements tandem.Verifier.
func (v *verifier) Submit(_ context.Context, t tandem.Ticket) error {
	if t.Tree.Len() > 0 {
		if _, long := wordOf(t.Tree.Tokens[0]); long > 0 {
			select {
			case v.passes <- t:
				return nil
			default:
				return tandem.Errorf(op, tandem.Exhausted, "%d tickets wait already", mostTickets)
			}
		}
	}
	v.answer(verdict(t, 0))
	return nil
}

// answer gives a verdict to the owner of its session. One that lags too far behind loses it.
func (v *verifier) answer(answer tandem.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	owner, held := v.sessions[answer.Session]
	for sub, of := range v.subs {
		if held && of == owner {
			select {
			case sub <- answer:
			default:
			}
		}
	}
}

// Verdicts implements tandem.Verifier.
func (v *verifier) Verdicts(ctx context.Context, s tandem.Subscription) error {
	sub := make(chan tandem.Verdict, mostVerdicts)
	v.mu.Lock()
	v.subs[sub] = s.Owner
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		delete(v.subs, sub)
		v.mu.Unlock()
	}()
	if s.Began != nil {
		s.Began()
	}
	for {
		select {
		case answer := <-sub:
			s.Deliver([]tandem.Verdict{answer})
		case <-ctx.Done():
			return tandem.Errorf(op, tandem.KindOf(ctx.Err()), "subscription to verdicts: %w", ctx.Err())
		}
	}
}

// Describe implements tandem.Verifier.
func (v *verifier) Describe(context.Context) (tandem.Description, error) { return v.describe(), nil }
