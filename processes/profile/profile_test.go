package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/spec/shape"
)

const (
	targetLineage = "0123456789abcdef0123456789abcdef"
	headsLineage  = "00000000000000000000000000000001"
)

var (
	thisBox = Box{CPU: "AMD EPYC", Cores: 2, Memory: 24, System: "linux/amd64"}
	what    = What{Kind: "target", Identity: "9f3a-51c0-0f6e-q8_0-a1", Threads: 2, Device: "avx512"}
	pair    = What{Kind: "target", Identity: what.Identity, Threads: 2, Device: "cuda (sm_90, 0 threads) and cpu (avx512, 2 threads)"}
)

// plan returns a plan with every part.
func plan(t testing.TB) *Plan {
	t.Helper()
	c, err := shape.NewCounts(3, 4)
	if err != nil {
		t.Fatal(err)
	}
	c.Add(shape.Sample{Ranks: []int8{0, 1, -1}})
	accept := make([]float64, tandem.AcceptBins())
	accept[0] = 0.9
	text := Text{Name: "go", Digest: "abc", Tokens: 1000}
	return &Plan{Format: Format,
		Machine: &Machine{Box: thisBox, Version: "1.2", Measured: time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC),
			Subjects: []Subject{{what, Points([]tandem.Cost{{Rows: 8, Context: 128, Time: 20 * time.Millisecond},
				{Rows: 1, Context: 128, Time: 10 * time.Millisecond}, {Rows: 1, Context: 0, Time: 9 * time.Millisecond}})}},
			Divided: []Divided{{MeetingNS: 700, What: pair, Points: []DividedPoint{
				{kernels.Division{Rows: 1, Context: 128, Columns: 0.7, Blocks: 1}, 9e6, 12e6, 20e6},
				{kernels.Division{Rows: 64, Context: 128, Columns: 0, Blocks: 0.5}, 9e6, 99e6, 9e6}}}},
			Decisions: []Decision{{File{"big", 1 << 30, "f16"}, pair.Identity, []Placement{
				{"cuda+cpu", "cuda", 90, []Round{{"go", "d", 4, 2.5, 9e6, 3e6, 0.5, 0.1, 1e6}}},
				{"cpu", "", 50, []Round{{"go", "", 1, 1, 20e6, 0, 0, 0, 0}}}}}}},
		Tables: []Table{
			{Target: targetLineage, Name: tandem.Medusa, Lineage: headsLineage, Text: text, Accuracy: c.Table(),
				Lengths: []Length{{1, 1, 1}, {8, 2.1, 2}}},
			{Target: targetLineage, Name: tandem.Medusa, Lineage: headsLineage, Temperature: 1, Text: text, Accuracy: c.Table()},
			{Target: targetLineage, Name: "lookup", Text: text, Depths: []float64{0.5, 0.4}, Accept: accept}}}
}

