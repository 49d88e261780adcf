package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	writer "github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestProfile: `tandem profile` writes a plan that it reads again, measures anew where the old one is damaged, and writes the portable
// part beside a model. Wrong values are named.
func TestProfile(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	args := func(more ...string) []string {
		return append([]string{"profile", "--cache", dir, "--target", targetModel, "--draft", draftModel, "--width", "4,1", "--context",
			"32", "--rounds", "2", "--tokens", "128"}, more...)
	}
	subjects := 2 // target and draft
	if runtime.NumCPU() > 1 {
		subjects++ // the target on fewer threads
	}
	printed := w.ok(args("--json")...)
	p, err := profile.Decode([]byte(printed.stdout))
	if err != nil {
		t.Fatalf("%v: %s", err, printed.stdout)
	}
	if len(p.Machine.Subjects) != subjects || len(p.Machine.Subjects[0].Points) != 2 || len(p.Tables) != 3 ||
		p.Machine.Box != profile.ThisBox() {
		t.Errorf("plan %+v", p)
	}
	for _, table := range p.Tables {
		if len(table.Depths) == 0 || table.Text.Tokens < 120 || len(table.Lengths) == 0 || table.Lengths[0].Measured <= 1 {
			t.Errorf("table %+v", table)
		}
	}
	file := filepath.Join(dir, profile.Name)
	if kept, err := profile.Read(file); err != nil || len(kept.Tables) != 3 {
		t.Errorf("%v: kept %+v", err, kept)
	}
	text := filepath.Join(dir, "own.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("package main\n\nfunc main() {\n", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.ok(args("--text", text)...) // adds to the plan
	p, err = profile.Read(file)
	if err != nil || len(p.Machine.Subjects) != subjects || len(p.Tables) != 4 ||
		!slices.ContainsFunc(p.Tables, func(x profile.Table) bool { return x.Text.Name == "own.txt" }) {
		t.Errorf("%v: with another text %+v", err, p)
	}
	if err := os.WriteFile(file, []byte(`{"format": 1, "machine": {"box": {"cores": -3}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	beside := profile.Beside(filepath.Join(dir, "m.gguf"))
	anew := w.ok(args("--out", beside)...)
	if !strings.Contains(anew.stderr, "measuring everything anew") || !strings.Contains(anew.stderr, "-3 cores") {
		t.Errorf("a damaged plan: %s", anew.stderr)
	}
	if p, err = profile.Read(beside); err != nil || p.Machine != nil || len(p.Tables) != 3 {
		t.Errorf("%v: beside the model %+v", err, p)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"--tokens=3": "--tokens is 3", "--width=0": "--width [4 1 0]",
		"--context=5000": "context of 1024", "--rounds=0": "--rounds is 0", "--temperature=-1": "--temperature is -1",
		"--text=/no/such": "--text /no/such", "--threads=-1": "--threads"} {
		refused(t, w.run(args(flag)...), want)
	}
}

// TestProfileAssistant: guesses of an assistant, which read the target's cache, are timed and judged like those of other ways.
func TestProfileAssistant(t *testing.T) {
	w, dir, at := newWorld(t), t.TempDir(), t.TempDir()
	models := []string{"--target", family.Golden("gemma4").Write(t, at), "--heads", family.Golden("gemma4-assistant").Write(t, at),
		"--draft", "lookup"}
	printed := w.ok(append([]string{"profile", "--json", "--cache", dir, "--width", "4,1", "--context", "32", "--rounds", "2",
		"--tokens", "64"}, models...)...)
	p, err := profile.Decode([]byte(printed.stdout))
	if err != nil {
		t.Fatalf("%v: %s", err, printed.stdout)
	}
	timed := slices.ContainsFunc(p.Machine.Subjects, func(s profile.Subject) bool {
		return s.Kind == tandem.Assistant && s.Points[0].NS > 1000 && s.Points[0].Context == 32
	})
	if !timed || len(p.Tables) != 3 || p.Tables[0].Name != tandem.Assistant || p.Tables[0].Accuracy == nil ||
		len(p.Tables[0].Lengths) == 0 {
		t.Errorf("timed: %v; %+v", timed, p)
	}
	plan := filepath.Join(dir, profile.Name)
	used := w.ok(append([]string{"generate", "--plan", plan, "--prompt", "func", "--max-tokens", "8"}, models...)...)
	if strings.Contains(used.stderr, "plan not used") {
		t.Errorf("the plan of this assistant: %s", used.stderr)
	}
}

// TestProfilePlaces: `tandem profile` on two groups of cores measures each alone and the pair, which it divides, and judges all placements;
// --explain shows that again. generate on the pair says the same as elsewhere, divides by the plan, and by a guess without one; with
// --device auto it computes where the plan has it.
func TestProfilePlaces(t *testing.T) {
	mayBeSlow(t)
	if runtime.NumCPU() < 2 {
		t.Skip("one core: skipped, as two groups are needed")
	}
	w, dir := newWorld(t), t.TempDir()
	const pair = "cores:0+cores:1"
	w.ok("profile", "--cache", dir, "--target", draftModel, "--draft", "../models/gopher-draft-go-f16.gguf", "--width", "1,4",
		"--context", "32", "--rounds", "2", "--tokens", "128", "--device", pair)
	plan := filepath.Join(dir, profile.Name)
	p, err := profile.Read(plan)
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Machine; len(m.Subjects) != 5 || len(m.Divided) != 1 || len(m.Divided[0].Points) != 3 || len(m.Decisions) != 1 ||
		len(m.Decisions[0].Placements) != 9 || m.Divided[0].Points[2].Rows != 256 {
		t.Errorf("measured %+v", m)
	}
	out := w.ok("profile", "--explain", "--cache", dir, "--target", draftModel)
	if !strings.Contains(out.stdout, "best with --device cores:") || !strings.Contains(out.stdout, pair+" ") || out.stderr != "" {
		t.Errorf("explained as %s%s", out.stdout, out.stderr)
	}
	generate := func(args ...string) (tokens []int32, log string) {
		t.Helper()
		e := w.ok(append([]string{"generate", "--json", "--target", draftModel, "--draft", "lookup", "--prompt", "func main() {",
			"--max-tokens", "24", "--ignore-eos"}, args...)...)
		var said struct{ Tokens []int32 }
		if err := json.Unmarshal([]byte(e.stdout), &said); err != nil {
			t.Fatal(err)
		}
		return said.Tokens, e.stderr
	}
	want, _ := generate("--plan", "off")
	const guess, auto = "divided by a guess", "--device auto computes on cores:"
	for flags, logged := range map[string][2]bool{"--plan off --device " + pair: {true, false},
		"--plan " + plan + " --device " + pair: {false, false},
		"--plan " + plan + " --device auto":    {false, true}, "--plan off --device cores:1": {false, false}} {
		got, log := generate(strings.Fields(flags)...)
		if !slices.Equal(got, want) || strings.Contains(log, guess) != logged[0] || strings.Contains(log, auto) != logged[1] {
			t.Errorf("%s: tokens %v, log %s\nwant %v, and that it guesses or chooses: %v", flags, got, log, want, logged)
		}
	}
	for device, want := range map[string]string{"cores:5000": "0 to 1023", "cores:0+cores:0": "core 0 is on both sides",
		"auto+cpu": "auto chooses one", "cores:1000": "no core 1000"} {
		refused(t, w.run("generate", "--prompt", "x", "--device", device), want)
		refused(t, w.run("profile", "--cache", dir, "--device", device), want)
	}
	refused(t, w.run("generate", "--prompt", "x", "--device", "cores:0", "--verifier-threads", "1"),
		"--verifier-threads 1 with --device cores:0")
	refused(t, w.run("profile", "--cache", dir, "--device", "cpu", "--device", "auto"), "--device auto beside others")
}

// TestProfileHeads: with heads the plan has how long a guess takes and how right they are on each text, by temperature, also for the plan
// beside a model; a verifier takes it, and says when it is of other heads.
func TestProfileHeads(t *testing.T) {
	mayBeSlow(t)
	w, dir := newWorld(t), t.TempDir()
	heads := filepath.Join(dir, "heads.gguf")
	zeroHeads(t, heads, w.ok("model", "info", "--identity", "--json", targetModel).stdout, 3)
	args := func(more ...string) []string {
		return append([]string{"profile", "--cache", dir, "--target", targetModel, "--draft", "lookup", "--heads", heads, "--width", "1",
			"--context", "32", "--rounds", "2", "--tokens", "96"}, more...)
	}
	w.ok(args()...)
	printed := w.ok(args("--temperature", "1")...)
	if !strings.Contains(printed.stdout, "medusa on go: tokens a round") || !strings.Contains(printed.stdout, "tree of 8") {
		t.Errorf("printed %s", printed.stdout)
	}
	p, err := profile.Read(filepath.Join(dir, profile.Name))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Tables) != 6 || !slices.ContainsFunc(p.Machine.Subjects, func(s profile.Subject) bool { return s.Kind == "medusa" }) {
		t.Errorf("%d tables, subjects %+v", len(p.Tables), p.Machine.Subjects)
	}
	for _, table := range p.Tables {
		if table.Name != "medusa" || table.Accuracy == nil || len(table.Accuracy.Own) != 3 || len(table.Lengths) != 6 {
			t.Errorf("table %+v", table)
		}
	}
	plan := filepath.Join(dir, profile.Name)
	generate := func(heads string) ended {
		return w.ok("generate", "--target", targetModel, "--draft", "lookup", "--heads", heads, "--plan", plan, "--prompt", "func",
			"--max-tokens", "4")
	}
	if got := generate(heads); strings.Contains(got.stderr, "plan not used") {
		t.Errorf("a plan of these heads: %s", got.stderr)
	}
	other := filepath.Join(dir, "other.gguf")
	zeroHeads(t, other, w.ok("model", "info", "--identity", "--json", targetModel).stdout, 2)
	if got := generate(other); !strings.Contains(got.stderr, "the table of medusa on go is of lineage") {
		t.Errorf("a plan of other heads: %s", got.stderr)
	}
	refused(t, w.run(args("--heads", targetModel)...), targetModel)
}

// zeroHeads writes heads of Medusa without weights, which guess again what the target says, for the target that info describes.
func zeroHeads(t *testing.T, path, info string, heads int) {
	t.Helper()
	var target struct {
		Lineage   string
		Dim       int `json:"dim"`
		Tokenizer struct {
			Fingerprint string
			Vocabulary  int
		}
	}
	if err := json.Unmarshal([]byte(info), &target); err != nil || target.Dim == 0 || target.Tokenizer.Vocabulary == 0 {
		t.Fatalf("%v: %s", err, info)
	}
	w := writer.NewWriter()
	for key, v := range map[string]any{"general.architecture": "medusa", "general.name": "zero", "tandem.target.lineage": target.Lineage,
		"tandem.target.vocabulary": target.Tokenizer.Fingerprint, "medusa.embedding_length": uint32(target.Dim),
		"medusa.vocab_size": uint32(target.Tokenizer.Vocabulary), "medusa.head_count": uint32(heads), "medusa.block_count": uint32(1),
		"medusa.taps": []int32{-1}} {
		w.Set(key, v)
	}
	for k := range heads {
		w.Tensor(fmt.Sprintf("medusa.%d.0.weight", k), writer.F32, []int{target.Dim, target.Dim}, make([]byte, 4*target.Dim*target.Dim))
	}
	f, err := os.Create(path)
	if err == nil {
		_, err = w.WriteTo(f)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestForeignPlans: a plan of nonsense, from another box, of another version or another model is left out with the reason. One that fits,
// but has no heads and false times, is used but for the heads. The text is that of plain decoding with each of them.
func TestForeignPlans(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	common := []string{"--target", sideTarget, "--prompt", "func (r *Re", "--max-tokens", "40", "--ignore-eos", "--isa", "generic",
		"--verifier-threads", "1"}
	type said struct {
		Tokens   []int32         `json:"tokens"`
		Identity tandem.Identity `json:"identity"`
	}
	run := func(flags ...string) (out said, log string) {
		t.Helper()
		e := w.ok(append(append([]string{"generate", "--json"}, common...), flags...)...)
		if err := json.Unmarshal([]byte(e.stdout), &out); err != nil {
			t.Fatal(err)
		}
		return out, e.stderr
	}
	want, _ := run("--no-draft")
	var version struct{ Version string }
	if err := json.Unmarshal([]byte(w.ok("version", "--json").stdout), &version); err != nil {
		t.Fatal(err)
	}
	plan := func(change func(*profile.Plan)) string {
		t.Helper()
		p := (&profile.Plan{}).Begin(profile.ThisBox(), version.Version)
		var costs []tandem.Cost
		for i, rows := range []int{1, 2, 8, 40} { // the wider, the quicker; at last an hour
			costs = append(costs, tandem.Cost{Rows: rows, Context: 8, Time: []time.Duration{time.Second, 1000, 1, time.Hour}[i]})
		}
		p.Time(profile.Subject{What: profile.What{Kind: "target", Identity: want.Identity, Threads: 1, Device: "generic"},
			Points: profile.Points(costs)})
		change(p)
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, c := range map[string]struct{ text, log string }{
		"empty":           {"", "plan not used"},
		"-3 cores":        {plan(func(p *profile.Plan) { p.Machine.Box.Cores = -3 }), "-3 cores"},
		"another box":     {plan(func(p *profile.Plan) { p.Machine.Box.Cores += 62 }), "another machine"},
		"another version": {plan(func(p *profile.Plan) { p.Machine.Version = "0.0.1" }), "by tandem 0.0.1"},
		"another model": {plan(func(p *profile.Plan) {
			p.Machine.Subjects[0].Identity = "00000000000000000000000000000000-0-0-f16-a1"
		}), "plan not used"},
		"false times": {plan(func(*profile.Plan) {}), "it has no medusa"},
	} {
		file := filepath.Join(dir, strings.ReplaceAll(name, " ", "_")+".json")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, log := run("--plan", file, "--draft", sideTarget, "--heads", sides+"medusa-own.gguf")
		if !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("%s: tokens\n%v, plain\n%v", name, got.Tokens, want.Tokens)
		}
		if !strings.Contains(log, c.log) || !strings.Contains(log, "plan not used") {
			t.Errorf("%s: logged %q: want %q", name, log, c.log)
		}
	}
}
