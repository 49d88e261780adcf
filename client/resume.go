package client

import (
	"context"
	"errors"
	"io"
	"time"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

const (
	resumeFor   = 30 * time.Second       // WithResume's default
	resumePause = 100 * time.Millisecond // between attempts
)

// errOlder is the error of a stream that cannot be taken up.
var errOlder = &Error{Kind: Unsupported, Message: "the stream broke off, and this gateway begins anew: it is of a release that cannot " +
	"take streams up"}

// place says where a request's stream is to be taken up.
type place struct {
	resume *tandemv1.Resume // nil before the first event
	broke  time.Time        // when a stream broke off after which nothing has come; zero: none did
}

// started notes a stream's first event, and reports whether the caller is to have it. Errors: errOlder.
func (p *place) started(m *tandemv1.Started) (first bool, err error) {
	switch {
	case p.resume == nil:
		p.resume = &tandemv1.Resume{Identity: m.GetIdentity(), Seed: m.GetSampling().GetSeed()}
		return true, nil
	case !m.GetResumed():
		return false, errOlder
	}
	return false, nil
}

// came notes text and tokens that the caller has.
func (p *place) came(text, tokens int) {
	p.broke = time.Time{}
	if p.resume != nil {
		p.resume.Text, p.resume.Tokens = p.resume.GetText()+uint64(text), p.resume.GetTokens()+uint32(tokens)
	}
}

// again reports whether a stream that ended with err is to be taken up again, and waits a little before that; most is for how long to try.
func (p *place) again(ctx context.Context, err error, most time.Duration) bool {
	full := !p.broke.IsZero() && errors.Is(err, Exhausted) // of a gateway that all come back to
	if p.resume == nil || !errors.Is(err, Unavailable) && !full {
		return false
	}
	now := time.Now()
	if p.broke.IsZero() {
		p.broke = now
	}
	if now.Sub(p.broke) >= most {
		return false
	}
	pause := resumePause
	if e := (*Error)(nil); errors.As(err, &e) {
		pause = max(pause, e.RetryAfter)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// run runs streams until one returns nil, or an error after which none is taken up.
func (p *place) run(ctx context.Context, c *Client, stream func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		err := c.told(stream(ctx))
		if err == nil || !p.again(ctx, err, c.resume) {
			return err
		}
	}
}

// ended returns the error of a stream that gave err.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return cut
	}
	return err
}

// generation is a request of Generate that is under way, over one stream or several.
type generation struct {
	place
	c       *Client
	request *tandemv1.GenerateRequest
}

// stream runs the request, and hands on the events that the caller has not. It returns nil when the caller wants no more.
func (g *generation) stream(ctx context.Context, yield func(Event, error) bool) error {
	if g.request.Resume = g.resume; g.resume != nil {
		g.request.ReturnProgress = nil // the caller has had its first event
	}
	stream, err := g.c.rpc.Generate(ctx, g.request)
	for next := uint64(0); err == nil; next++ {
		var m *tandemv1.GenerateResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		e, err := decode(m, next)
		if err != nil {
			return err
		}
		if e.Started != nil {
			first, err := g.started(m.GetStarted())
			if err != nil {
				return err
			}
			if !first {
				continue
			}
		}
		if e.Delta != nil {
			g.came(len(e.Delta.Text), len(e.Delta.Tokens))
		}
		if !yield(e, nil) || e.Finished != nil {
			return nil
		}
	}
	return ended(err)
}

// answer is a request of Chat that is under way, over one stream or several.
type answer struct {
	place
	c       *Client
	request *tandemv1.ChatRequest
	events  uint64 // that the caller has
}

// stream runs the request, and hands on the events that the caller has not. It returns nil when the caller wants no more.
func (a *answer) stream(ctx context.Context, yield func(*tandemv1.ChatResponse, error) bool) error {
	if a.request.Resume = a.resume; a.resume != nil {
		a.request.ReturnProgress = nil
	}
	stream, err := a.c.chat.Chat(ctx, a.request)
	for next := uint64(0); err == nil; next++ {
		var m *tandemv1.ChatResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if m.GetSequence() != next {
			return gap(m.GetSequence(), next)
		}
		if s := m.GetStarted(); s != nil {
			first, err := a.started(s.GetStarted())
			if err != nil {
				return err
			}
			if !first {
				continue
			}
		}
		if text, tokens := counts(m); text+tokens > 0 {
			a.came(text, tokens)
		}
		m.Sequence = a.events
		a.events++
		if !yield(m, nil) || m.GetFinished() != nil {
			return nil
		}
	}
	return ended(err)
}

// counts returns how much of an answer an event is, as ChatRequest.resume counts it.
func counts(m *tandemv1.ChatResponse) (text, tokens int) {
	text = len(m.GetText()) + len(m.GetThought()) + len(m.GetArguments().GetJson())
	if m.GetCall() != nil {
		text++
	}
	return text, len(m.GetOutput().GetTokens().GetIds())
}

// own returns a copy of a caller's request, whose field resume may be changed; what it refers to is the caller's.
func own(r *tandemv1.ChatRequest) *tandemv1.ChatRequest {
	return &tandemv1.ChatRequest{Messages: r.GetMessages(), Tools: r.GetTools(), ToolChoice: r.GetToolChoice(),
		ParallelToolCalls: r.ParallelToolCalls, TemplateVariables: r.TemplateVariables, EnableThinking: r.EnableThinking,
		ReasoningEffort: r.ReasoningEffort, ContinueFinalMessage: r.ContinueFinalMessage, MaxTokens: r.MaxTokens,
		Sampling: r.GetSampling(), Speculation: r.GetSpeculation(), IgnoreEos: r.IgnoreEos, FullTrace: r.FullTrace, Stop: r.GetStop(),
		Report: r.Report, Resume: r.GetResume(), CacheSalt: r.GetCacheSalt(),
		ReturnProgress: r.ReturnProgress, Constraint: r.GetConstraint()}
}
