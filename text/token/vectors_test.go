package token

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const cutVocabs = "testdata/vocabs/"

// TestVectors compares the ids of texts with those that another engine gives them with the whole vocabulary: see
// testdata/vocabs/README.md.
func TestVectors(t *testing.T) {
	in, err := os.ReadFile(cutVocabs + "texts.inp")
	if err != nil {
		t.Fatal(err)
	}
	texts := strings.Split(string(in), "\n__ggml_vocab_test__\n")
	for _, name := range []string{"llama-spm", "gpt-2", "starcoder", "falcon", "deepseek-coder"} {
		t.Run(name, func(t *testing.T) { vectors(t, cutVocabs+name, texts) })
	}
}

func vectors(t *testing.T, path string, texts []string) {
	v, full := load(t, path+".gguf"), fullIDs(t, path+".gguf")
	plain := idLines(t, path+".out")
	marked := slices.Clone(plain)
	changed := idLines(t, path+".marked")
	for _, line := range changed {
		marked[line[0]] = line[1:]
	}
	if len(texts) != 180 || len(plain) != len(texts) {
		t.Fatalf("%d texts, %d lines of ids", len(texts), len(plain))
	}
	t.Logf("%d texts have control tokens", len(changed))
	for i, text := range texts {
		got := v.Encode(text, false)
		if whole := translated(got, full); !slices.Equal(whole, plain[i]) {
			t.Errorf("%q\n got %d\nwant %d", text, whole, plain[i])
		}
		if whole := translated(v.EncodeWithControl(text, false), full); !slices.Equal(whole, marked[i]) {
			t.Errorf("%q with control tokens\n got %d\nwant %d", text, whole, marked[i])
		}
		shown := strings.Map(func(r rune) rune { // Falcon's lacks bytes of control characters
			if r < ' ' && v.bytes[r] < 0 {
				return -1
			}
			return r
		}, text)
		if err := checkRoundTrip(v, shown, got, (*Decoder).Next); err != nil {
			t.Error(err)
		}
	}
}

// fullIDs are the ids in the whole vocabulary of the tokens of one that was cut.
func fullIDs(t *testing.T, path string) []int {
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ids, err := f.Ints("tandem.test.full_ids", 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func translated(tokens []tandem.Token, full []int) []int {
	out := make([]int, len(tokens))
	for i, t := range tokens {
		out[i] = full[t]
	}
	return out
}

// idLines reads a file of numbers.
func idLines(t *testing.T, path string) (lines [][]int) {
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(file)) {
		ids := []int{}
		for _, field := range strings.Fields(line) {
			id, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		lines = append(lines, ids)
	}
	return lines
}

// TestGolden: the prompts of the golden files get the ids of the shipped model that another engine gave them.
func TestGolden(t *testing.T) {
	file, err := os.ReadFile("testdata/prompts.out")
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]string{}
	for line := range strings.Lines(string(file)) {
		id, ids, _ := strings.Cut(strings.TrimSpace(line), " ")
		given[id] = ids
	}
	v, checked := shipped(t), 0
	eachLine(t, "../../test/testdata/prompts.jsonl", func(line []byte) {
		var p struct{ ID, Prompt string }
		if err := json.Unmarshal(line, &p); err != nil {
			t.Fatal(err)
		}
		want, ok := given[p.ID]
		if !ok {
			return
		}
		checked++
		if got := strings.Trim(fmt.Sprint(v.Encode(p.Prompt, true)), "[]"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", p.ID, got, want)
		}
	})
	if checked != len(given) || checked == 0 {
		t.Errorf("%d of %d prompts were found", checked, len(given))
	}
}

func eachLine(t *testing.T, path string, do func([]byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		do(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}
