package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// stamped is a pool and a verifier that answers at once and notes when.
type stamped struct {
	echo
	at *time.Time
}

func (s stamped) Submit(ctx context.Context, t tandem.Ticket) error {
	time.Sleep(200 * time.Microsecond) // a pass, in which the gateway's goroutines go to sleep as they do in life
	*s.at = time.Now()
	return s.echo.Submit(ctx, t)
}

// late is a sink that sums up how long after its verdict a token comes.
type late struct {
	deaf
	at  *time.Time
	sum time.Duration
}

func (l *late) Delta(tandem.Delta) error {
	l.sum += time.Since(*l.at)
	return nil
}

// BenchmarkVerdictToSink measures the time from a verdict to its client's sink.
func BenchmarkVerdictToSink(b *testing.B) {
	w := newWorld()
	c := w.config()
	var g *Gateway
	var at time.Time
	x := stamped{echo{g: &g}, &at}
	c.Verifier, c.Drafters, c.Limits.Context = x, nil, 1<<30
	g, _ = New(c)
	s := &late{at: &at}
	if _, err := g.Generate(context.Background(), tandem.Request{Prompt: "x", MaxTokens: b.N, Sampling: tandem.Sampling{TopP: 1}},
		s); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(s.sum.Microseconds())/float64(b.N), "µs/token")
}
