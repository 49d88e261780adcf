package test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
)

// emulatedGPU builds programs into a folder, with an emulated GPU in place of the driver's.
func emulatedGPU(t *testing.T, programs ...string) string {
	t.Helper()
	emulated.Open(t, emulated.Options{}) // its kernels are compiled before any clock runs
	dir := t.TempDir()
	absent, err := filepath.Abs("../kernels/cuda/gpu/absent.go")
	instead, err2 := filepath.Abs("testdata/gpu/gpu.go")
	text, err3 := json.Marshal(map[string]any{"Replace": map[string]string{absent: instead}})
	overlay := filepath.Join(dir, "overlay.json")
	if err := errors.Join(err, err2, err3, os.WriteFile(overlay, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	how := map[string][]string{"tandem": {"build", "-C", "..", "./cmd/tandem"}, "tandem-lab": {"build", "-C", "../lab", "./cmd/tandem-lab"},
		"cuda.test": {"test", "-C", "..", "-c", "./kernels/cuda"}, "engine.test": {"test", "-C", "..", "-c", "./engine"}}
	for _, file := range programs {
		args := how[file]
		args = append(args[:len(args)-1:len(args)-1], "-overlay", overlay, "-o", filepath.Join(dir, file), args[len(args)-1])
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// TestGPUCheck: the command for owners of a GPU, with an emulated one: its page has every section, and says which bits are equal. With one
// that is wrong it saves an operation from which the wrong result is computed again, by the command that the page names.
func TestGPUCheck(t *testing.T) {
	mayBeSlow(t)
	sources, err := emulated.Inexact()
	if err != nil {
		t.Fatal(err)
	}
	emulated.Open(t, emulated.Options{Sources: sources})                           // compiled, too
	programs := emulatedGPU(t, "tandem", "tandem-lab", "cuda.test", "engine.test") // those of test/scripts/gpu-check
	model := strings.TrimPrefix(draftModel, "../")
	run := func(folder string, env ...string) (page, said string, code int) {
		t.Helper()
		out := t.TempDir()
		cmd := exec.Command("scripts/gpu-check")
		cmd.Env = append(append(os.Environ(), "TANDEM="+folder, "OUT="+out, "MODELS=own", "TARGET="+model, "DRAFT="+model,
			"CONTEXT=5", "WIDTH=1,2", "CHECK_ARGS=--rounds 1 --count 1 --max-tokens 4", "TESTS=^TestWideDeltaNet$"), env...)
		text, _ := cmd.CombinedOutput()
		b, _ := os.ReadFile(filepath.Join(out, "page.md"))
		return string(b), string(text), cmd.ProcessState.ExitCode()
	}
	page, said, code := run(programs, "LIMIT=900")
	t.Logf("%s\nexit code %d", said, code) // bars are for GPUs
	for _, want := range []string{"cuda:0: emulated GPU", "Tests of kernels/cuda: 1 passed, 0 failed",
		"Tests of engine: 0 passed, 0 failed",
		" logits that were compared have the bits of cpu.", "| cuda+cpu | ", "A draft's step on cuda behind 5 tokens: ",
		"; in a chain of 8, ", "\n| cuda | 2 | ",
		"\n| cpu | 1 | ", "\n| gpu drafts | ", "| yes | `--device cpu --draft-device cuda` |", "no meter: ", "of 900 seconds."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if name := strings.TrimSuffix(filepath.Base(model), ".gguf"); strings.Contains(page, "NOT THE SAME") ||
		strings.Contains(page, "not measured: "+name) {
		t.Error("the page says that bits are not the same, or not measured")
	}
	page, said, code = run(programs, "LIMIT=300", "TANDEM_TEST_INEXACT=1", "GPU=cuda", "TESTS=^TestPrograms$/^(Gates|RoPE)$")
	_, file, _ := strings.Cut(page, "- saved: ")
	file, _, _ = strings.Cut(file, ": ")
	failing := "- NOT THE SAME: TestPrograms/Gates"
	if code != 1 || !strings.Contains(page, "**Other bits than cpu.**") || !strings.Contains(page, failing) {
		t.Fatalf("exit code %d: want 1, and what differs\n%s", code, said)
	}
	again := exec.Command(filepath.Join(programs, "cuda.test"), "-test.run", "^TestReplay$", "-test.v", "-replay", file)
	again.Dir = "../kernels/cuda"
	if text, err := again.CombinedOutput(); err != nil || !strings.Contains(string(text), ": right on cuda") {
		t.Errorf("replaying %s: %v\n%s", file, err, text)
	}
	if _, said, code := run(filepath.Dir(program), "GPU="); code != 3 || !strings.Contains(said, "gpu-check: no GPU: ") {
		t.Errorf("a program without CUDA: exit code %d, %s", code, said)
	}
}
