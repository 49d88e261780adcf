package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestGuessesOfMTP: the draft inside a target's own file is measured by the name that it has everywhere.
func TestGuessesOfMTP(t *testing.T) {
	dir := t.TempDir()
	m := family.Random("qwen35", 6)
	m.WithMTP(6)
	prompts := filepath.Join(dir, "prompts.jsonl")
	line := `{"id":"a","domain":"go","prompt":"func main() {"}` + "\n" + `{"id":"b","domain":"go","prompt":"package main"}` + "\n"
	if err := os.WriteFile(prompts, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: io.Discard, ctx: t.Context()}
	c := &guessesCmd{Target: m.Write(t, dir), Draft: []string{"mtp"}, Prompts: prompts, Count: 1, Calibrate: 1, MaxTokens: 24,
		Temperature: []float64{0}, Seed: 1, Width: []int{2, 4}, Rounds: 1}
	c.ISA, c.Device = "auto", "cpu"
	if err := c.Run(a); err != nil || !strings.Contains(out.String(), "\n  mtp: mtp of 1 blocks") {
		t.Errorf("%v\n%s", err, &out)
	}
	c.Target = ""
	if err := c.Run(a); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "want --target") {
		t.Errorf("mtp without a target: %v: want that it be named", err)
	}
}
