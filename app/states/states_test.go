package states

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/text/token"
)

const target = "../../models/gopher-19m-q8_0.gguf"

// write writes files below a new folder and returns it.
func write(t testing.TB, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// opened are the models that tests have opened, by path and options: a run leaves them as they were.
var opened = map[string]*engine.Model{}

// open returns an Opener of the model at path on one core.
func open(path string) Opener {
	return func(o engine.Options) (*engine.Model, func(), error) {
		key := fmt.Sprint(path, o)
		if m := opened[key]; m != nil {
			return m, func() {}, nil
		}
		d, err := cpu.New(1, cpu.Auto)
		if err != nil {
			return nil, nil, err
		}
		o.Device = d
		m, err := engine.Open(path, o)
		if err == nil {
			opened[key] = m
		}
		return m, func() {}, err
	}
}

// config returns a run over two short files and a long one, and three prompts that the shipped target continues.
func config(t testing.TB) Config {
	t.Helper()
	dir := write(t, map[string]string{
		"src/a.go": "package a\n\nfunc add(a, b int) int { return a + b }\n", "src/sub/b.txt": "It was a dark night.",
		"src/long.go": strings.Repeat("func f(x int) int {\n\treturn x * 2\n}\n\n", 30), "src/.hidden/c.go": "package c",
		"src/binary": "\x00\xff",
		"prompts.jsonl": `{"id":"p1","prompt":"func main() {"}` + "\n\n" + `{"prompt":"import os\n"}` + "\n" +
			`{"id":"p3","prompt":"Once upon a time"}` + "\n",
	})
	vocab, err := token.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	return Config{Model: target, Texts: []string{filepath.Join(dir, "src")}, Prompts: []string{filepath.Join(dir, "prompts.jsonl")},
		Raw: true, Out: filepath.Join(t.TempDir(), "out"), Taps: []int{2, 6, -1}, Top: 8, Context: 64, Sessions: 3, AnswerTokens: 24,
		Sampling: tandem.Sampling{TopP: 1}, ShardSize: 100 << 10, Vocab: vocab, Open: open(target)}
}

// mustRun runs c and returns all its shards as files and as one.
func mustRun(t testing.TB, c Config) (r *Result, all map[string]string, one Shard) {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	all = shards(t, c.Out)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s, err := parse([]byte(all[name]))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		one.Shape, one.Tokens, one.Texts = s.Shape, one.Tokens+s.Tokens, append(one.Texts, s.Texts...)
		one.Arrays.add(&s.Arrays)
	}
	return r, all, one
}

