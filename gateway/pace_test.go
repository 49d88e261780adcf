package gateway

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/tandem-llm/tandem"
)

// TestPace: a gateway counts the tokens and time of all rounds, and those of plain decoding among them.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c := w.config()
		w.gw, _ = New(c)
		tokens, rounds := 0, 0
		for _, bounds := range []tandem.Bounds{{Nodes: 8, Depth: 4, Width: 2}, {}} {
			s := &sink{}
			r := tandem.Request{Prompt: "func ", MaxTokens: 40, Sampling: tandem.Sampling{TopP: 1}, Bounds: bounds,
				Strategy: tandem.StrategyFixed}
			res, err := w.gw.Generate(context.Background(), r, s)
			if err != nil {
				t.Fatal(err)
			}
			tokens += len(s.tokens)
			rounds += res.Stats.Choices["plain"]
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		p := w.gw.Pace()
		if p.Tokens != int64(tokens) || p.PlainRounds != int64(rounds) || rounds < 39 || rounds > 41 {
			t.Errorf("counted %+v: want %d tokens, %d rounds of plain decoding", p, tokens, rounds)
		}
		if p.PlainTime <= 0 || p.Time <= p.PlainTime {
			t.Errorf("counted %+v: want time of plain rounds, and more of all", p)
		}
	})
}
