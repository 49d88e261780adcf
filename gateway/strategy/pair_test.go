package strategy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// The real pair on two cores with AVX-512 and with AVX2 alone: what passes of target and draft take (docs/measurements/pair-rounds.md);
// and on a Zen 3, with the draft as received and with a trimmed one, whose passes take as much less at all widths as at one row.
var (
	pairWide = newPairBox(
		passes(1, 24, 2, 26.8, 4, 32, 8, 47.5, 16, 88, 32, 184, 64, 362),
		passes(1, 10.5, 2, 11.9, 4, 13.9, 8, 17.8, 16, 31, 32, 60, 64, 119))
	pairNarrow = newPairBox(
		passes(1, 29.1, 2, 35, 4, 47.5, 8, 78.6, 16, 146, 64, 541),
		passes(1, 11.6, 2, 15.4, 4, 19.7, 8, 33.2, 16, 61.5, 64, 228))
	zen3        = newPairBox(zen3Target, passes(1, 13.4, 2, 14.5, 4, 20, 8, 34, 16, 63.7, 64, 240))
	zen3Trimmed = newPairBox(zen3Target, passes(1, 9, 2, 9.7, 4, 13.4, 8, 22.8, 16, 42.8, 64, 161))
	// SmolLM2-135M and a draft of one block, in proportion: weights and output rows beside those of the 1.5B, with two thirds of the limit
	zen3Small = newPairBox(passes(1, 4.5, 2, 4.9, 4, 6.2, 8, 9, 16, 15, 32, 28, 64, 55),
		passes(1, 1.3, 2, 1.5, 4, 1.9, 8, 2.6, 16, 4.2, 64, 13))
	zen3Target = passes(1, 30, 2, 32.8, 4, 45.6, 8, 77.2, 16, 151, 32, 304, 64, 602)
)

// free are the drafters that need no model.
var free = []string{lookup, recycling}

// passes takes rows and milliseconds in turn.
func passes(table ...float64) (list []tandem.Cost) {
	for p := range slices.Chunk(table, 2) {
		list = append(list, tandem.Cost{Rows: int(p[0]), Time: time.Duration(p[1] * 1e6)})
	}
	return list
}

func newPairBox(verify, draft []tandem.Cost) *box {
	b := newBox()
	b.verify, b.drafting = verify, draft
	b.verified, b.drafted = worth.NewCosts(verify), worth.NewCosts(draft)
	return b
}

// prefill returns how long a model reads a prompt, in passes of 64 rows.
func prefill(c *worth.Costs, tokens int) time.Duration {
	return time.Duration(tokens/64)*c.Time(64) + c.Time(max(tokens%64, 1))
}

// pairWay is a setting of the pair.
type pairWay struct {
	name    string
	request tandem.Request
	names   []string // of the drafters
	fixed   bool     // one of those that the planner is compared with
	fresh   bool     // each text on a gateway of its own
}

// pairWays returns plain decoding, which is the first, chains of the draft model, lookup alone, and the planner.
func pairWays() []pairWay {
	shaped := func(nodes, depth, width int) tandem.Request {
		return tandem.Request{Strategy: tandem.StrategyFixed, Bounds: tandem.Bounds{Nodes: nodes, Depth: depth, Width: width}}
	}
	ways := []pairWay{{name: Plain, request: shaped(0, 0, 0), fixed: true}}
	for n := 1; n <= 6; n++ {
		ways = append(ways, pairWay{name: fmt.Sprint("chain ", n), request: shaped(n+1, n, 1), names: []string{pairDraft}, fixed: true})
	}
	ways = append(ways,
		pairWay{name: "lookup 8/7", request: shaped(8, 7, 8), names: []string{lookup}, fixed: true},
		pairWay{name: "lookup 16/15", request: shaped(16, 15, 8), names: []string{lookup}, fixed: true})
	for _, names := range [][]string{{lookup}, {pairDraft}, {pairDraft, lookup}} {
		ways = append(ways, pairWay{name: "planner, " + strings.Join(names, " and "), request: planned(), names: names})
	}
	return append(ways,
		pairWay{name: "planner, free alone", request: planned(), names: free},
		pairWay{name: "planner, all", request: planned(), names: append([]string{pairDraft}, free...)},
		pairWay{name: "planner, all, each text fresh", request: planned(), names: append([]string{pairDraft}, free...), fresh: true})
}

