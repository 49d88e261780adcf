package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	ggufs "github.com/tandem-llm/tandem/modelfile/gguf"
)

// goldenCase is one line of test/testdata/golden/gopher-*.jsonl; its README says what the fields mean.
type goldenCase struct {
	Model      string         `json:"-"`
	ID         string         `json:"id"`
	Tol        float64        `json:"tol"`
	Tokens     []int32        `json:"tokens"`
	PromptTop  [][][2]float64 `json:"prompt_top"`
	FloatTop   [][][2]float64 `json:"float_top"`
	Greedy     []int32        `json:"greedy"`
	GreedyTop2 [][][2]float64 `json:"greedy_top2"`
	OtherRMS   float64        `json:"other_engine_rms"`
}

type logits struct {
	Tokens    []int32        `json:"tokens"`
	PromptTop [][][2]float64 `json:"prompt_top"`
	Greedy    []int32        `json:"greedy"`
}

// TestGoldenLogits compares `tandem logits` with another engine's figures and with float arithmetic, for a prompt of each domain.
// TestGolden of package engine takes all prompts.
func TestGoldenLogits(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"f16", "q8_0", "q4_0", "q4_k_m"} {
		t.Run(typ, func(t *testing.T) {
			model := targetModel
			if typ != "q8_0" {
				model = filepath.Join(t.TempDir(), typ+".gguf")
				newWorld(t).ok("model", "quantize", "--allow-requantize", "--type", typ, targetModel, model)
			}
			cases := goldenCases(t, "testdata/golden/gopher-19m-"+typ+".jsonl")
			bound := 1.5 * math.Max(cases[0].OtherRMS, 0.002) // the other engine's distance over all prompts
			cases = []goldenCase{cases[0], cases[len(cases)/2], cases[len(cases)-1]}
			var sum float64
			n, agree, same := 0, 0, 0
			for _, c := range cases {
				c.Model = model
				got := c.logits(t)
				s, m := c.checkPrompt(t, got)
				sum, n = sum+s, n+m
				k := c.checkGreedy(t, got)
				agree, same = agree+k, same+len(c.Greedy)
			}
			rms := math.Sqrt(sum / float64(n))
			t.Logf("r.m.s. distance from float arithmetic %.5f over %d logits (the other engine: %.5f); %d of %d greedy tokens compared",
				rms, n, cases[0].OtherRMS, agree, same)
			if rms > bound {
				t.Errorf("r.m.s. distance from float arithmetic %.5f: want at most %.5f", rms, bound)
			}
		})
	}
}

func goldenCases(t *testing.T, file string) []goldenCase {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []goldenCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c goldenCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if lines.Err() != nil || len(cases) == 0 {
		t.Fatalf("%s: %d cases, %v", file, len(cases), lines.Err())
	}
	return cases
}

// logits runs the case through the binary; 64 logits at each position, so that those to compare are there.
func (c *goldenCase) logits(t *testing.T) logits {
	t.Helper()
	ids := make([]string, len(c.Tokens))
	for i, id := range c.Tokens {
		ids[i] = fmt.Sprint(id)
	}
	w := newWorld(t)
	e := w.ok("logits", "--model", c.Model, "--tokens", strings.Join(ids, ","), "--top", "64", "--generate",
		fmt.Sprint(len(c.Greedy)), "--json")
	var got logits
	if err := json.Unmarshal([]byte(e.stdout), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.PromptTop) != len(c.Tokens) || len(got.Greedy) != len(c.Greedy) {
		t.Fatalf("%s: %d positions and %d greedy tokens: want %d and %d", c.ID, len(got.PromptTop), len(got.Greedy), len(c.Tokens),
			len(c.Greedy))
	}
	return got
}

