package test

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ggufs "github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/published/layouttest"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
)

const (
	sides      = "../engine/testdata/sides/"
	sideTarget = sides + "target.gguf"
)

// readSide returns the bytes of a side file.
func readSide(t *testing.T, name string) gguf {
	t.Helper()
	data, err := os.ReadFile(sides + name + ".gguf")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// last replaces the last 32-bit number of the file: a weight.
func (g gguf) last(v uint32) gguf {
	out := slices.Clone(g)
	binary.LittleEndian.PutUint32(out[len(out)-4:], v)
	return out
}

// Damaged side files end each command that reads them with one line.
func TestBadSides(t *testing.T) {
	t.Parallel()
	medusa, ppd, eagle3 := readSide(t, "medusa-own"), readSide(t, "ppd-4"), readSide(t, "eagle3")
	lineage := "dd9a29545807bb2b924edc09679dc0eb"
	for name, tc := range map[string]struct {
		data    gguf
		want    string
		weights bool // what is wrong is the weights: only who reads them finds it
	}{
		"0 heads":            {medusa.number("medusa.head_count", 0), "medusa.head_count", false},
		"1,000 heads":        {medusa.number("medusa.head_count", 1000), "want an integer from 1 to 16", false},
		"a head too many":    {medusa.number("medusa.head_count", 3), `"medusa.2.0.weight" is missing`, false},
		"a head too few":     {medusa.number("medusa.head_count", 1), `"medusa.1.0.weight" has no place`, false},
		"no lineage":         {medusa.with("tandem.target.lineage", "tandem.target.linage_"), "tandem.target.lineage", false},
		"half a lineage":     {medusa.with(lineage, lineage[:31]+"x"), "want 32 hexadecimal digits", false},
		"wrong width":        {medusa.number("medusa.embedding_length", 31), "the keys want [31 31]", false},
		"wrong shape":        {medusa.dim("medusa.0.0.weight", 16), "has shape [16 32]: the keys want [32 32]", false},
		"NaN":                {medusa.last(math.Float32bits(float32(math.NaN()))), "is NaN: want finite numbers", true},
		"infinite":           {ppd.last(math.Float32bits(float32(math.Inf(-1)))), "is -Inf: want finite numbers", true},
		"0 prompt tokens":    {ppd.number("ppd.token_count", 0), "ppd.token_count", false},
		"too many prompts":   {ppd.number("ppd.ensemble_count", 1000), "at most 1024 embeddings", false},
		"other prompts":      {ppd.number("ppd.ensemble_count", 3), "the keys want [32 9]", false},
		"0 blocks":           {eagle3.number("eagle3.block_count", 0), "eagle3.block_count", false},
		"no token":           {eagle3.number("eagle3.draft_vocab_size", 99), "has 100 ids", false},
		"heads":              {eagle3.number("eagle3.attention.head_count", 3), "want", false},
		"of no architecture": {ppd.with("\x03\x00\x00\x00\x00\x00\x00\x00ppd", "\x03\x00\x00\x00\x00\x00\x00\x00pqd"), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := t.TempDir()
			path, out := filepath.Join(dir, "bad.gguf"), filepath.Join(dir, "out.gguf")
			if err := os.WriteFile(path, tc.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if !tc.weights {
				refused(t, w.run("model", "info", path), tc.want)
			}
			refused(t, w.run("model", "quantize", "--type", "f16", path, out), tc.want)
			refused(t, w.run("model", "expand", "--like", "4,64,4,2,128", path, out), tc.want)
			if left, _ := filepath.Glob(filepath.Join(dir, "*out*")); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
}

// Side files cut at every 4 KiB are refused.
func TestCutSides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "cut.gguf")
	for _, name := range []string{"medusa-own", "ppd-4", "eagle3", "dovetail-bare"} {
		whole := readSide(t, name)
		for n := 0; n < len(whole); n += 4096 {
			if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, w.run("model", "info", path), "cut.gguf")
		}
	}
}

// Side files of drafts that are none, or of another model, end generate and the drafter with one line; the right one does not change the
// text.
func TestDraftHeads(t *testing.T) {
	t.Parallel()
	const (
		draft  = "../models/gopher-draft-all-f16.gguf"
		expert = "../models/gopher-draft-go-f16.gguf"
		own    = "../drafter/prompts/testdata/ppd.gguf"
	)
	w := newWorld(t)
	generate := func(args ...string) ended {
		return w.run(append([]string{"generate", "--prompt", "func main() {", "--max-tokens", "24", "--ctx", "64", "--strategy", "fixed"},
			args...)...)
	}
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	data, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--draft", draft, "--draft-heads", sides + "ppd-1.gguf"}, "ppd-1.gguf"},
		{[]string{"--draft", expert, "--draft-heads", own}, "lineage"},
		{[]string{"--draft", expert, "--draft", "../models/gopher-draft-py-f16.gguf", "--draft-heads", own},
			"want the file of one of them"},
		{[]string{"--draft", draft, "--draft-heads", sides + "medusa-own.gguf"}, "is medusa: want a side file of kind ppd"},
		{[]string{"--draft", draft, "--draft-heads", draft}, "is a model: want a side file of kind ppd"},
		{[]string{"--draft", draft, "--draft-heads", own, "--draft-heads", own}, "has a side file of kind ppd already"},
		{[]string{"--draft", draft, "--draft-heads", cut}, "cut.gguf"},
		{[]string{"--draft", draft, "--draft-heads", "nowhere.gguf"}, "nowhere.gguf"},
		{[]string{"--draft", "lookup", "--draft-heads", own}, "without a draft model"},
	} {
		refused(t, generate(tc.args...), tc.want)
	}
	refused(t, w.run("drafter", "--draft", draft, "--draft-heads", sides+"eagle.gguf"), "is eagle: want a side file of kind ppd")
	want := generate("--no-draft")
	for _, drafts := range [][]string{{"--draft", draft}, {"--draft", expert, "--draft", draft}} {
		if got := generate(append(drafts, "--draft-heads", own)...); got.code != 0 || got.stdout != want.stdout {
			t.Errorf("%q: exit code %d, text %q, stderr %q: want %q", drafts, got.code, got.stdout, got.stderr, want.stdout)
		}
	}
}