// run replays all texts, and returns what each came to.
func (w pairWay) run(t testing.TB, b *box, texts []*recorded) (list []tally) {
	t.Helper()
	var shared *Shared
	for _, r := range texts {
		if shared == nil || w.fresh {
			rules, err := Rules{}.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			shared = NewShared(rules)
			shared.Measured("", b.verify)
			shared.PassCosts(pairDraft, b.drafting)
		}
		req := w.request
		req.Sampling.Temperature = r.temperature
		list = append(list, b.replay(r, req, shared, w.names))
	}
	return list
}

// TestRealPair replays answers of the real pair and prints, for each kind of prompt and each setting, tokens a second over plain decoding;
// for the planner also over the best fixed setting of the kind, and the least over that of a single answer. "request": with the prefill of
// all models that are opened. The texts are those for which the target's likeliest tokens are recorded.
func TestRealPair(t *testing.T) {
	texts := slices.DeleteFunc(readRecording(t, pairRecording), func(r *recorded) bool { return r.target() == nil })
	length := 0
	for _, r := range texts {
		length += len(r.text)
	}
	for _, of := range []struct {
		name string
		*box
	}{{"AVX-512", pairWide}, {"AVX2", pairNarrow}, {"Zen 3", zen3}, {"Zen 3, trimmed", zen3Trimmed}} {
		table, all := comparePair(t, of.box, texts)
		t.Log(of.name + "\n" + table)
		for name, sum := range all {
			if sum.tokens != length {
				t.Errorf("%s, %s: %d tokens were replayed: want %d", of.name, name, sum.tokens, length)
			}
			if least := 0.98 * all[Plain].rate(); strings.HasPrefix(name, "planner") && sum.rate() < least {
				t.Errorf("%s, %s: %.2f tokens/s in all: want 0.98 of plain decoding, %.2f", of.name, name, sum.rate(), least)
			}
		}
	}
}

// comparePair returns the table of one machine, and what each setting came to over all texts.
func comparePair(t *testing.T, b *box, texts []*recorded) (table string, all map[string]tally) {
	t.Helper()
	all = map[string]tally{}
	var out strings.Builder
	var kinds []string
	for _, r := range texts {
		if !slices.Contains(kinds, r.class) {
			kinds = append(kinds, r.class)
		}
	}
	fmt.Fprintf(&out, "%-32s", "tokens/s over plain")
	for _, k := range append(kinds, "all", "request") {
		fmt.Fprintf(&out, "%10s", k)
	}
	var plain, best []float64 // tokens/s: by text; the best fixed setting
	var bestOf []float64      // that of each kind, and of all
	for _, w := range pairWays() {
		list := w.run(t, b, texts)
		sums := make([]tally, len(kinds)+1)
		for i, s := range list {
			sums[slices.Index(kinds, texts[i].class)].add(s)
			sums[len(kinds)].add(s)
		}
		all[w.name] = sums[len(kinds)]
		if plain == nil {
			best, bestOf = make([]float64, len(list)), make([]float64, len(sums))
			for _, s := range sums {
				plain = append(plain, s.rate())
			}
			plain = append(plain, sums[len(kinds)].fromRequest())
		}
		fmt.Fprintf(&out, "\n%-32s", w.name)
		for k, s := range sums {
			fmt.Fprintf(&out, "%10.3f", s.rate()/plain[k])
		}
		fmt.Fprintf(&out, "%10.3f", sums[len(kinds)].fromRequest()/plain[len(sums)])
		if w.fixed {
			for i, s := range list {
				best[i] = max(best[i], s.rate())
			}
			for k, s := range sums {
				bestOf[k] = max(bestOf[k], s.rate())
			}
			continue
		}
		fmt.Fprintf(&out, "\n%-32s", "  over the kind's best fixed")
		for k, s := range sums {
			fmt.Fprintf(&out, "%10.3f", s.rate()/bestOf[k])
		}
		least := make([]float64, len(kinds)+1)
		for i, s := range list {
			for _, k := range []int{slices.Index(kinds, texts[i].class), len(kinds)} {
				if r := s.rate() / best[i]; least[k] == 0 || r < least[k] {
					least[k] = r
				}
			}
		}
		fmt.Fprintf(&out, "\n%-32s", "  least over an answer's best")
		for _, v := range least {
			fmt.Fprintf(&out, "%10.3f", v)
		}
	}
	return out.String(), all
}
