package profile

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func madePair() Paired {
	x := Paired{Target: File{"t", 10, "f16"}, Draft: File{"d", 5, "f16"}, Contention: 1.5,
		Identities: [2]tandem.Identity{"9f3a-51c0-0f6e-f16-a1", "8f3a-51c0-0f6e-f16-a1"},
		Verify:     []Point{{Rows: 1, Context: 128, NS: 20e6}, {Rows: 17, Context: 128, NS: 20e6}},
		Passes:     []Point{{Rows: 1, Context: 128, NS: 5e6}},
		Texts:      []PairedText{{Text: "right", Depths: []float64{1, 1, 1, 1}}, {Text: "wrong", Depths: []float64{0, 0}}}}
	x.Judge(16, 0.5, 2*TrimmedTo)
	return x
}

// TestPaired: the gain of two texts is that of reading one after the other, with plain decoding where nothing pays; a trimmed draft takes
// less time. A plan keeps it, finds it by files and by identities, and replaces it.
func TestPaired(t *testing.T) {
	x := madePair()
	// right: 5 tokens in 20 + 4·5 ms, 2.5 times plain; wrong: plain. Trimmed a pass takes 3.75 ms: 4.80 tokens in 35 ms, 2.75 times.
	if g := x.Gain(); x.Texts[0].Chain != 4 || x.Texts[1].Chain != 0 || math.Abs(g-2/(1/2.5+1)) > 1e-9 || math.Abs(x.Trimmed-1.466) > .002 {
		t.Errorf("gain %v, trimmed %v: %+v", g, x.Trimmed, x)
	}
	if d := x.Depths(); len(d) != 4 || d[0] != 0.5 || d[3] != 1 {
		t.Errorf("depths %v", d)
	}
	p := (&Plan{}).Begin(thisBox, "1.2")
	p.Match(x)
	p.Match(x)
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = Decode(b); err != nil || len(p.Machine.Pairs) != 1 {
		t.Fatal(p, err)
	}
	byFile, err := p.Pair(thisBox, "1.2", x.Target, x.Draft)
	byName, more := p.PairOf(thisBox, "1.2", x.Identities[0], x.Identities[1])
	if err != nil || more != nil || byFile != byName || byFile.Gain() != x.Gain() {
		t.Errorf("%+v, %v; %+v, %v", byFile, err, byName, more)
	}
	if _, err := p.Pair(thisBox, "1.3", x.Target, x.Draft); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("of another version: %v", err)
	}
	if _, err := p.Pair(thisBox, "1.2", x.Draft, x.Target); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("of another target: %v", err)
	}
}

// TestPairedRefused: what no profile writes is refused, with the value.
func TestPairedRefused(t *testing.T) {
	for says, change := range map[string]func(*Paired){
		"a contention of 0.5":       func(x *Paired) { x.Contention = 0.5 },
		"a gain of 0.5":             func(x *Paired) { x.Texts[0].Gain = 0.5 },
		"a gain of 0.9 when":        func(x *Paired) { x.Trimmed = 0.9 },
		"depths 1 is 2":             func(x *Paired) { x.Texts[0].Depths[1] = 2 },
		"a chain of 9":              func(x *Paired) { x.Texts[0].Chain = 9 },
		"9 tokens in":               func(x *Paired) { x.Texts[0].Tokens = 9 },
		"no name":                   func(x *Paired) { x.Draft.Name = "" },
		"0 points":                  func(x *Paired) { x.Passes = nil },
		"no identity":               func(x *Paired) { x.Identities[1] = "" },
		"0 rows behind 128":         func(x *Paired) { x.Verify[0].Rows = 0 },
		"of 4 with 0 depths":        func(x *Paired) { x.Texts[0].Depths = nil },
		"a second one of t and d":   nil,
		"tokens in 0 ns with a cha": func(x *Paired) { x.Texts[0].NS = 0 },
	} {
		x := madePair()
		all := []Paired{x}
		if change == nil {
			all = append(all, x)
		} else {
			change(&all[0])
		}
		if err := validPairs(all); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: want Corrupt that says %q", err, says)
		}
	}
}