// TestFiles: a plan that was written is read as it was; the portable part has no machine; Load merges what is there and names what
// cannot be used.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	want := plan(t)
	file := filepath.Join(dir, Name)
	for range 2 { // the second replaces the first
		if err := want.Write(file); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v: read %+v: want %+v", err, got, want)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".plan-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	portable := want.Portable(targetLineage)
	portable.Tables[2].Name = "go"
	if portable.Machine != nil || len(portable.Tables) != 3 || len(want.Portable(headsLineage).Tables) != 0 {
		t.Errorf("portable: %+v", portable)
	}
	model := filepath.Join(dir, "m.gguf")
	if err := portable.Write(Beside(model)); err != nil {
		t.Fatal(err)
	}
	all, notes := Load(file, model, filepath.Join(dir, "none.gguf"))
	if len(notes) != 0 || len(all.Tables) != 4 || all.Machine == nil {
		t.Errorf("%d tables, notes %v: want 4", len(all.Tables), notes)
	}
	if err := os.WriteFile(file, []byte(`{"format": 1, "tables": [NaN]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := want.Write(Beside(model)); err != nil { // with a machine
		t.Fatal(err)
	}
	all, notes = Load(file, model)
	if len(notes) != 2 || !strings.Contains(notes[0], file) || !strings.Contains(notes[0], "'N'") ||
		!strings.Contains(notes[1], "one machine") || all.Machine != nil || len(all.Tables) != 3 {
		t.Errorf("notes %q, plan %+v", notes, all)
	}
	if all, notes = Load(filepath.Join(t.TempDir(), Name)); len(notes) != 0 || all == nil || all.Validate() != nil {
		t.Errorf("without a plan: notes %v", notes)
	}
	if _, err := Read(dir); tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("a folder: %v: want Corrupt", err)
	}
	if err := os.WriteFile(file, make([]byte, MostBytes+2), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a large file: %v: want Corrupt", err)
	}
}

// TestLoadCarried: beside a model that the program carries stands a plan that it carries.
func TestLoadCarried(t *testing.T) {
	b, err := plan(t).Portable(targetLineage).Encode()
	if err != nil {
		t.Fatal(err)
	}
	gguf.Carry(fstest.MapFS{"m.plan.json": {Data: b}, "bad.plan.json": {Data: []byte("{}")}})
	t.Cleanup(func() { gguf.Carry(nil) })
	all, notes := Load(filepath.Join(t.TempDir(), Name), "builtin:m", "builtin:none", "builtin:bad")
	if len(all.Tables) == 0 || all.Machine != nil || len(notes) != 1 || !strings.Contains(notes[0], "builtin:bad.plan.json") {
		t.Errorf("%d tables, notes %q", len(all.Tables), notes)
	}
}

// TestNonsense: every hand-edited value is found out and named, and never written.
func TestNonsense(t *testing.T) {
	cases := map[string]func(p *Plan){
		"format 2":                  func(p *Plan) { p.Format = 2 },
		"0 cores":                   func(p *Plan) { p.Machine.Box.Cores = 0 },
		"no system":                 func(p *Plan) { p.Machine.Box.System = "" },
		"control":                   func(p *Plan) { p.Machine.Box.CPU = "a\x1b[2J" },
		"version":                   func(p *Plan) { p.Machine.Version = strings.Repeat("v", 300) },
		"no kind":                   func(p *Plan) { p.Machine.Subjects[0].Kind = "" },
		"identity":                  func(p *Plan) { p.Machine.Subjects[0].Identity = "a b" },
		"-1 threads":                func(p *Plan) { p.Machine.Subjects[0].Threads = -1 },
		"0 points":                  func(p *Plan) { p.Machine.Subjects[0].Points = nil },
		"-5 ns":                     func(p *Plan) { p.Machine.Subjects[0].Points[1].NS = -5 },
		"takes 3600000000001 ns":    func(p *Plan) { p.Machine.Subjects[0].Points[1].NS = int64(time.Hour) + 1 },
		"has 0 rows":                func(p *Plan) { p.Machine.Subjects[0].Points[0].Rows = 0 },
		"-1 positions":              func(p *Plan) { p.Machine.Subjects[0].Points[0].Context = -1 },
		"ordered":                   func(p *Plan) { p.Machine.Subjects[0].Points[1] = p.Machine.Subjects[0].Points[0] },
		"second one of target":      func(p *Plan) { p.Machine.Subjects = append(p.Machine.Subjects, p.Machine.Subjects[0]) },
		"65 divided subjects":       func(p *Plan) { p.Machine.Divided = make([]Divided, 65) },
		"second one of target 9":    func(p *Plan) { p.Machine.Divided = append(p.Machine.Divided, p.Machine.Divided[0]) },
		"a meeting takes -1 ns":     func(p *Plan) { p.Machine.Divided[0].MeetingNS = -1 },
		"no identity":               func(p *Plan) { p.Machine.Divided[0].Identity = "" },
		"has 5000 bytes":            func(p *Plan) { p.Machine.Divided[0].Device = strings.Repeat("c", 5000) },
		"divided 0: plan: 0 points": func(p *Plan) { p.Machine.Divided[0].Points = nil },
		"1.5 of the columns":        func(p *Plan) { p.Machine.Divided[0].Points[1].Columns = 1.5 },
		"-0.1 of the blocks":        func(p *Plan) { p.Machine.Divided[0].Points[1].Blocks = -0.1 },
		"division 1, 1 rows":        func(p *Plan) { p.Machine.Divided[0].Points[1].Rows = 1 },
		"for 0 rows":                func(p *Plan) { p.Machine.Divided[0].Points[0].Rows = 0 },
		"up to 65536 rows":          func(p *Plan) { p.Machine.Divided[0].Points[1].Rows = 1 << 30 },
		"point 0 takes 0 ns":        func(p *Plan) { p.Machine.Divided[0].Points[0].LeftNS = 0 },
		"65 decisions":              func(p *Plan) { p.Machine.Decisions = make([]Decision, 65) },
		"second one for big":        func(p *Plan) { p.Machine.Decisions = append(p.Machine.Decisions, p.Machine.Decisions[0]) },
		"a target of 0 bytes":       func(p *Plan) { p.Machine.Decisions[0].Bytes = 0 },
		"0 placements":              func(p *Plan) { p.Machine.Decisions[0].Placements = nil },
		"no device":                 func(p *Plan) { p.Machine.Decisions[0].Placements[1].Device = "" },
		"draft device \"a":          func(p *Plan) { p.Machine.Decisions[0].Placements[1].DraftDevice = "a\n" },
		"0 tokens per second":       func(p *Plan) { p.Machine.Decisions[0].Placements[1].TokensPerSecond = 0 },
		"want the best first":       func(p *Plan) { p.Machine.Decisions[0].Placements[1].TokensPerSecond = 91 },
		"0 rounds":                  func(p *Plan) { p.Machine.Decisions[0].Placements[1].Rounds = nil },
		"9 tokens of 4 nodes":       func(p *Plan) { p.Machine.Decisions[0].Placements[0].Rounds[0].Tokens = 9 },
		"4000000 of them hidden":    func(p *Plan) { p.Machine.Decisions[0].Placements[0].Rounds[0].HiddenNS = 4e6 },
		"hits of 1.5":               func(p *Plan) { p.Machine.Decisions[0].Placements[0].Rounds[0].Hits = 1.5 },
		"65 subjects":               func(p *Plan) { p.Machine.Subjects = make([]Subject, 65) },
		"257 tables":                func(p *Plan) { p.Tables = make([]Table, 257) },
		"target \"xyz\"":            func(p *Plan) { p.Tables[0].Target = "xyz" },
		"lineage \"ABCDEF":          func(p *Plan) { p.Tables[0].Lineage = "ABCDEF" + headsLineage[6:] },
		"no name":                   func(p *Plan) { p.Tables[1].Name = "" },
		"temperature -1":            func(p *Plan) { p.Tables[0].Temperature = -1 },
		"0 tokens":                  func(p *Plan) { p.Tables[0].Text.Tokens = 0 },
		"neither":                   func(p *Plan) { p.Tables[1].Accuracy = nil },
		"rate 1.5":                  func(p *Plan) { p.Tables[0].Accuracy.Right[0][0] = 1.5 },
		"depths 1 is -0.1":          func(p *Plan) { p.Tables[2].Depths[1] = -0.1 },
		"accept has 3 bins":         func(p *Plan) { p.Tables[2].Accept = p.Tables[2].Accept[:3] },
		"never rising":              func(p *Plan) { p.Tables[2].Accept[5] = 0.95 },
		"lengths 1: 8 nodes":        func(p *Plan) { p.Tables[0].Lengths[1].Measured = 9 },
		"second one of medusa":      func(p *Plan) { p.Tables[1].Temperature = 0 },
		"65 depths and 2 lengths":   func(p *Plan) { p.Tables[0].Depths = make([]float64, 65) },
	}
	for want, spoil := range cases {
		p := plan(t)
		spoil(p)
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Decode(raw)
		if tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "want") &&
			!strings.Contains(err.Error(), "second") {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := p.Encode(); tandem.KindOf(err) != tandem.Corrupt {
			t.Errorf("%s: encoded with %v", want, err)
		}
	}
	for text, want := range map[string]string{"": "EOF", "{}": "format 0", "[]": "array", `{"format":1} x`: "more follows",
		"null":                     "format 0",
		`{"format":1,"tabels":[]}`: "tabels", `{"format":1,"tables":[{"temperature":1e999}]}`: "1e999", `{"format":1}{`: "more follows",
		strings.Repeat(`{"machine":`, 20000): "depth"} {
		if _, err := Decode([]byte(text)); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v: want %q", text, err, want)
		}
	}
}

// TestStale: times are found for the same box, version and model, and the reason is told otherwise.
func TestStale(t *testing.T) {
	p := plan(t)
	costs, err := p.Costs(thisBox, "1.2", what)
	if want := (tandem.Cost{Rows: 8, Context: 128, Time: 20 * time.Millisecond}); err != nil || len(costs) != 3 || costs[2] != want {
		t.Errorf("%v: %v", err, costs)
	}
	other := thisBox
	other.Cores = 64
	for _, tc := range []struct {
		box     Box
		version string
		change  func(w *What)
		want    string
	}{
		{other, "1.2", nil, "another machine: AMD EPYC, 2 cores"},
		{thisBox, "1.3", nil, "by tandem 1.2, this is 1.3"},
		{thisBox, "1.2", func(w *What) { w.Kind = "draft" }, "no draft"},
		{thisBox, "1.2", func(w *What) { w.Identity = "9f3a-51c0-0f6e-f16-a1" }, "they differ in KV type"},
		{thisBox, "1.2", func(w *What) { w.Threads = 1 }, "ran on 2 threads"},
		{thisBox, "1.2", func(w *What) { w.Device = "avx2" }, `not on 2 of "avx2"`},
	} {
		w := what
		if tc.change != nil {
			tc.change(&w)
		}
		costs, err := p.Costs(tc.box, tc.version, w)
		if costs != nil || tandem.KindOf(err) != tandem.Stale || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v: want Stale with %q", tc, err, tc.want)
		}
	}
	if _, err := p.Portable(targetLineage).Costs(thisBox, "1.2", what); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("without a machine: %v", err)
	}
	tables, stale := p.For(targetLineage, tandem.Medusa, headsLineage, 0.9)
	if len(tables) != 2 || tables[0].Temperature != 1 || stale != nil {
		t.Errorf("tables %v, stale %v", tables, stale)
	}
	if tables, stale = p.For(targetLineage, tandem.Medusa, targetLineage, 0); len(tables) != 0 || len(stale) != 2 ||
		!strings.Contains(stale[0], "is of lineage "+headsLineage) {
		t.Errorf("of other heads: tables %v, stale %v", tables, stale)
	}
	if tables, stale = p.For(headsLineage, tandem.Medusa, headsLineage, 0); len(tables)+len(stale) != 0 {
		t.Errorf("of another target: %v, %v", tables, stale)
	}
	if tables, _ = p.For(targetLineage, "lookup", "", 0); len(tables) != 1 || tables[0].Chances()[0] != 0.9 {
		t.Errorf("lookup: %v", tables)
	}
}

func TestBox(t *testing.T) {
	b := ThisBox()
	if b.validate() != nil || b.ID() != ThisBox().ID() || len(b.ID()) != 16 || b.ID() == thisBox.ID() && b != thisBox {
		t.Errorf("%+v, id %s: %v", b, b.ID(), b.validate())
	}
	for info, want := range map[string]string{"processor\t: 0\nmodel name\t: AMD  EPYC \nmodel name: x\n": "AMD EPYC", "": "",
		"CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n": "ARM implementer 0x41 part 0xd0c", "model name: \xff\x01": "??"} {
		if got := cpuName([]byte(info)); got != want {
			t.Errorf("%q: CPU %q: want %q", info, got, want)
		}
	}
	for info, want := range map[string]int{"MemTotal:       24684096 kB\n": 24, "MemTotal: x kB": 0, "": 0, "MemTotal: -4 kB": 0} {
		if got := memoryGiB([]byte(info)); got != want {
			t.Errorf("%q: %d GiB: want %d", info, got, want)
		}
	}
}

// FuzzDecode: whatever a file holds, Decode returns a plan that is valid and encodes to itself, or Corrupt.
func FuzzDecode(f *testing.F) {
	whole, err := plan(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	for i := 0; i < len(whole); i += 97 {
		f.Add(whole[:i])
		f.Add([]byte(string(whole[:i]) + "-1e9" + string(whole[i:])))
	}
	f.Add([]byte(fmt.Sprintf(`{"format":1,"tables":[{"target":%q,"name":"x","text":{"tokens":1},"accuracy":{}}]}`, targetLineage)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil {
			if p != nil || tandem.KindOf(err) != tandem.Corrupt {
				t.Fatalf("%v with %v: want Corrupt", err, p)
			}
			return
		}
		raw, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(raw)
		if err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		if twice, err := again.Encode(); err != nil || !bytes.Equal(raw, twice) {
			t.Fatalf("%v: %s becomes %s", err, raw, twice)
		}
		for _, table := range p.Tables {
			if a := table.Accuracy; a != nil { // what a planner does with it
				shape.Greedy(a.Rate(), 32, a.Levels(), a.Ranks()).Length(a.Rate())
			}
		}
		_, _ = p.Costs(thisBox, "1.2", what)
		if d, err := p.Decision(thisBox, "1.2", File{"big", 1 << 30, "f16"}); err == nil {
			d.Drafts("cpu")
		}
		if all, err := p.Divisions(thisBox, "1.2", pair); err == nil && kernels.CheckDivisions(all) != nil {
			t.Fatalf("divisions %v", all)
		}
	})
}
