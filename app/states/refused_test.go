package states

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// summed returns a file of that body with the right sum.
func summed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(append([]byte{}, body...), sum[:]...)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestRefused: bad input is refused by name before a pass is run.
func TestRefused(t *testing.T) {
	dir := write(t, map[string]string{"empty/x": "", "binary": "\x00", "bad.jsonl": `{"prompt":1}`, "both.jsonl": "{}\n",
		"chat.jsonl": `{"messages":[{"role":"user","content":"q"}]}`, "other/file": "text", "text": "some text"})
	in := func(name string) []string { return []string{filepath.Join(dir, name)} }
	for says, change := range map[string]func(*Config){
		"no texts: want --texts PATH":       func(c *Config) { c.Texts, c.Prompts = nil, nil },
		"--out is empty":                    func(c *Config) { c.Out = "" },
		"no texts in":                       func(c *Config) { c.Texts, c.Prompts = in("empty"), nil },
		"it is not UTF-8 text":              func(c *Config) { c.Texts = in("binary") },
		"no such file":                      func(c *Config) { c.Texts = in("absent") },
		"line 1: json":                      func(c *Config) { c.Prompts = in("bad.jsonl") },
		"line 1: want prompt or messages":   func(c *Config) { c.Prompts = in("both.jsonl") },
		"line 1 has messages":               func(c *Config) { c.Prompts = in("chat.jsonl") },
		"no chat template":                  func(c *Config) { c.Prompts, c.Raw = in("chat.jsonl"), false },
		"the hidden state after 7 layers":   func(c *Config) { c.Taps = []int{7} },
		"the hidden state after 0 layers":   func(c *Config) { c.Taps = []int{0} },
		"--taps [2 2]: 2 is named twice":    func(c *Config) { c.Taps = []int{2, 2} },
		"--taps is empty":                   func(c *Config) { c.Taps = nil },
		"--top is 65: want 1 to 64":         func(c *Config) { c.Top = 65 },
		"--ctx is 1":                        func(c *Config) { c.Context = 1 },
		"--sessions is 65: want 1 to 64":    func(c *Config) { c.Sessions = 65 },
		"--answer-tokens is 0":              func(c *Config) { c.AnswerTokens = 0 },
		"--top-p is 0":                      func(c *Config) { c.Sampling.TopP = 0 },
		"--top-k is -1":                     func(c *Config) { c.Sampling.TopK = -1 },
		"--temperature is -1":               func(c *Config) { c.Sampling.Temperature = -1 },
		"--max-tokens is -1":                func(c *Config) { c.MaxTokens = -1 },
		"--max-size is -1":                  func(c *Config) { c.MaxSize = -1 },
		`has the file "file" and no states`: func(c *Config) { c.Out = in("other")[0] },
		"not a directory":                   func(c *Config) { c.Out = in("text")[0] },
	} {
		c := config(t)
		change(&c)
		c.Progress = func(Progress) { t.Errorf("%s: a pass was run", says) }
		if _, err := Run(t.Context(), c); !errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: want Invalid that says %q", err, says)
		}
	}
}

// TestOtherRun: a folder is not gone on with by another run, and not with damaged shards.
func TestOtherRun(t *testing.T) {
	c := config(t)
	c.Texts = nil
	c.ShardSize = 1 // a shard for each text
	mustRun(t, c)
	first, second := filepath.Join(c.Out, "000000.states"), filepath.Join(c.Out, "000001.states")
	good := must(os.ReadFile(first))
	refused := func(kind tandem.Kind, says string) {
		t.Helper()
		if _, err := Run(t.Context(), c); !errors.Is(err, kind) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: want %v that says %q", err, kind, says)
		}
	}
	for says, change := range map[string]func(*Config){
		`--taps was "2 6 -1" and is "2 -1"`: func(c *Config) { c.Taps = []int{2, -1} },
		`--top was "8" and is "9"`:          func(c *Config) { c.Top = 9 },
		`--seed was "0" and is "1"`:         func(c *Config) { c.Sampling.Seed = 1 },
		`--texts and --prompts was "3 te`:   func(c *Config) { c.Texts = config(t).Texts },
		`--model's identity was`: func(c *Config) {
			c.Model, c.Taps = "../../models/gopher-draft-all-f16.gguf", []int{1}
			c.Open = open(c.Model)
		},
	} {
		was := c
		change(&c)
		refused(tandem.Invalid, says)
		c = was
	}
	spoil := func(path string, b []byte, kind tandem.Kind, says string) {
		t.Helper()
		was := must(os.ReadFile(path))
		must(0, os.WriteFile(path, b, 0o600))
		refused(kind, path)
		refused(kind, says)
		must(0, os.WriteFile(path, was, 0o600))
	}
	changed := append([]byte{}, good...)
	changed[len(changed)/2] ^= 1
	spoil(first, changed, tandem.Corrupt, "damaged: its sum is")
	spoil(first, good[:len(good)-1], tandem.Corrupt, "damaged: its sum is")
	spoil(first, good[:10], tandem.Corrupt, "or is too short")
	spoil(first, []byte(strings.Repeat("x", 100)), tandem.Corrupt, "does not begin with TDMSTATE")
	newer := append([]byte{}, good...)
	newer[8] = 2
	spoil(first, newer, tandem.Unsupported, "version 2 of states: want 1")
	other := must(parse(good))
	other.Identity = "other"
	spoil(first, must(other.bytes()), tandem.Invalid, `of a model with identity other`)
	other = must(parse(good))
	other.Tokens++
	spoil(first, must(other.bytes()), tandem.Corrupt, "the arrays have")
	spoil(second, good, tandem.Invalid, "begins with text 0")
	spoil(filepath.Join(c.Out, aboutName), []byte("{"), tandem.Corrupt, "want what tandem model states has written")
	must(0, os.Remove(first))
	refused(tandem.Invalid, "000000.states, the shard before it, is not")
	must(0, os.WriteFile(first, good, 0o600))
	f, err := openFolder(t.TempDir(), nil, Shape{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(f.dir, nil, Shape{}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("%v: want Unavailable while another writes", err)
	}
	f.close()
}
