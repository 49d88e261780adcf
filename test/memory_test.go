package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit/family"
)

// leastBudget is the least memory in which the shipped models run, as generate says it.
func (w *world) leastBudget(args ...string) string {
	w.t.Helper()
	return w.leastOf(append([]string{"generate", "--prompt", "x"}, args...)...)
}

// leastOf is the least memory in which a command runs, as it says it.
func (w *world) leastOf(args ...string) string {
	w.t.Helper()
	e := w.run(append(args, "--memory-budget", "1MiB")...)
	_, rest, found := strings.Cut(e.stderr, "want --memory-budget ")
	least, _, cut := strings.Cut(rest, ",")
	if e.code == 0 || !found || !cut {
		w.t.Fatalf("%q with 1 MiB: exit code %d, %q: want the least that works", args, e.code, e.stderr)
	}
	return least
}

// packed returns the packed file in a cache folder.
func packed(t testing.TB, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "packed", "*", "*.packed"))
	if err != nil || len(found) != 1 {
		t.Fatalf("packed files %q, %v: want one", found, err)
	}
	return found[0]
}

// TestMemoryBudget: in the least memory that works the shipped target is streamed, and the text is the golden one: while two packs its
// file at the same time, when it is found, with no place for it, and when it is damaged.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile(readmeGolden)
	if err != nil {
		t.Fatal(err)
	}
	w, dir := newWorld(t), disk(t)
	least := w.leastBudget()
	run := func(says string, args ...string) {
		t.Helper()
		e := w.run(append([]string{"generate", "--prompt", "func (r *Reader) Read(", "--memory-budget", least}, args...)...)
		streamed := strings.Contains(e.stderr, "are read by each pass")
		if e.code != 0 || e.stdout != string(golden) || !streamed || !strings.Contains(e.stderr, says) {
			t.Errorf("%q: exit code %d, %q, %q: want the golden text, and %q", args, e.code, e.stdout, e.stderr, says)
		}
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { run("", "--cache", dir) })
	}
	both.Wait()
	if err := os.Truncate(packed(t, dir), 1<<20); err != nil {
		t.Fatal(err)
	}
	run("is made again", "--cache", dir)
	run("no packed copy of the target can be kept", "--cache", disk(t), "--cache-limit", "1MiB")
	for flag, says := range map[string]string{"0": "--memory-budget is 0.0 MiB: want", "-5": "no size", "999TiB": "this machine's memory"} {
		refused(t, w.run("generate", "--prompt", "x", "--memory-budget="+flag), says)
	}
	refused(t, w.run("verifier", "--memory-budget", "1GiB", "--device", "cuda"), "want --device cpu")
	refused(t, w.run("bench", "decode", "--memory-budget", "1MiB"), "want --memory-budget ")
}

// TestMemoryBudgetAssistant: an assistant runs beside a streamed target and counts in the budget, also in what is said beforehand; the text
// is that of the target alone. Heads that borrow the output matrix are refused.
func TestMemoryBudgetAssistant(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	dir, w := t.TempDir(), newWorld(t)
	target, assistant := family.Golden("gemma4").Write(t, dir), family.Golden("gemma4-assistant").Write(t, dir)
	var info struct {
		Memory struct {
			Total int64 `json:"total_bytes"`
			Heads int64 `json:"heads_bytes"`
		}
		Budgets struct {
			Of []struct {
				Resident int64 `json:"resident_bytes"`
				PerPass  int64 `json:"pass_bytes"`
				Why      string
			}
		}
	}
	ask := func(budget int64, heads ...string) {
		t.Helper()
		args := []string{"model", "info", target, "--json", "--ctx", "256", "--sessions", "1", "--memory-budget", fmt.Sprint(budget)}
		for _, h := range heads {
			args = append(args, "--heads", h)
		}
		info.Memory.Heads, info.Budgets.Of = 0, nil
		if err := json.Unmarshal([]byte(w.ok(args...).stdout), &info); err != nil || len(info.Budgets.Of) == 0 {
			t.Fatal(info, err)
		}
	}
	ask(1<<30, assistant)
	budget, heads := info.Memory.Total, info.Memory.Heads
	for info.Budgets.Of[0].PerPass == 0 { // the cache gives way first
		if budget -= 64 << 10; budget < info.Memory.Total/2 {
			t.Fatal("nothing is streamed, however little memory there is")
		}
		ask(budget, assistant)
	}
	if of := info.Budgets.Of[0]; of.PerPass == 0 || of.Resident < heads || heads < 400<<10 {
		t.Errorf("%d bytes with an assistant of %d: %+v", budget, heads, of)
	}
	ask(budget)
	if of := info.Budgets.Of[0]; of.PerPass != 0 || info.Memory.Heads != 0 {
		t.Errorf("%d bytes without: %+v, want all in memory", budget, of)
	}
	generate := []string{"generate", "--target", target, "--draft", "lookup", "--prompt", "hello", "--ctx", "256", "--max-tokens", "40",
		"--ignore-eos", "--cache", disk(t)}
	want := w.ok(append(generate, "--no-draft")...)
	within := append(generate, "--memory-budget", fmt.Sprint(budget+64<<20), "--heads", assistant) // with the gateway
	got := w.ok(append(within, "--drafters", "assistant", "--strategy", "fixed")...)
	if got.stdout != want.stdout || !strings.Contains(got.stderr, "are read by each pass") {
		t.Errorf("%q, %q: want %q, streamed", got.stdout, got.stderr, want.stdout)
	}
	least := w.leastBudget("--heads", "medusa")
	refused(t, w.run("generate", "--prompt", "x", "--heads", "medusa", "--memory-budget", least), "want none but an assistant")
}

// TestMemoryBudgetFault: a packed file that is changed under a running verifier ends the verifier, which makes it again; the request goes
// on, with the right tokens.
func TestMemoryBudgetFault(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), disk(t)
	want := w.generate("--prompt", "func main() {", "--max-tokens", "64", "--no-draft")
	least := w.leastBudget("--sessions", "1")
	g := up(t, "--sessions", "1", "--memory-budget", least, "--cache", dir)
	old := g.w.one(t, "verifier")
	file, err := os.OpenFile(packed(t, dir), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(64 << 10); at < st.Size(); at += 64 << 10 {
		if _, err := file.WriteAt([]byte("garbage"), at); err != nil {
			t.Fatal(err)
		}
	}
	got := g.w.generate("--addr", "unix://"+filepath.Join(g.w.tmp, "g.sock"), "--prompt", "func main() {", "--max-tokens", "64")
	if got.Text != want.Text {
		t.Errorf("text %q, want %q", got.Text, want.Text)
	}
	g.back(t, "verifier", old)
}
