package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestPace: a gateway counts the tokens and time of all rounds, and what plain decoding of the answers would have taken.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c := w.config()
		w.gw, _ = New(c)
		tokens, plain := 0, time.Duration(0)
		for _, bounds := range []tandem.Bounds{{Nodes: 8, Depth: 4, Width: 2}, {}} {
			s := &sink{}
			r := tandem.Request{Prompt: "func ", MaxTokens: 40, Sampling: tandem.Sampling{TopP: 1}, Bounds: bounds,
				Strategy: tandem.StrategyFixed}
			res, err := w.gw.Generate(context.Background(), r, s)
			if err != nil {
				t.Fatal(err)
			}
			tokens += len(s.tokens)
			plain += res.Stats.Plain
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		p := w.gw.Pace()
		if p.Tokens != int64(tokens) || p.Plain != plain || plain <= 0 || p.Time <= 0 {
			t.Errorf("counted %+v: want %d tokens, %v of plain decoding", p, tokens, plain)
		}
	})
}
