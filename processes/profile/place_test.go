package profile

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

const ms = time.Millisecond

func costs(of ...time.Duration) (out []tandem.Cost) { // of 1, 2, 4 … rows
	for i, t := range of {
		out = append(out, tandem.Cost{Rows: 1 << i, Context: 128, Time: t})
	}
	return out
}

// TestJudge: of made-up times and lengths, the placement with the most tokens per second is first, each with its best size of chain; what
// is hidden follows from depths, burden and the shorter of both times; the speed is the harmonic mean over texts.
func TestJudge(t *testing.T) {
	chain := []Length{{2, 1.6, 1.6}, {3, 2, 2}, {9, 3, 3}} // the last is wider than what was measured
	depths := []float64{0.8, 0.5}
	slow, quick := costs(100*ms, 120*ms, 160*ms), costs(20*ms, 24*ms, 60*ms)
	all := Judge([]Option{
		{Device: "cpu", Text: "a", Verify: slow},
		{Device: "cpu", DraftDevice: "cpu", Text: "a", Drafter: "d", Lengths: chain, Verify: slow, Draft: 20 * ms, Depths: depths},
		{Device: "cpu", DraftDevice: "cuda", Text: "a", Drafter: "d", Lengths: chain, Verify: slow, Draft: 2 * ms, Depths: depths,
			Apart: true, Burden: 0.1},
		{Device: "cuda", Text: "a", Verify: quick},
		{Device: "cuda", Text: "a", Drafter: "medusa", Lengths: []Length{{4, 2.4, 2.4}}, Verify: quick, Draft: 1 * ms},
		{Device: "cuda", DraftDevice: "cpu", Text: "a", Drafter: "d", Lengths: chain, Verify: quick, Draft: 20 * ms, Depths: depths,
			Apart: true, Burden: 0.9},
	})
	want := []struct {
		device, drafts, drafter string
		nodes                   int
		verify, draft           time.Duration
		hits, hidden            float64 // of the shorter of both
		speed                   float64
	}{
		{"cuda", "", "", 1, 20 * ms, 0, 0, 0, 50},                                   // medusa has 2.4 in 61 ms
		{"cuda", "cpu", "", 1, 20 * ms, 0, 0, 0, 50},                                // drafting 20 ms for 0.6 tokens is not worth it
		{"cpu", "cuda", "d", 3, 140 * ms, 4 * ms, 0.8 * 0.5 * 0.5, 0.1, 2 / 0.1436}, // hidden: 0.2 - 0.1 of 4 ms
		{"cpu", "cpu", "d", 2, 120 * ms, 20 * ms, 0, 0, 1.6 / 0.14},                 // 2 in 180 ms are fewer
		{"cpu", "", "", 1, 100 * ms, 0, 0, 0, 10},
	}
	if len(all) != len(want) {
		t.Fatalf("%d placements, want %d: %+v", len(all), len(want), all)
	}
	for i, w := range want {
		p := all[i]
		r := p.Rounds[0]
		hidden := time.Duration(w.hidden * float64(min(w.verify, w.draft)))
		if p.Device != w.device || p.DraftDevice != w.drafts || r.Drafter != w.drafter || r.Nodes != w.nodes ||
			r.VerifyNS != int64(w.verify) || r.DraftNS != int64(w.draft) || math.Abs(r.Hits-w.hits) > 1e-9 ||
			math.Abs(float64(r.HiddenNS)-float64(hidden)) > 1 || math.Abs(p.TokensPerSecond-w.speed) > 1e-4*w.speed {
			t.Errorf("placement %d is %+v, want %+v", i, p, w)
		}
	}
	d := Decision{Placements: all}
	got := d.Drafts("cuda")
	if got == nil || got.DraftDevice != "cpu" || d.Drafts("cuda:1") != nil || d.Drafts("cpu").DraftDevice != "cuda" {
		t.Errorf("drafts beside a target on cuda: %+v, on cpu: %+v", got, d.Drafts("cpu"))
	}
	two := Judge([]Option{{Device: "cpu", Text: "a", Verify: costs(10 * ms)}, {Device: "cpu", Text: "b", Verify: costs(30 * ms)},
		{Device: "cuda", Text: "a", Verify: costs(1 * ms)}})
	if len(two) != 1 || math.Abs(two[0].TokensPerSecond-50) > 1e-9 || len(two[0].Rounds) != 2 {
		t.Errorf("two texts at 100 and 33 tokens/s, and one that was not measured everywhere: %+v, want 50 for cpu alone", two)
	}
	if none := Judge([]Option{{Device: "cpu", Text: "a"}}); len(none) != 0 {
		t.Errorf("without times: %+v", none)
	}
}

// TestDecisions: divisions and decisions are found for the same box, version, model and device, and the reason is told otherwise.
func TestDecisions(t *testing.T) {
	p := plan(t)
	file := File{"big", 1 << 30, "f16"}
	d, err := p.Decision(thisBox, "1.2", file)
	if err != nil || d.Placements[0].Device != "cuda+cpu" || d.Drafts("cuda+cpu").DraftDevice != "cuda" {
		t.Errorf("%+v, %v", d, err)
	}
	all, err := p.Divisions(thisBox, "1.2", pair)
	if err != nil || len(all) != 2 || all[0].Columns != 0.7 || all[1].Blocks != 0.5 {
		t.Errorf("%+v, %v", all, err)
	}
	other, another := thisBox, pair
	other.Cores = 64
	another.Device = "cpu (avx512, 1 threads) and cpu (avx512, 1 threads)"
	larger := file
	larger.Bytes++
	_, e1 := p.Divisions(other, "1.2", pair)
	_, e2 := p.Divisions(thisBox, "1.3", pair)
	_, e3 := p.Divisions(thisBox, "1.2", another)
	another = pair
	another.Kind = "draft"
	_, e4 := p.Divisions(thisBox, "1.2", another)
	_, e5 := p.Decision(thisBox, "1.3", file)
	_, e6 := p.Decision(thisBox, "1.2", larger)
	for i, c := range []struct {
		err  error
		want string
	}{{e1, "another machine"}, {e2, "by tandem 1.2"}, {e3, "not on 2 of"}, {e4, "divides no passes of a draft"}, {e5, "by tandem 1.2"},
		{e6, "compares no devices for big of 1073741825 bytes"}} {
		if tandem.KindOf(c.err) != tandem.Stale || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%d: %v, want Stale with %q", i, c.err, c.want)
		}
	}
	next := p.Begin(thisBox, "1.2")
	next.Divide(Divided{What: pair, Points: p.Machine.Divided[0].Points[:1]})
	next.Decide(Decision{file, pair.Identity, d.Placements[1:]})
	if m := next.Machine; len(m.Divided) != 1 || len(m.Divided[0].Points) != 1 || len(m.Decisions) != 1 ||
		m.Decisions[0].Placements[0].Device != "cpu" || len(p.Machine.Divided[0].Points) != 2 || next.Validate() != nil {
		t.Errorf("measured again: %+v; the plan before: %+v", m, p.Machine)
	}
}
