package gateway

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// repeated is the rule, read from its words: the last limit tokens repeat one piece of at most MostPiece.
func repeated(tokens []tandem.Token, limit int) bool {
	if limit == 0 || len(tokens) < limit {
		return false
	}
	last := tokens[len(tokens)-limit:]
piece:
	for p := 1; p <= tandem.MostPiece; p++ {
		for i := p; i < limit; i++ {
			if last[i] != last[i-p] {
				continue piece
			}
		}
		return true
	}
	return false
}

// TestRepeats: a text that comes in rounds of any lengths ends at the token at which the rule first holds, in the middle of a round too;
// one of random tokens, and one that repeats a longer piece, does not end.
func TestRepeats(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		piece, limit := rapid.IntRange(1, tandem.MostPiece+6).Draw(rt, "piece"), rapid.IntRange(tandem.MinRepeats, 300).Draw(rt, "limit")
		from, off := rapid.IntRange(0, 200).Draw(rt, "from"), rapid.IntRange(0, 600).Draw(rt, "off")
		kinds := rapid.SampledFrom([]int{1, 2, 300}).Draw(rt, "kinds") // of tokens
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		all := make([]tandem.Token, 700)
		for i := range all {
			if all[i] = tandem.Token(r.IntN(kinds)); i >= from+piece && i != off {
				all[i] = all[i-piece]
			}
		}
		want := len(all)
		for n := range all {
			if repeated(all[:n+1], limit) {
				want = n + 1
				break
			}
		}
		x, got := repeats{limit: limit}, 0
		for got < len(all) {
			round := all[got:min(got+rapid.IntRange(1, 65).Draw(rt, "round"), len(all))]
			n, found := x.until(all[:got], round)
			if got += n; found == 0 && n != len(round) {
				rt.Fatalf("%d of %d tokens are taken of a text that goes on", n, len(round))
			}
			if found != 0 {
				break
			}
		}
		if got != want {
			rt.Fatalf("it ends at %d, want %d", got, want)
		}
	})
}

// TestRepeatsEndTheText: whatever is drafted and whatever fails, a request that repeats itself says what plain decoding says up to the
// token at which the rule holds, and says why it ended. Without the rule it goes on.
func TestRepeatsEndTheText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := genRequest(rt)
		r.MaxTokens, r.Repeats = 500, rapid.SampledFrom([]int{0, tandem.MinRepeats, 200}).Draw(rt, "repeats")
		faults, loop := genFaults(rt, 2), rapid.IntRange(0, tandem.MostPiece+6).Draw(rt, "loop")
		from, off := rapid.IntRange(0, 60).Draw(rt, "from"), rapid.IntRange(0, 300).Draw(rt, "off")
		var problem string
		synctest.Test(t, func(*testing.T) {
			w := newWorld()
			w.quiet, w.faults, w.loop, w.loopFrom, w.loopBreak = true, faults, loop, from, off
			c := w.config()
			rec := &recorder{}
			c.Limits.Context, c.Events = 600, rec.events()
			problem = faulty(w, c, rec, r, nil)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// TestRepeatsAreTold: the result says how long the piece is, and a counter counts the text.
func TestRepeatsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []int{0, 200} {
			w := newWorld()
			w.quiet, w.loop, w.loopFrom = true, 7, 20
			c := w.config()
			c.Counters = new(tandem.Counters)
			w.gw, _ = New(c)
			res, err := w.gw.Generate(context.Background(), tandem.Request{Prompt: "x", MaxTokens: 400, Repeats: limit,
				Sampling: tandem.Sampling{TopP: 1}, Bounds: tandem.Bounds{Nodes: 16, Depth: 8, Width: 2}}, new(sink))
			piece, texts, least := 7, int64(1), 200
			if limit == 0 {
				piece, texts, least = 0, 0, 400
			}
			counted := c.Counters.Snapshot()["texts.repeated"]
			if err != nil || res.Finish != tandem.FinishLength || res.Repeated != piece || counted != texts ||
				res.OutputTokens < least || limit > 0 && res.OutputTokens > 230 {
				t.Errorf("limit %d: %d tokens, %q, a piece of %d, %v", limit, res.OutputTokens, res.Finish, res.Repeated, err)
			}
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		}
	})
}
