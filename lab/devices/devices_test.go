package devices

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// tandemOf answers like a tandem in which drafting takes d of verifying, and a share of the trees had been begun ahead; wrong changes a
// token of one prompt.
type tandemOf struct {
	d, hits float64
	wrong   string
}

func (p tandemOf) Generate(_ context.Context, r tandem.Request, heard func([]tandem.Token)) (out tandem.Result, err error) {
	ids := []tandem.Token{1, 2, 3, 4, 5, 6, 7, 8}
	if r.Prompt == p.wrong {
		ids[5] = 9
	}
	heard(ids[:3])
	heard(ids[3:])
	s := &out.Stats
	s.Rounds, s.VerifyBusy = 8, 8*time.Second
	if !r.Bounds.Plain() {
		s.Rounds, s.VerifyBusy = 4, 4*time.Second
		s.DraftBusy = time.Duration(p.d * float64(s.VerifyBusy))
		if r.Strategy == tandem.StrategyLLMCad && r.Without&tandem.TechniqueAhead == 0 {
			s.AheadHits = int(p.hits * float64(s.Rounds))
			s.DraftBusy = time.Duration((1 - p.hits) * float64(s.DraftBusy))
		}
	}
	s.Decode = s.VerifyBusy + s.DraftBusy
	return out, nil
}

// config measures places that are answered for, in order.
func config(places []Place, answers ...any) Config {
	spec := tandem.Request{MaxTokens: 8, Strategy: tandem.StrategyFixed, Bounds: tandem.DefaultBounds(tandem.StrategyFixed)}
	plain := spec
	plain.Bounds = tandem.Bounds{}
	i := 0
	return Config{Target: "a/target.gguf", Draft: "draft.gguf", Reference: "cpu", Contexts: []int{1}, Steps: 1, Repeat: 1, Places: places,
		Prompts: []prompts.Prompt{{ID: "1", Prompt: "one"}, {ID: "2", Prompt: "two"}}, Plain: plain, Speculating: spec,
		Start: func(_ context.Context, p Place, do func(context.Context, Processes) error) error {
			a := answers[i]
			i++
			if err, failed := a.(error); failed {
				return err
			}
			return do(context.Background(), a.(tandemOf))
		}}
}

// TestPlaces: rates, ids that differ, a place that does not start, and drafting ahead with its bound.
func TestPlaces(t *testing.T) {
	places := []Place{{Name: "cpu alone"}, {Name: "drafts", Ahead: true}, {Name: "absent"}, {Name: "wrong"}, {Name: "small", Ahead: true}}
	r, err := Run(t.Context(), config(places, tandemOf{d: 0.5}, tandemOf{d: 0.5, hits: 0.75}, errors.New("no GPU"),
		tandemOf{wrong: "two"}, tandemOf{d: 0.01, hits: 1}))
	if err != nil {
		t.Fatal(err)
	}
	first, drafts := r.Places[0], r.Places[1]
	if !reflect.DeepEqual([]rateResult{first.Plain, first.Spec}, []rateResult{{16, 1, 1, nil}, {16, 16.0 / 12, 2, nil}}) ||
		!first.Equal || first.Drafts != 1.0/3 {
		t.Errorf("cpu alone: %+v", first)
	}
	want := aheadResult{Drafting: 0.5, Hits: 0.75, InTurn: 16.0 / 12, Ahead: 16.0 / 9, Ratio: 12.0 / 9, Bound: 1.5 / 1.125, Share: 1}
	if a := drafts.Ahead; a == nil || fmt.Sprintf("%.6f", *a) != fmt.Sprintf("%.6f", want) {
		t.Errorf("drafting ahead: %+v: want %+v", a, want)
	}
	if r.Places[2].Error != "no GPU" || r.Places[3].Equal || r.Places[3].Ahead != nil {
		t.Errorf("absent %+v, wrong %+v", r.Places[2], r.Places[3])
	}
	if len(r.Differ) != 4 || r.Differ[0] != "prompt 2: wrong, drafting ahead has other ids than cpu alone, plain from token 6 on" {
		t.Errorf("differ: %q: want each way of decoding", r.Differ)
	}
	if !slices.Equal(r.Failed, []string{"absent: no GPU", "small: drafting ahead can bring 1.010 at most: take a larger draft"}) {
		t.Errorf("failed: %q", r.Failed)
	}
	if err := r.Err(); err == nil || !strings.HasPrefix(err.Error(), "not the same bits: prompt 2: wrong") {
		t.Errorf("error %v: want the bits first", err)
	}
	var text strings.Builder
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NOT THE SAME: prompt 2", "not measured: absent: no GPU", "not run", "of bound"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
}