// checkPrompt compares the last positions, and returns the squared distance from float_top and the
// number of logits in it.
func (c *goldenCase) checkPrompt(t *testing.T, got logits) (sum float64, n int) {
	t.Helper()
	first := len(c.Tokens) - len(c.PromptTop)
	for i, want := range c.PromptTop {
		ours := map[int]float64{}
		for _, p := range got.PromptTop[first+i] {
			ours[int(p[0])] = p[1]
		}
		for _, p := range want {
			v, ok := ours[int(p[0])]
			if !ok || math.Abs(v-p[1]) > c.Tol {
				t.Errorf("%s: position %d: token %d has logit %v: the other engine has %v, tolerance %v", c.ID, first+i, int(p[0]), v, p[1],
					c.Tol)
			}
		}
		if best := got.PromptTop[first+i][0][0]; best != want[0][0] && want[0][1]-want[1][1] > 2*c.Tol {
			t.Errorf("%s: position %d: best token %v: the other engine has %v by a margin of %v", c.ID, first+i, best, want[0][0],
				want[0][1]-want[1][1])
		}
		for _, p := range c.FloatTop[i] {
			if v, ok := ours[int(p[0])]; ok {
				sum += (v - p[1]) * (v - p[1])
				n++
			} else {
				t.Errorf("%s: position %d: token %d of the five best is not among our 64", c.ID, first+i, int(p[0]))
			}
		}
	}
	return sum, n
}

// margin returns the distance of the two best logits at step i of the continuation.
func (c *goldenCase) margin(i int) float64 { return c.GreedyTop2[i][0][1] - c.GreedyTop2[i][1][1] }

// checkGreedy compares the continuation up to the first position whose two best are too close to
// call, and returns how many tokens that were.
func (c *goldenCase) checkGreedy(t *testing.T, got logits) int {
	t.Helper()
	for i, want := range c.Greedy {
		if c.margin(i) <= 2*c.Tol {
			return i
		}
		if got.Greedy[i] != want {
			t.Errorf("%s: greedy token %d is %d: the other engine has %d by a margin of %v", c.ID, i, got.Greedy[i], want, c.margin(i))
			return i
		}
	}
	return len(c.Greedy)
}

// TestGoldenTokens compares `tandem tokenize` of the shipped target's vocabulary with another engine's tokens.
func TestGoldenTokens(t *testing.T) {
	t.Parallel()
	texts, err := os.ReadFile("testdata/golden/tokens.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	w, n := newWorld(t), 0
	for line := range bytes.Lines(texts) {
		var want, got struct {
			Text   string
			Tokens []int
			Pieces []string
		}
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		e := w.feed(want.Text, "tokenize", "--model", targetModel, "--no-special", "--json")
		if err := json.Unmarshal([]byte(e.stdout), &got); err != nil || e.code != 0 {
			t.Fatalf("text %q: exit code %d, %v: %s", want.Text, e.code, err, e.stderr)
		}
		if !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("text %q: tokens %v: want %v", want.Text, got.Tokens, want.Tokens)
		}
		if len(got.Pieces) != len(got.Tokens) {
			t.Errorf("text %q: %d tokens but %d pieces", want.Text, len(got.Tokens), len(got.Pieces))
		}
		n++
	}
	if n < 50 {
		t.Errorf("%d texts: want at least 50", n)
	}
}

// TestGoldenVocabulary compares `tandem tokenize` with the ids that another engine gives texts with a whole SentencePiece vocabulary, of
// which the file has a part.
func TestGoldenVocabulary(t *testing.T) {
	t.Parallel()
	const vocabs = "../text/token/testdata/vocabs/"
	model, err := filepath.Abs(vocabs + "llama-spm.gguf")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ggufs.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	full, err := f.Ints("tandem.test.full_ids", 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.ReadFile(vocabs + "texts.inp")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(vocabs + "llama-spm.out")
	if err != nil {
		t.Fatal(err)
	}
	texts := strings.Split(string(in), "\n__ggml_vocab_test__\n")[:46]
	lines := strings.Split(string(out), "\n")[:len(texts)]
	w := newWorld(t)
	for i, line := range lines {
		var want []int
		for _, field := range strings.Fields(line) {
			id, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, slices.Index(full, id))
		}
		e := w.feed(texts[i], "tokenize", "--model", model, "--no-special", "--json")
		var got struct {
			Tokens []int    `json:"tokens"`
			Pieces []string `json:"pieces"`
		}
		if err := json.Unmarshal([]byte(e.stdout), &got); err != nil || e.code != 0 {
			t.Fatalf("text %q: exit code %d, %v: %s", texts[i], e.code, err, e.stderr)
		}
		if fmt.Sprint(got.Tokens) != fmt.Sprint(want) {
			t.Errorf("text %q: tokens %v: want %v", texts[i], got.Tokens, want)
		}
		if len(got.Pieces) != len(got.Tokens) {
			t.Errorf("text %q: %d tokens but %d pieces", texts[i], len(got.Tokens), len(got.Pieces))
		}
	}
}
