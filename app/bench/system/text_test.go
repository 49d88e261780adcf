package system

import (
	"bytes"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestText: what people read of a result that has everything.
func TestText(t *testing.T) {
	variants := []variantResult{
		{Name: "plain", TokS: 41.23, Ratio: ratio{1, 1}, TokensPerRound: 1},
		{Name: "gopher-draft-go-f16 8/4/10", TokS: 112.9, Ratio: ratio{2.738, 2.8}, TokensPerRound: 3.21, PerDepth: 0.61,
			PlanningUS: 12.7, AheadHits: 0.5, PlainRounds: 0.04},
	}
	plain := &suiteResult{Name: "plain", Target: "gopher-19m-q8_0", Seconds: 12.6,
		Drafts: []string{"gopher-draft-go-f16", "gopher-draft-py-f16"},
		Sets:   []setResult{{Name: "go", Variants: variants}}, Notes: []string{"go: time is over after 3 of 4 prompts"},
		Figures: []figure{{"go, any draft: tokens/s over plain", 2.738, ""}, {"coordination p50, ms", 0.45, "of the roles alone"},
			{"minions: planning, share of a round", 0.02, ""}, {"prose", 1.23456, ""}},
		scenarios: []scenarioResult{{}}}
	sweep := &suiteResult{Name: "planner", Target: "gopher-19m-q8_0", Drafts: []string{"gopher-draft-go-f16"}, Seconds: 61,
		Sets: []setResult{{Name: "go", Variants: variants}, {Name: "hostile", Variants: variants[:1]}}, Error: "the verifier died"}
	gib := int64(1 << 30)
	memory := &suiteResult{Name: "memory", Target: "gopher-19m-q8_0", Memory: &memoryResult{Samples: []memorySample{
		{RSS: map[string]int64{"gateway": 30 << 20, "verifier": gib}, Gauges: map[string]int64{}},
		{Rounds: 5000, RSS: map[string]int64{"gateway": 31 << 20, "verifier": gib}, Gauges: map[string]int64{"verifier.kv.pages": 77}},
		{Rounds: 10000, RSS: map[string]int64{"gateway": 31 << 20, "verifier": gib}, Gauges: map[string]int64{"verifier.kv.pages": 0}},
	}}}
	r := Result{
		Scenarios: []scenarioResult{
			{Name: "go", Draft: "any", Sessions: 1, PlainTokS: 41.23, SpecTokS: 112.9, Ratio: 2.738, MedianRatio: 2.8,
				TokensPerRound: 3.21, VerifierBusy: 0.71, Equal: true,
				Choices: map[string]int{"plain": 4, "go 8/4": 96}, Reasons: map[string]int{"best": 99, "probe": 1}},
			{Name: "hostile", Draft: "gopher-draft-py-f16", Sessions: 8, PlainTokS: 40, SpecTokS: 39, Ratio: 0.975},
		},
		Suites: []*suiteResult{plain, sweep, memory}, Coordination: quantiles{P50: 431.2, P99: 1234.5},
		Differ: []string{"gopher-19m-q8_0, go-1 by any draft from token 3"}, Seconds: (time.Minute).Seconds(),
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/system.golden", out.Bytes())
}
