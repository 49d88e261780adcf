package strategy

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// bench is a pair on a machine: the recorded texts, the name of the draft model, and what passes cost.
type bench struct {
	name, path, draft string
	box               *box
	bars              bars
}

var benches = []bench{
	{"Zen 3", pairRecording, pairDraft, zen3,
		bars{plain: 1, fixed: 0.99, least: 0.78, edit: 0.97, free: 1.07, rates: 0.84, many: 0.98}},
	{"Zen 3, trimmed", pairRecording, trimmedDraft, zen3Trimmed,
		bars{plain: 1.1, fixed: 1.02, least: 0.95, edit: 0.97, free: 1.21, rates: 0.92, many: 0.98}},
	{"AVX-512", pairRecording, pairDraft, pairWide,
		bars{plain: 1.07, fixed: 1.03, least: 0.85, edit: 0.93, free: 1.15, rates: 0.86, many: 0.98}},
	{"poor draft", poorRecording, poorDraft, zen3Small,
		bars{plain: 0.81, fixed: 0.91, least: 0.81, edit: 0.95, free: 0.97, rates: 0.69, many: 0.98}},
}

// bars are what the planner reaches on the half of the texts that no number was chosen by, rounded down. A planner that does better raises
// them.
type bars struct {
	plain float64 // the worst class over plain decoding
	fixed float64 // all texts over the best of five ways of each
	least float64 // the worst text over its best of five
	edit  float64 // edits over the free drafters alone
	free  float64 // all texts over them
	rates float64 // share of the gain of the oracle that knows rates
	many  float64 // sessions that share passes, over plain decoding: the worst of arrivals
}

// texts returns the texts of a bench along which all guesses are recorded: those of the half by which numbers are chosen, or of the other
// half, which only judges.
func (x bench) texts(t testing.TB, verdict bool) (half []*recorded) {
	if readings[x.path] == nil {
		readings[x.path] = readRecording(t, x.path)
	}
	kinds := map[string]int{}
	for _, r := range readings[x.path] {
		if r.target() == nil || r.by(x.draft) == nil {
			continue
		}
		if kinds[r.class]++; kinds[r.class]%2 == 0 == verdict {
			half = append(half, r)
		}
	}
	if len(half) == 0 {
		t.Fatalf("%s: no text of %s has guesses of %q and of the target", x.name, x.path, x.draft)
	}
	return half
}

// readings are the recordings that were read, which nobody changes.
var readings = map[string][]*recorded{}

// fixedWays returns the five named ways of a text: plain, lookup alone, chains of 2 and of 4, and a tree of 8 of the draft model.
func (x bench) fixedWays(r *recorded, lookups *worth.Calibration) map[string]tally {
	b := x.box
	shaped := func(nodes, depth, width int) tally {
		return b.asked(r, x.draft, tandem.Bounds{Nodes: nodes, Depth: depth, Width: width}, nil, worth.NewCalibration())
	}
	plain := tally{tokens: len(r.text), took: time.Duration(len(r.text)) * (b.plain + b.verified.Time(1))}
	return map[string]tally{Plain: plain, lookup: b.asked(r, lookup, tandem.DefaultBounds(tandem.StrategyPlanner), b.curve(), lookups),
		"chain 2": shaped(3, 2, 1), "chain 4": shaped(5, 4, 1), "tree 8": shaped(8, 4, 8)}
}

// curve returns what passes of 1 to 32 rows take.
func (b *box) curve() (verify []time.Duration) {
	for rows := range 32 {
		verify = append(verify, b.verified.Time(rows+1))
	}
	return verify
}

// figures are what a class of texts came to, in the rows of the verdict.
type figures map[string]tally

func (f figures) add(name string, t tally) {
	sum := f[name]
	sum.add(t)
	f[name] = sum
}

// over returns the rate of a row over that of another.
func (f figures) over(name, other string) float64 { return f[name].rate() / f[other].rate() }

// share returns how much of an oracle's gain over plain decoding the planner has.
func (f figures) share(oracle string) float64 {
	return (f.over(rowPlanner, Plain) - 1) / max(f.over(oracle, Plain)-1, 1e-9)
}

// The rows of a verdict, beside plain decoding.
const (
	rowPlanner = "planner"
	rowFree    = "planner, free alone"
	rowFixed   = "best of five for each text"
	rowFair    = "oracle that knows rates"
	rowSeeing  = "oracle that sees"
	rowAll     = "all"
)

