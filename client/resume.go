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
var errOlder = &Error{Kind: Unsupported, Message: "the stream broke off, and this gateway begins anew: it is of a release that cannot take " +
	"streams up"}

// generation is a request of Generate that is under way, over one stream or several.
type generation struct {
	c       *Client
	request *tandemv1.GenerateRequest
	broke   time.Time // when a stream broke off after which no event has come; zero: none did
}

// stream runs the request, and hands on the events that the caller has not. It returns nil when the caller wants no more.
func (g *generation) stream(ctx context.Context, yield func(Event, error) bool) error {
	stream, err := g.c.rpc.Generate(ctx, g.request)
	if err != nil {
		return err
	}
	for next := uint64(0); ; next++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = cut
		}
		if err != nil {
			return err
		}
		e, err := decode(m, next)
		if err != nil {
			return err
		}
		if e.Started != nil && g.request.GetResume() != nil {
			if !m.GetStarted().GetResumed() {
				return errOlder
			}
			continue
		}
		g.broke = time.Time{}
		g.got(e)
		if !yield(e, nil) || e.Finished != nil {
			return nil
		}
	}
}

// got notes what the caller has.
func (g *generation) got(e Event) {
	switch {
	case e.Started != nil:
		g.request.Resume = &tandemv1.Resume{Identity: e.Started.Identity}
		g.request.Sampling.Seed = &e.Started.Seed
	case e.Delta != nil && g.request.GetResume() != nil:
		g.request.Resume.Tokens += uint32(len(e.Delta.Tokens))
		g.request.Resume.Text += uint64(len(e.Delta.Text))
	}
}

// again reports whether a stream that ended with err is to be taken up again, and waits a little before that.
func (g *generation) again(ctx context.Context, err error) bool {
	full := !g.broke.IsZero() && errors.Is(err, Exhausted) // of a gateway that all come back to
	if g.request.GetResume() == nil || !errors.Is(err, Unavailable) && !full {
		return false
	}
	now := time.Now()
	if g.broke.IsZero() {
		g.broke = now
	}
	if now.Sub(g.broke) >= g.c.resume {
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
