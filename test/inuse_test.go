package test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestInUse: what `model info` says a process takes with a text of 2,048 and more tokens is within 3 % of what a verifier takes (PSS) that
// has read one and has continued it, of a made model with a large vocabulary and of real ones.
func TestInUse(t *testing.T) {
	mayBeSlow(t)
	t.Run("made", func(t *testing.T) {
		path := filepath.Join(disk(t), "made.gguf")
		newWorld(t).ok("model", "random", "--like", "granite-4-micro", "--layers", "3", "--type", "q4_k_m", "--out", path)
		inUse(t, path, 0)
	})
	t.Run("smollm2", func(t *testing.T) { inUse(t, testkit.RealModel(t, testkit.RealGoldens["smollm2"]), 0) })
	for i, long := range []string{"2k", "8k"} {
		t.Run("qwen2.5-0.5b of "+long, func(t *testing.T) { inUse(t, testkit.RealModel(t, testkit.RealGoldens["qwen2.5-0.5b"]), i) })
	}
}

// inUse compares them for the row-th of the texts that `model info` names.
func inUse(t *testing.T, path string, row int) {
	const after, bar = 32, 0.03
	tokens := []int{2048, 8192}[row]
	args := []string{"--ctx", strconv.Itoa(max(4096, tokens)), "--sessions", "1"}
	var info struct {
		Memory struct {
			InUse []struct{ Tokens, Bytes int64 } `json:"in_use"`
		}
	}
	out := newWorld(t).ok(append([]string{"model", "info", path, "--json"}, args...)...).stdout
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		t.Fatal(err)
	}
	if len(info.Memory.InUse) <= row || info.Memory.InUse[row].Tokens != int64(tokens) {
		t.Fatalf("%+v: want what %d tokens take", info, tokens)
	}
	g := upWeb(t, "", append([]string{"--target", path, "--draft", "lookup"}, args...)...)
	read := func(words int) int {
		var text strings.Builder
		for i := range words {
			fmt.Fprintf(&text, " %d", i*7919%1000)
		}
		c := g.complete(t, map[string]any{"prompt": text.String(), "max_tokens": after, "ignore_eos": true})
		return c.Usage.Prompt
	}
	each := float64(read(400)-read(100)) / 300            // tokens a word
	words := int(float64(tokens-tokens/128-after) / each) // a little less, since more than the context is refused
	for part := 2000; part < words; part += 2000 {        // so that no request takes long: each reads what follows the last one
		read(part)
	}
	got := read(words) + after
	verifiers := g.w.role("verifier")
	if got < tokens*9/10 || got > tokens*11/10 || len(verifiers) != 1 {
		t.Fatalf("a text of %d tokens, verifiers %v: want about %d, and one", got, verifiers, tokens)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", verifiers[0]))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^Pss: +(\d+) kB`).FindStringSubmatch(string(maps))
	if found == nil {
		t.Fatalf("no Pss in %s", maps)
	}
	kib, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	real, said := float64(kib)*1024, float64(info.Memory.InUse[row].Bytes)
	t.Logf("%d tokens: %.1f MiB are said, %.1f MiB are taken", got, said/(1<<20), real/(1<<20))
	if math.Abs(said-real) > bar*real {
		t.Errorf("%.1f MiB are said, %.1f MiB are taken: want a difference of at most 3 %%", said/(1<<20), real/(1<<20))
	}
}