// judge replays the texts of a bench. It returns the figures by class, those of all, and of each text. planning returns a new gateway.
func (x bench) judge(t testing.TB, texts []*recorded, rules Rules, oracles bool) (classes []string, by map[string]figures, each []figures) {
	by = map[string]figures{rowAll: {}}
	lookups := worth.NewCalibration()
	ways := map[string]*Shared{rowPlanner: x.gateway(rules), rowFree: x.gateway(rules)}
	names := map[string][]string{rowPlanner: x.everyone(), rowFree: free}
	var seen []*outlook
	if oracles {
		seen = outlooks(texts, x.draft)
	}
	for i, r := range texts {
		of := figures{}
		for row, shared := range ways {
			req := planned()
			req.Sampling.Temperature = r.temperature
			of[row] = x.box.replay(r, req, shared, names[row])
		}
		for way, sum := range x.fixedWays(r, lookups) {
			if of[way] = sum; of[rowFixed].tokens == 0 || sum.rate() > of[rowFixed].rate() {
				of[rowFixed] = sum
			}
		}
		if oracles {
			of[rowFair], of[rowSeeing] = seen[i].known(x.box), seen[i].best(x.box)
			for _, way := range []string{Plain, "chain 2", "chain 4"} { // which are among its own
				if of.over(rowSeeing, way) < 0.9999 {
					t.Errorf("%s, %s: the oracle that sees has %.4f of %s", x.name, r.class, of.over(rowSeeing, way), way)
				}
			}
		}
		if by[r.class] == nil {
			by[r.class], classes = figures{}, append(classes, r.class)
		}
		for name, sum := range of {
			if sum.tokens != len(r.text) {
				t.Errorf("%s, %s, %s: %d tokens of %d", x.name, r.class, name, sum.tokens, len(r.text))
			}
			by[r.class].add(name, sum)
			by[rowAll].add(name, sum)
		}
		each = append(each, of)
	}
	return append(classes, rowAll), by, each
}

// everyone is who drafts by default.
func (x bench) everyone() []string { return append([]string{x.draft}, free...) }

func (x bench) gateway(rules Rules) *Shared {
	shared := NewShared(rules)
	shared.Measured("", x.box.verify)
	shared.PassCosts(x.draft, x.box.drafting) // as a drafter measures them at its start
	return shared
}

// TestVerdict replays the half of the texts that no number was chosen by, and prints for each class the planner beside the best fixed way
// of each text, an oracle that knows the text's rates, and one that sees the text, all over plain decoding.
func TestVerdict(t *testing.T) {
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range benches {
		classes, by, each := x.judge(t, x.texts(t, true), rules, true)
		t.Log(x.name + "\n" + table(classes, by))
		all, reached := by[rowAll], bars{plain: math.Inf(1), least: math.Inf(1)}
		for _, of := range by {
			reached.plain = min(reached.plain, of.over(rowPlanner, Plain))
		}
		for _, of := range each {
			reached.least = min(reached.least, of.over(rowPlanner, rowFixed))
		}
		reached.fixed, reached.free, reached.rates = all.over(rowPlanner, rowFixed), all.over(rowPlanner, rowFree), all.share(rowFair)
		if edits := by["edit"]; edits != nil {
			reached.edit = edits.over(rowPlanner, rowFree)
		}
		x.check(t, reached)
	}
}

// check fails where less is reached than a bar.
func (x bench) check(t testing.TB, reached bars) {
	got, want := reflect.ValueOf(reached), reflect.ValueOf(x.bars)
	line := x.name + ":"
	for i := range got.NumField() {
		name, v, least := got.Type().Field(i).Name, got.Field(i).Float(), want.Field(i).Float()
		if v == 0 {
			continue // not this test's
		}
		if line += fmt.Sprintf(" %s %.3f", name, v); v < least {
			t.Errorf("%s: %s is %.3f: want %v", x.name, name, v, least)
		}
	}
	t.Log(line)
}

// table prints figures over plain decoding.
func table(classes []string, by map[string]figures) string {
	var out strings.Builder
	line := func(name string, v func(figures) float64) {
		fmt.Fprintf(&out, "\n%-36s", name)
		for _, c := range classes {
			fmt.Fprintf(&out, "%10.3f", v(by[c]))
		}
	}
	fmt.Fprintf(&out, "%-36s", "tokens/s over plain")
	for _, c := range classes {
		fmt.Fprintf(&out, "%10s", c)
	}
	for _, row := range []string{rowPlanner, rowFree, lookup, "chain 2", "chain 4", "tree 8", rowFixed, rowFair, rowSeeing} {
		line(row, func(f figures) float64 { return f.over(row, Plain) })
	}
	line("planner over the best of five", func(f figures) float64 { return f.over(rowPlanner, rowFixed) })
	line("planner over free alone", func(f figures) float64 { return f.over(rowPlanner, rowFree) })
	line("share of the gain of rates", func(f figures) float64 { return f.share(rowFair) })
	line("share of the gain of seeing", func(f figures) float64 { return f.share(rowSeeing) })
	return out.String()
}
