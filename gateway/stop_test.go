package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// cutAt is what stops are to do, by a search of the whole text.
func cutAt(text string, sequences []string) (kept, stopped string) {
	kept = text
	for _, q := range sequences {
		if i := strings.Index(text, q); i >= 0 && (stopped == "" || i < len(kept) || i == len(kept) && len(q) < len(stopped)) {
			kept, stopped = text[:i], q
		}
	}
	return kept, stopped
}

// TestStopSequences: a request ends before the first stop sequence of its plain text, whatever drafts; what was
// generated until then counts, the rest of its verdict does not come.
func TestStopSequences(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := genRequest(rt)
		r.Bounds = tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}
		eosEvery := rapid.SampledFrom([]uint64{0, 30}).Draw(rt, "eos")
		faults := genFaults(rt, 3)
		w := newWorld()
		w.quiet, w.faults, w.eosEvery = true, faults, eosEvery
		plain, text, finish := w.plain(r, 1000)
		for range rapid.IntRange(1, tandem.MostStops).Draw(rt, "sequences") {
			runes := []rune(text + "#")
			at := rapid.IntRange(0, len(runes)-1).Draw(rt, "from")
			q := string(runes[at:min(len(runes), at+rapid.IntRange(1, 4).Draw(rt, "length"))])
			if rapid.IntRange(0, 3).Draw(rt, "other") == 0 {
				q += "#"
			}
			r.Stop = append(r.Stop, q)
		}
		want, by := cutAt(text, r.Stop)
		var problem string
		synctest.Test(t, func(*testing.T) {
			g, err := New(w.config())
			if err != nil {
				problem = err.Error()
				return
			}
			w.gw = g
			s := &sink{}
			res, err := g.Generate(context.Background(), r, s)
			w.flights.Wait()
			if shut := g.Shutdown(context.Background()); shut != nil {
				problem = shut.Error()
				return
			}
			expect := finish
			if by != "" {
				expect = tandem.FinishStop
			}
			n := len(s.tokens)
			switch {
			case err != nil:
				problem = fmt.Sprintf("request failed: %v", err)
			case s.text != want || res.Stopped != by || res.Finish != expect:
				problem = fmt.Sprintf("text %q with %q ends as %q by %q, %s: want %q, %q, %s", text, r.Stop, s.text, res.Stopped,
					res.Finish, want, by, expect)
			case n > len(plain) || !slices.Equal(s.tokens, plain[:n]) || by == "" && n != len(plain):
				problem = fmt.Sprintf("tokens %v are no beginning of %v", s.tokens, plain)
			case by != "" && n > 1 && ends(s.tokens[:n-1], r.Stop):
				problem = fmt.Sprintf("stopped by %q after %d tokens although it was certain before", by, n)
			case res.OutputTokens != n || res.Stats.Accepted+res.Stats.Rounds != n || s.drafts != res.Stats.Accepted:
				problem = fmt.Sprintf("%d tokens, counted as %d, %d accepted in %d rounds", n, res.OutputTokens, res.Stats.Accepted,
					res.Stats.Rounds)
			}
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// ends reports whether it is certain after those tokens where the text ends: a sequence is there, and no other
// that begins before it can still come.
func ends(tokens []tandem.Token, sequences []string) bool {
	var d fakeDecoder
	text := ""
	for _, t := range tokens {
		if t != eos {
			text += d.Next(t)
		}
	}
	kept, by := cutAt(text, sequences)
	if by == "" {
		return false
	}
	for at := range kept {
		for _, q := range sequences {
			if strings.HasPrefix(q, text[at:]) {
				return false
			}
		}
	}
	return true
}