// TestMissedBar: too little of the bound is a missed bar, and only where the drafts have a processor of their own.
func TestMissedBar(t *testing.T) {
	slow := tandemOf{d: 1, hits: 1}
	for _, own := range []bool{true, false} {
		c := config([]Place{{Name: "p", Ahead: own}}, slow)
		start := c.Start
		c.Start = func(ctx context.Context, p Place, do func(context.Context, Processes) error) error {
			return start(ctx, p, func(ctx context.Context, of Processes) error { return do(ctx, late{of}) })
		}
		r, err := Run(t.Context(), c)
		if err != nil || (len(r.Missed) == 1) != own || (r.Err() != nil) != own {
			t.Errorf("own processor %v: %v, missed %q", own, err, r.Missed)
		}
	}
}

// late wastes what drafting ahead saves.
type late struct{ Processes }

func (l late) Generate(ctx context.Context, r tandem.Request, heard func([]tandem.Token)) (tandem.Result, error) {
	out, err := l.Processes.Generate(ctx, r, heard)
	if out.Stats.AheadHits > 0 {
		out.Stats.Decode *= 2
	}
	return out, err
}

// TestDevices: a real draft on the processor and an emulated GPU has the same bits, and a device that is not there is told.
func TestDevices(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	all := map[string]kernels.Device{"cpu": testdevice.CPU(t, 2), "cores:1": testdevice.CPU(t, 1), "cuda": gpu}
	c := config(nil)
	c.Target, c.Draft = "../../models/gopher-draft-all-f16.gguf", "../../models/gopher-draft-go-f16.gguf"
	c.Devices, c.Contexts = []string{"cores:1", "cuda", "none"}, []int{9}
	c.Open = func(device, path string, o engine.Options) (*engine.Model, func(), error) {
		if o.Device = all[device]; o.Device == nil {
			return nil, nil, fmt.Errorf("no device %s", device)
		}
		m, err := engine.Open(path, o)
		if err != nil {
			return nil, nil, err
		}
		return m, m.Close, nil
	}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Bits) != 6 || len(r.Differ) > 0 || len(r.Failed) != 2 || !strings.Contains(r.Failed[0], "no device none") {
		t.Errorf("%+v, differ %q, failed %q", r.Bits, r.Differ, r.Failed)
	}
	for _, b := range r.Bits {
		if b.Equal != (b.Device != "none") || b.Equal && (b.Passes != 11 || b.Numbers == 0) {
			t.Errorf("%+v", b)
		}
	}
	if s := r.Step; s == nil || s.Device != "cores:1" || s.Times <= 0 || s.Launches != 0 || s.Context != 9 || s.ChainMS != 0 {
		t.Errorf("step %+v", s)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ended, c); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
	for want, change := range map[string]func(c *Config){
		"--context []": func(c *Config) { c.Contexts = nil }, "--context [0]": func(c *Config) { c.Contexts = []int{0} },
		"--rounds 0": func(c *Config) { c.Steps = 0 }, "no prompts": func(c *Config) { c.Places, c.Prompts = []Place{{}}, nil },
	} {
		bad := c
		change(&bad)
		if _, err := Run(t.Context(), bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}
