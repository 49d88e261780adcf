// Package holding serves and makes the calls by which a peer comes to hold a session: streams that tell its progress until it does.
package holding

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
)

// Deadline is the deadline of such a call, only because every call has one: callers give up much earlier, when no progress comes.
const Deadline = 7 * 24 * time.Hour

// Serve answers one call. It runs open, sends each progress that open reports, as the message that progress makes of it, and at the end
// what open returns. ctx ends when the caller is gone. Errors: those of open and of the stream.
func Serve[M any](stream grpc.ServerStreamingServer[M], progress func(tandem.Progress) *M,
	open func(ctx context.Context, told func(tandem.Progress)) (*M, error)) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	begun := false
	send := func(m *M) error {
		if !begun { // a header says that the call was accepted
			begun = true
			if err := stream.SendHeader(metadata.MD{}); err != nil {
				return err
			}
		}
		return stream.Send(m)
	}
	last, err := open(ctx, func(p tandem.Progress) {
		if err := send(progress(p)); err != nil {
			cancel(err) // nobody listens
		}
	})
	if err != nil {
		return err
	}
	return send(last)
}

// Await reads the messages of one call until last returns true for one, and returns that. Errors: those of the stream; Corrupt if it ends
// without such a message.
func Await[M any](stream grpc.ServerStreamingClient[M], last func(*M) bool) (*M, error) {
	if _, err := stream.Header(); err != nil { // from a process of another protocol
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, tandem.Errorf("open", tandem.Corrupt, "the peer ended the call without saying that it holds the session")
		}
		if err != nil {
			return nil, err
		}
		if last(m) {
			_, _ = stream.Recv() // its end; a stream that is given up before counts as broken off
			return m, nil
		}
	}
}
