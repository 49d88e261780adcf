package pair

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// weigher predicts so many times the speed of the target alone for every draft. Of the draft called useless a profile says something else.
type weigher struct {
	faster  float64
	useless string
}

func (w weigher) Weigh(drafts []string, s kernels.StreamStats) (Weight, error) {
	if len(drafts) == 0 {
		return Weight{Speed: 1}, nil
	}
	return Weight{w.faster, "as the test says"}, nil
}

func (w weigher) Measured(draft string) float64 {
	if draft == w.useless {
		return 1.01
	}
	return 0
}

// TestUselessDraft: a draft that was measured to bring less than a fiftieth is left out, also where there is memory for it.
func TestUselessDraft(t *testing.T) {
	var notes []string
	p := Pair{Target: target, Drafts: []string{draft, "../../../models/gopher-draft-go-f16.gguf"}, Options: engine.Options{
		Device: testdevice.CPU(t, 1)}, Sizes: settings.Sizes{Ctx: 256, Sessions: 1}, Streaming: &roles.Streaming{},
		Weigher: weigher{faster: 2, useless: draft}}
	err := p.Check("", func(note string) { notes = append(notes, note) })
	if err != nil || !slices.Equal(p.Drafts, []string{"../../../models/gopher-draft-go-f16.gguf"}) || len(notes) != 1 ||
		notes[0] != "draft gopher-draft-all-f16 is not loaded: it brings 1.01 x here, as tandem profile measured" {
		t.Errorf("%q, told %q, %v", p.Drafts, notes, err)
	}
}

// TestWeigh: over budgets from too little to plenty, a draft is loaded if nothing is streamed then; else if it is predicted to pay and
// there is memory for it; and what fits without a draft is never refused because of one.
func TestWeigh(t *testing.T) {
	const mib = 1 << 20
	for name, faster := range map[string]float64{"pays": 2, "does not pay": 0.5} {
		seen := map[string]int{}
		for budget := int64(150 * mib); budget < 260*mib; budget += 10 * mib {
			check := func(drafts []string, weigh bool) (Pair, []string, error) {
				p := Pair{Target: target, Drafts: drafts, Sizes: settings.Sizes{Ctx: 256, Sessions: 1},
					Options: engine.Options{Device: testdevice.CPU(t, 1)},
					Streaming: &roles.Streaming{Budget: budget, On: func(d kernels.Device, memory int64) kernels.Streamer {
						return stream.New(d, stream.Config{Memory: memory, Pack: cpu.Pack})
					}}}
				if weigh {
					p.Weigher = weigher{faster: faster}
				}
				var notes []string
				err := p.Check("", func(note string) { notes = append(notes, note) })
				return p, notes, err
			}
			plain, _, none := check(nil, false)
			with, _, failed := check([]string{"lookup", draft}, false)
			got, notes, err := check([]string{"lookup", draft}, true)
			if none != nil {
				if err == nil {
					t.Errorf("%s, %d MiB: runs, and the target alone does not: %v", name, budget/mib, none)
				}
				continue
			}
			what, want := "loaded", with
			if failed != nil || with.Streamed && faster < 1 {
				what, want = "left out", plain
				want.Drafts = []string{"lookup"}
			}
			weighed := failed != nil || with.Streamed
			if err != nil || !slices.Equal(got.Drafts, want.Drafts) || got.Budget != want.Budget || got.Streamed != want.Streamed ||
				weighed != (len(notes) == 1) {
				t.Fatalf("%s, %d MiB: %q with %d bytes, streamed %v, told %q, %v: want %q with %d, %v", name, budget/mib, got.Drafts,
					got.Budget, got.Streamed, notes, err, want.Drafts, want.Budget, want.Streamed)
			}
			if weighed {
				what += " and told"
				if is := strings.Contains(notes[0], "is loaded: "); is != (what == "loaded and told") || strings.Count(notes[0], "\n") > 0 {
					t.Errorf("%s, %d MiB: told %q", name, budget/mib, notes)
				}
			}
			seen[what]++
		}
		want := []string{"left out and told", "loaded"}
		if faster > 1 {
			want = append(want, "loaded and told")
		}
		for _, what := range want {
			if seen[what] == 0 {
				t.Errorf("%s: never %s in %v", name, what, seen)
			}
		}
		t.Log(name, seen)
	}
}