// shards reads the shards of a folder.
func shards(t testing.TB, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	all := map[string]string{}
	for _, path := range paths {
		b, failed := os.ReadFile(path)
		all[filepath.Base(path)], err = string(b), errors.Join(err, failed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRun: the states are those of the engine run directly, one token a pass, and the answers those of plain decoding.
func TestRun(t *testing.T) {
	c := config(t)
	r, all, one := mustRun(t, c)
	if r.Texts != len(one.Texts) || r.Tokens != one.Tokens || r.Shards != len(all) || r.Shards < 3 || r.LeftOut != 1 || r.Answers != 3 ||
		!strings.Contains(r.String(), " shards, ") {
		t.Errorf("%+v: %v", r, r)
	}
	m, closed, err := c.Open(engine.Options{Context: 64, Taps: c.Taps, KVPages: engine.PagesFor(2, 64, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	at, origins := 0, map[string]int{}
	for _, x := range one.Texts {
		ids := one.IDs[at : at+x.Tokens]
		origins[strings.SplitN(x.Origin, "#", 2)[0]]++
		if x.Kind == KindAnswer {
			prompt := make([]tandem.Token, x.Prompt)
			for i := range prompt {
				prompt[i] = tandem.Token(ids[i])
			}
			want, err := measure.Continue(t.Context(), m, prompt, c.AnswerTokens, tandem.Sampling{})
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				if tandem.Token(id) != want[i] {
					t.Errorf("%s: token %d is %d: want %d, as plain decoding says", x.Origin, i, id, want[i])
					break
				}
			}
			if n := len(ids); n < len(want) && !c.Vocab.IsEnd(tandem.Token(ids[n-1])) || n > len(want) {
				t.Errorf("%s ends after %d tokens", x.Origin, n)
			}
		}
		compare(t, m, &one, x, at)
		at += x.Tokens
	}
	if len(origins) != 6 || origins["src/long.go"] < 3 || origins["p1"] != 1 || origins["prompts.jsonl:3"] != 1 ||
		origins["src/sub/b.txt"] != 1 {
		t.Errorf("origins %v", origins)
	}
}

// compare runs a text of s, whose rows begin at row at, by itself and compares its rows.
func compare(t *testing.T, m *engine.Model, s *Shard, x Text, at int) {
	t.Helper()
	seq, err := m.NewSequence(x.Tokens, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	width := m.FeatureWidth()
	row, packed := make([]float32, width), make([]uint16, width)
	for i := at; i < at+x.Tokens; i++ {
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{tandem.Token(s.IDs[i])}, Want: engine.WantAll}}, s.Top)
		if err != nil {
			t.Fatal(err)
		}
		out.Features(0, 0, row)
		half.Pack(packed, row)
		top := out.Top(0)
		if !slices.Equal(packed, s.States[i*width:(i+1)*width]) || !slices.Equal(top.IDs, s.TopIDs[i*s.Top:(i+1)*s.Top]) {
			t.Fatalf("%s: %s: row %d has other states or tokens than the engine alone gives", s.Name, x.Origin, i-at)
		}
		sum := 0.0
		for _, v := range out.Logits(0) {
			sum += math.Exp(float64(v))
		}
		for k, v := range top.Logits {
			want := float64(v) - math.Log(sum)
			if got := half.Float(s.TopProbs[i*s.Top+k]); math.Abs(float64(got)-want) > 1e-3*math.Abs(want)+1e-4 {
				t.Fatalf("%s: row %d, token %d has log-probability %v: want %v", x.Origin, i-at, top.IDs[k], got, want)
			}
		}
		if d := float64(s.LogSum[i]) - math.Log(sum); math.Abs(d) > 1e-4 {
			t.Fatalf("%s: row %d: the logarithm of the sum is off by %v", x.Origin, i-at, d)
		}
	}
}

// TestSampled: drawn answers depend on the seed and on their prompt, not on what runs beside them.
func TestSampled(t *testing.T) {
	c := config(t)
	c.Texts, c.Sampling = nil, tandem.Sampling{Temperature: 1, TopP: 0.9, Seed: 5}
	_, together, one := mustRun(t, c)
	c.Out, c.Sessions = t.TempDir(), 1
	if _, alone, _ := mustRun(t, c); !maps.Equal(together, alone) {
		t.Error("answers differ when they are run one by one")
	}
	c.Out, c.Sampling.Seed = t.TempDir(), 6
	if _, _, other := mustRun(t, c); slices.Equal(one.IDs, other.IDs) {
		t.Error("another seed gives the same answers")
	}
}

// TestResume: a run that is stopped anywhere, and leaves half a file, ends as one that was not.
func TestResume(t *testing.T) {
	c := config(t)
	whole, want, _ := mustRun(t, c)
	for stop := 1; stop < whole.Texts; stop += 6 {
		c.Out = filepath.Join(t.TempDir(), "out")
		ctx, cancel := context.WithCancel(t.Context())
		texts := 0
		c.Progress = func(p Progress) {
			if texts++; texts == stop {
				cancel()
			}
			if p.Share <= 0 || p.Share > 1 || p.Tokens <= p.Before {
				t.Errorf("progress %+v", p)
			}
		}
		if _, err := Run(ctx, c); !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped after %d texts: %v", stop, err)
		}
		before := len(shards(t, c.Out))
		if err := os.WriteFile(filepath.Join(c.Out, ".new-123"), []byte(magic), 0o600); err != nil {
			t.Fatal(err)
		}
		r, got, _ := mustRun(t, c)
		if !maps.Equal(got, want) || r.Shards != whole.Shards || r.Tokens != whole.Tokens || r.Held != whole.Held ||
			r.Bytes != whole.Bytes {
			t.Errorf("stopped after %d texts and %d shards: %+v: want %+v and the same bytes", stop, before, r, whole)
		}
		if left, _ := filepath.Glob(filepath.Join(c.Out, ".new-*")); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
		if again, _, _ := mustRun(t, c); again.Before != whole.Tokens || again.Rate != 0 {
			t.Errorf("a run after the end: %+v: want nothing to be done", again)
		}
	}
}

// TestBounds: a run ends at its bounds, and is then at its end.
func TestBounds(t *testing.T) {
	c := config(t)
	_, _, all := mustRun(t, c)
	for tokens := 1; tokens < all.Tokens; tokens += 197 {
		c.Out, c.MaxTokens = t.TempDir(), tokens
		r, _, one := mustRun(t, c)
		if r.Tokens != tokens || !slices.Equal(one.IDs, all.IDs[:tokens]) {
			t.Errorf("--max-tokens %d: %d tokens", tokens, r.Tokens)
		}
		if again, _, _ := mustRun(t, c); again.Before != tokens || again.Tokens != tokens {
			t.Errorf("--max-tokens %d: a run after the end: %+v", tokens, again)
		}
	}
	for _, size := range []int64{10_000, 300_000, 1_000_000} {
		c.Out, c.MaxTokens, c.MaxSize = t.TempDir(), 0, size
		r, _, one := mustRun(t, c)
		if r.Bytes > size || r.Bytes < size*6/10 || !slices.Equal(one.IDs, all.IDs[:r.Tokens]) {
			t.Errorf("--max-size %d: %d bytes", size, r.Bytes)
		}
		if again, _, _ := mustRun(t, c); again.Before != r.Tokens || again.Tokens != r.Tokens {
			t.Errorf("--max-size %d: a run after the end: %+v", size, again)
		}
	}
}

// TestHeld: about a tenth of the files is held out, always the same, and all pieces and answers of what is held out.
func TestHeld(t *testing.T) {
	l, held := &list{}, 0
	texts := map[string]string{}
	for i := range 500 {
		texts[fmt.Sprintf("d/%d.txt", i)] = "text"
	}
	dir := write(t, texts)
	if err := l.walk(filepath.Join(dir, "d"), false); err != nil {
		t.Fatal(err)
	}
	for i := range l.texts {
		if l.texts[i].held() {
			held++
		}
	}
	if held < 30 || held > 70 {
		t.Errorf("%d of %d files are held out: want about a tenth", held, len(l.texts))
	}
	asked := Chat{ID: "x", Messages: []Message{{Role: "user", Content: "q"}}}
	answered := Chat{Messages: []Message{{Role: "user", Content: "q"}, {Role: "assistant", Content: "a"}}}
	prompt := Chat{Prompt: "q"}
	one, _ := asked.hash(false)
	two, _ := answered.hash(false)
	three, _ := prompt.hash(false)
	if one != two || one != three || len(answered.Messages) != 2 || prompt.Finished() {
		t.Errorf("hashes %x, %x, %x of the same prompt: want equal ones", one[:4], two[:4], three[:4])
	}
	c := config(t)
	for i, held := 0, false; !held; i++ { // a name that is held out
		text := fmt.Sprintf("h%d.go", i)
		dir := write(t, map[string]string{text: strings.Repeat("package x\n", 60)})
		s := &list{}
		if err := s.walk(filepath.Join(dir, text), false); err != nil {
			t.Fatal(err)
		}
		if held = s.texts[0].held(); held {
			c.Texts = append(c.Texts, filepath.Join(dir, text))
		}
	}
	r, _, one3 := mustRun(t, c)
	pieces := 0
	for _, x := range one3.Texts {
		if strings.HasPrefix(x.Origin, "h") {
			if pieces++; !x.Held {
				t.Errorf("%s is not held out", x.Origin)
			}
		}
	}
	if pieces < 2 || r.Held < pieces || r.HeldTokens < pieces*2 || r.HeldTokens >= r.Tokens {
		t.Errorf("%d pieces of the file are held out: %+v", pieces, r)
	}
}

// TestDisk: what the disk has no room for is refused before a pass.
func TestDisk(t *testing.T) {
	c := config(t)
	if err := room(c.Out, math.MaxInt64/2); !errors.Is(err, tandem.Exhausted) || !strings.Contains(err.Error(), "MiB are free") {
		t.Errorf("%v: want Exhausted", err)
	}
	r := &run{Config: &c, folder: &folder{dir: t.TempDir(), shape: Shape{Dim: 1 << 40, Taps: []int{1}}},
		feeder: feeder{texts: []source{{weight: 1 << 10, path: "x"}}}}
	if err := r.space(); err != nil {
		t.Errorf("without a bound: %v: want each shard to be checked", err)
	}
	if c.MaxTokens = 1000; !errors.Is(r.space(), tandem.Exhausted) {
		t.Errorf("%v: want Exhausted", r.space())
	}
}

// FuzzParse: no file makes the reader panic, and one that it reads is written the same again.
func FuzzParse(f *testing.F) {
	s := Shard{Header: Header{Shape: Shape{Dim: 2, Taps: []int{-1}, Top: 1}, Tokens: 1, Texts: []Text{{Origin: "x", Tokens: 1}}},
		Arrays: Arrays{IDs: []int32{1}, LogSum: []float32{2}, TopIDs: []int32{3}, TopProbs: []uint16{4}, States: []uint16{5, 6}}}
	b, err := s.bytes()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:len(b)-32])
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parse(summed(body))
		if err != nil {
			return
		}
		b, err := s.bytes()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parse(b); err != nil || !bytes.Equal(must(again.bytes()), b) {
			t.Errorf("%v", err)
		}
	})
}