// Damaged checkpoints, and ones for other targets, end model import with one line and leave nothing.
func TestBadImports(t *testing.T) {
	t.Parallel()
	good := func() *layouttest.Checkpoint { return layouttest.Of(t, sides+"medusa-own.gguf") }
	bytes := good().Bytes()
	nan := good()
	nan.Tensors["1.0.linear.weight"].Data[3] = 0x7f
	nan.Tensors["1.0.linear.weight"].Data[2] = 0xc0
	entry := func(text string) []byte { return sttest.Raw(`{"0.0.linear.weight":{`+text+`}}`, make([]byte, 8)) }
	for name, tc := range map[string]struct {
		data []byte
		args []string
		want string
	}{
		"header of 4 GB": {append(binary.LittleEndian.AppendUint64(nil, 4<<30), bytes...), nil, "a header of 4294967296 bytes"},
		"header cut":     {bytes[:100], nil, "but the file has 92 left"},
		"data cut":       {bytes[:len(bytes)-1], nil, "cut short or damaged"},
		"empty":          {nil, nil, "has 0 bytes"},
		"duplicate names": {sttest.Raw(`{"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"I8","shape":[0]}}`, nil), nil,
			`"a" is there twice`},
		"unknown type": {entry(`"dtype":"F12","shape":[2],"data_offsets":[0,8]`), nil, `dtype "F12": want one of BOOL`},
		"out of range": {entry(`"dtype":"F32","shape":[2],"data_offsets":[8,16]`), nil,
			"is at bytes 8 to 16 of the data, of which the file has 8"},
		"product overflows": {entry(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]`), nil, "too large a product"},
		"overlap": {sttest.Raw(`{"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[2,6]}}`,
			make([]byte, 6)), nil, `tensors "a" and "b" overlap at byte 2`},
		"hole": {sttest.Raw(`{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[4,6]}}`,
			make([]byte, 6)), nil, `before tensor "b", belong to no tensor`},
		"NaN":            {nan.Bytes(), nil, "is NaN: want finite numbers"},
		"pickle":         {[]byte("PK\x03\x04 archive/data.pkl"), nil, "is a pickle file"},
		"other target":   {bytes, []string{"--target", "../models/gopher-draft-all-f16.gguf"}, "has shape [32 32]: want [256 256]"},
		"no target":      {bytes, []string{"--target", "/no/such.gguf"}, "/no/such.gguf"},
		"side as target": {bytes, []string{"--target", sides + "ppd-4.gguf"}, "ppd-4.gguf"},
		"unknown kind":   {bytes, []string{"--kind", "hydra"}, `kind "hydra": want one of [medusa ppd`},
		"other kind":     {bytes, []string{"--kind", "ppd"}, "want adapter_config.json"},
		"type":           {bytes, []string{"--type", "q1"}, `type "q1": want one of`},
		"taps":           {bytes, []string{"--taps", "2,x"}, `--taps "2,x": want numbers of layers`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := t.TempDir()
			in := sttest.Put(t, filepath.Join(dir, "in", "x.safetensors"), tc.data)
			args := []string{"model", "import", in, filepath.Join(dir, "out.gguf")}
			if !slices.Contains(tc.args, "--target") {
				args = append(args, "--target", sideTarget)
			}
			refused(t, w.run(append(args, tc.args...)...), tc.want)
			if left, _ := filepath.Glob(filepath.Join(dir, "*out*")); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
	w := newWorld(t)
	dir := good().Write(t, t.TempDir())
	out := filepath.Join(dir, "out.gguf")
	e := w.run("model", "import", dir, out, "--target", sideTarget)
	if e.code != 0 || !strings.Contains(e.stderr, "2 heads of 1 residual blocks") || !strings.Contains(e.stdout, "4 of f16") {
		t.Errorf("exit code %d, %q, %q: want a side file", e.code, e.stdout, e.stderr)
	}
	refused(t, w.run("model", "import", dir, out, "--target", sideTarget), "is there already")
}

// TestRefusedSides: side files that are not for the target, or are named where others belong, and wrong settings for them end `generate`
// and the processes that open them with one line.
func TestRefusedSides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	put := func(name string, data gguf) string {
		t.Helper()
		path := filepath.Join(dir, name+".gguf")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const lineage, vocabulary = "dd9a29545807bb2b924edc09679dc0eb", "934910ae626e7b3f"
	one := func(role string, flags ...string) []string {
		return append([]string{role, "--listen", "unix://" + filepath.Join(dir, "s"), "--pool", "nats://127.0.0.1:1", "--target",
			sideTarget}, flags...)
	}
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		flag string
		data gguf
		want string
	}{
		"medusa-lineage": {"--heads", readSide(t, "medusa-own").with(lineage, "00"+lineage[2:]),
			"lineage 00" + lineage[2:] + ", this one has " + lineage},
		"ppd-vocabulary":   {"--heads", readSide(t, "ppd-1").with(vocabulary, "00"+vocabulary[2:]), "fingerprint 00" + vocabulary[2:]},
		"eagle3-lineage":   {"--draft", readSide(t, "eagle3").with(lineage, "00"+lineage[2:]), "lineage 00" + lineage[2:]},
		"eagle-vocabulary": {"--draft", readSide(t, "eagle").with(vocabulary, "00"+vocabulary[2:]), "fingerprint 00" + vocabulary[2:]},
		"ppd-nan":          {"--heads", readSide(t, "ppd-4").last(math.Float32bits(nan)), "is NaN: want finite numbers"},
		"dovetail-nan":     {"--draft", readSide(t, "dovetail").last(math.Float32bits(nan)), "is NaN: want finite numbers"},
		"eagle-as-heads":   {"--heads", readSide(t, "eagle"), "a drafter opens it"},
		"cut":              {"--heads", readSide(t, "medusa-own")[:8192], "cut short or damaged"},
		"empty":            {"--draft", nil, "empty.gguf"},
	} {
		path := put(name, c.data)
		more := []string{c.flag, path}
		if c.flag == "--heads" { // the shipped drafts are not for this target
			more = append(more, "--draft", "lookup")
		}
		refused(t, w.run(append([]string{"generate", "--target", sideTarget, "--prompt", "x"}, more...)...), c.want)
		role := map[string]string{"--heads": "verifier", "--draft": "drafter"}[c.flag]
		refused(t, w.run(one(role, c.flag, path)...), c.want)
	}
	medusa := sides + "medusa-own.gguf"
	for want, args := range map[string][]string{
		"side file of kind medusa already":   one("verifier", "--heads", medusa, "--heads", sides+"medusa-shared.gguf"),
		"hidden state after 9 layers":        one("verifier", "--taps=9"),
		"hidden state after -2 layers":       one("verifier", "--taps=-2"),
		"--taps names 2 twice":               one("verifier", "--taps=2,1,2"),
		"--taps names 17 hidden states":      one("verifier", "--taps=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"),
		"--feature-memory is 0":              one("verifier", "--feature-memory", "0"),
		"--plan /no/such: no such file":      one("verifier", "--plan", "/no/such"),
		"--no-draft with --heads":            {"up", "--no-draft", "--heads", medusa},
		"with the name dovetail":             one("drafter", "--draft", sides+"dovetail.gguf", "--draft", sides+"dovetail.gguf"),
		"it is opened together with its tar": one("drafter", "--draft", medusa),
	} {
		refused(t, w.run(args...), want)
	}
	// Where one command starts both processes, --draft takes a file of any kind.
	generate := []string{"generate", "--prompt", "x", "--target", sideTarget}
	plain, drafted := w.ok(append(generate, "--no-draft")...), w.ok(append(generate, "--draft", medusa)...)
	if drafted.stdout != plain.stdout {
		t.Errorf("--draft %s: text %q: want %q", medusa, drafted.stdout, plain.stdout)
	}
}

// TestNaNSides: where weights of side files are so large that their sums are NaN, nothing is guessed, and the text is right.
func TestNaNSides(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spoiled := func(name, tensor string, floats int) string {
		t.Helper()
		f, err := ggufs.Open(sides + name + ".gguf")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := ggufs.CopyOf(f)
		x := f.Tensor(tensor)
		data, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		data = slices.Clone(data)
		for i := range floats {
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(math.MaxFloat32))
		}
		w.Tensor(tensor, x.Type, x.Shape, data)
		path := filepath.Join(dir, name+".gguf")
		out, err := os.Create(path)
		if err == nil {
			_, err = w.WriteTo(out)
		}
		if err = errors.Join(err, out.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	g := up(t, "--target", sideTarget, "--heads", spoiled("medusa-own", "medusa.0.0.weight", 40), "--draft",
		spoiled("eagle3", "output.weight", 33), "--draft", spoiled("dovetail", "blk.0.ffn_up.weight", 99), "--draft",
		spoiled("eagle", "fc.hidden.weight", 32*32))
	jobs := g.sideJobs(t)
	for _, s := range []speculation{{strategy: "planner"}, {strategy: "minions", vote: "tree"},
		{strategy: "fixed", drafters: []string{"medusa"}}, {strategy: "fixed", drafters: []string{"eagle3"}},
		{strategy: "llmcad", drafters: []string{"dovetail"}}, {strategy: "fixed", drafters: []string{"eagle"}}} {
		g.speculated(t, jobs, s)
	}
	n := g.allCounters(t)
	if n["verifier guesses.asked"] == 0 || n["verifier guesses.made"] != 0 || n["drafter features.came"] == 0 {
		t.Errorf("want guesses that were asked for and not made, and states: %s", sideCounters(n))
	}
	for _, name := range []string{"verifier faults", "drafter faults"} {
		if n[name] != 0 {
			t.Errorf("%s is %d", name, n[name])
		}
	}
}
