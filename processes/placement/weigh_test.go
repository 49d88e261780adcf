package placement

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	largeModel = "../../models/gopher-19m-q8_0.gguf"
	smallDraft = "../../models/gopher-draft-go-f16.gguf"
)

// TestWeigh: a pass that reads from the disk takes as long as that; a draft brings tokens to it, those that a profile measured if it has
// the pair.
func TestWeigh(t *testing.T) {
	w := NewWeigher("", "1.2", largeModel, "f16")
	if err := w.measure(); err != nil || w.disk <= 0 || w.limits.ReadBytes <= 0 {
		t.Fatal(w, err)
	}
	w.disk, w.limits = 1e6, kernels.Limits{ReadBytes: 1e10, IntMACs: 1e11, FloatMACs: 1e11}
	streams := kernels.StreamStats{Streamed: 1e7, Ringed: 1e7} // ten seconds a pass
	plain, err := w.Weigh(nil, streams)
	if err != nil || plain.Speed != 0.1 || plain.Why != "" {
		t.Errorf("plain: %+v, %v", plain, err)
	}
	resident, err := w.Weigh(nil, kernels.StreamStats{})
	if err != nil || resident.Speed < 100 {
		t.Errorf("in memory: %+v, %v", resident, err)
	}
	assumed, err := w.Weigh([]string{smallDraft}, streams)
	if err != nil || assumed.Speed < 1/(1-worth.AssumedRight)/10 || assumed.Speed > 0.5 ||
		assumed.Why != fmt.Sprintf("if %v of its tokens are right, with trees of %d", worth.AssumedRight, widestTree) {
		t.Errorf("assumed: %+v, %v", assumed, err)
	}
	if w.Measured(smallDraft) != 0 {
		t.Error("a gain that nobody measured")
	}

	target, err := FileOf(largeModel, "f16")
	if err != nil {
		t.Fatal(err)
	}
	draft, err := FileOf(smallDraft, "f16")
	if err != nil {
		t.Fatal(err)
	}
	x := profile.Paired{Target: target, Draft: draft, Identities: [2]tandem.Identity{"9f3a-51c0-0f6e-f16-a1", "8f3a-51c0-0f6e-f16-a1"},
		Verify: []profile.Point{{Rows: 1, Context: 1, NS: int64(time.Millisecond)}, {Rows: 3, Context: 1, NS: int64(time.Millisecond)}},
		Passes: []profile.Point{{Rows: 1, Context: 1, NS: int64(time.Millisecond)}},
		Texts:  []profile.PairedText{{Text: "a", Depths: []float64{1, 1}}}}
	x.Judge(16, 0.5, 100)
	plan := (&profile.Plan{}).Begin(profile.ThisBox(), "1.2")
	plan.Match(x)
	file := filepath.Join(t.TempDir(), profile.Name)
	if err := plan.Write(file); err != nil {
		t.Fatal(err)
	}
	w.plan = NewWeigher(file, "1.2", largeModel, "f16").plan
	measured, err := w.Weigh([]string{smallDraft}, streams)
	if err != nil || measured.Why != "as tandem profile measured them, with trees of 3" || measured.Speed < 0.29 || measured.Speed > 0.3 {
		t.Errorf("measured: %+v, %v: want three tokens in ten seconds", measured, err)
	}
	if got := w.Measured(smallDraft); got != x.Gain() {
		t.Errorf("a gain of %v: want %v", got, x.Gain())
	}
	if line := Brings(file, "1.2")(string(x.Identities[0]), string(x.Identities[1])); line != x.String() || line == "" {
		t.Errorf("says %q", line)
	}
	if line := Brings(file, "1.2")("other", string(x.Identities[1])); line != "" {
		t.Errorf("says %q of another target", line)
	}
}
