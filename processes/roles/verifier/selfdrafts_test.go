package verifier

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// TestSelfDrafts: a self-draft has what the plan says of it; a plan of other heads or of another machine is left out, and the log says why.
func TestSelfDrafts(t *testing.T) {
	const sides = "../../../engine/testdata/sides/"
	m, err := engine.Open(sides+"target.gguf", engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 8, KVPages: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	heads := sides + "medusa-shared.gguf"
	if err := m.OpenSide(heads); err != nil {
		t.Fatal(err)
	}
	lineage, err := side.Lineage(t.Context(), heads)
	if err != nil {
		t.Fatal(err)
	}
	c := Setup{Models: roles.Models{Sides: map[string][]string{"target.gguf": {heads}}}}
	c.Target, c.Plan = "target.gguf", "plan.json"
	for name, tc := range map[string]struct {
		lineage string
		cores   int
		known   bool
		timed   bool
		log     string
	}{
		"of these heads":     {lineage, 0, true, true, ""},
		"of other heads":     {strings.Repeat("0", 32), 0, false, false, "is of lineage 0000"},
		"of another machine": {lineage, 1000, true, false, "another machine"},
	} {
		table := profile.Table{Target: m.Names().Lineage, Name: tandem.Medusa, Lineage: tc.lineage, Text: profile.Text{Name: "x",
			Digest: "y", Tokens: 9}}
		if err := json.Unmarshal([]byte(`{"samples": 9}`), &table.Accuracy); err != nil {
			t.Fatal(err)
		}
		for range m.SelfDrafts()[0].Levels {
			table.Accuracy.Own = append(table.Accuracy.Own, tandem.Line{Slope: 2, Bias: -1})
		}
		box := profile.ThisBox()
		box.Cores += tc.cores
		plan := (&profile.Plan{Tables: []profile.Table{table}}).Begin(box, "v")
		plan.Time(profile.Subject{What: profile.What{Kind: tandem.Medusa, Identity: tandem.Identity(tc.lineage), Threads: m.About().Threads,
			Device: m.About().Kernels}, Points: []profile.Point{{Rows: 1, Context: 8, NS: 5e6}}})
		var log bytes.Buffer
		r := &roles.Process{}
		r.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.Version = "v"
		selfDrafts, err := c.selfDrafts(t.Context(), r, m, plan)
		if err != nil || len(selfDrafts) != 1 {
			t.Fatalf("%s: %v, %v", name, selfDrafts, err)
		}
		w := selfDrafts[0]
		if (w.Greedy[0] == tandem.Line{Slope: 2, Bias: -1}) != tc.known || w.Sampled[0] != (tandem.Line{}) || !w.Valid() ||
			(w.Time == 5*time.Millisecond) != tc.timed {
			t.Errorf("%s: %+v", name, w)
		}
		if got := log.String(); !strings.Contains(got, tc.log) || tc.log == "" && got != "" {
			t.Errorf("%s: log %q: want %q", name, got, tc.log)
		}
	}
	selfDrafts, err := c.selfDrafts(t.Context(), nil, m, &profile.Plan{})
	if err != nil || len(selfDrafts) != 1 || selfDrafts[0] != m.SelfDrafts()[0] {
		t.Errorf("without a plan: %v, %v", selfDrafts, err)
	}
}

// TestShippedPlan: the plan beside the shipped target speaks of the side files that are shipped, at temperature 0 and at 1.
func TestShippedPlan(t *testing.T) {
	const models = "../../../models/"
	c := Setup{}
	c.Target, c.Plan = models+"gopher-19m-q8_0.gguf", "none.json"
	c.Models.Sides = map[string][]string{c.Target: {models + "gopher-medusa-q8_0.gguf", models + "gopher-ppd-f16.gguf"}}
	m, err := engine.Open(c.Target, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 8, KVPages: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, side := range c.Models.Sides[c.Target] {
		if err := m.OpenSide(side); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	r := &roles.Process{}
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	selfDrafts, err := c.selfDrafts(t.Context(), r, m, c.plan(r))
	if err != nil || len(selfDrafts) != 2 || log.Len() > 0 {
		t.Fatalf("%v, %v, log %q", selfDrafts, err, log.String())
	}
	for _, w := range selfDrafts {
		for i := range w.Levels {
			if w.Greedy[i] == (tandem.Line{}) || w.Sampled[i] == (tandem.Line{}) {
				t.Errorf("%s, level %d: corrections %v and %v: want both", w.Name, i, w.Greedy[i], w.Sampled[i])
			}
		}
	}
}
