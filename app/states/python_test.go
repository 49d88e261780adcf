package states

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPython: the reader in training/ finds what is in the shards, and refuses the same damage. PYTHON names a Python that has numpy.
func TestPython(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	if exec.Command(python, "-c", "import numpy").Run() != nil {
		t.Skipf("%s has no numpy, which training/ needs to read shards: run test/scripts/training, or set PYTHON to one that has it",
			python)
	}
	read := func(dir string) (string, error) {
		cmd := exec.Command(python, "-m", "tandem_training.states", dir)
		cmd.Dir = "../training"
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	c := config(t)
	r, all, one := mustRun(t, c)
	out, err := read(c.Out)
	var got struct {
		Name, Identity string
		Taps           []int
		Top, Dim       int
		Texts, Held    int
		Tokens         int
		HeldTokens     int `json:"held_tokens"`
		IDs, Bits      int64
		TopIDs         int64 `json:"top_ids"`
		Finite         bool
	}
	if err != nil || json.Unmarshal([]byte(out), &got) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got.Identity != string(one.Identity) || !slices.Equal(got.Taps, one.Taps) || got.Top != one.Top || got.Dim != one.Dim ||
		got.Texts != r.Texts || got.Held != r.Held || got.Tokens != r.Tokens || got.HeldTokens != r.HeldTokens || !got.Finite ||
		got.IDs != sum(one.IDs) || got.TopIDs != sum(one.TopIDs) || got.Bits != sum(one.TopProbs)+sum(one.States) {
		t.Errorf("%+v: want %+v", got, r)
	}
	path := filepath.Join(c.Out, "000001.states")
	good := []byte(all["000001.states"])
	changed := slices.Clone(good)
	changed[len(changed)/2] ^= 1
	other := must(parse(good))
	other.Identity = "other"
	for says, b := range map[string][]byte{"damaged": changed, "begins with b'xx": append([]byte("xx"), good...), "too short": good[:20],
		"identity is other": must(other.bytes()), "begins at": []byte(all["000000.states"])} {
		must(0, os.WriteFile(path, b, 0o600))
		if out, err := read(c.Out); err == nil || !strings.Contains(out, says) || !strings.Contains(out, path) {
			t.Errorf("%v: %s: want an error that says %q", err, out, says)
		}
	}
	if out, err := read(t.TempDir()); err == nil || !strings.Contains(out, "no shards") {
		t.Errorf("an empty folder: %v: %s", err, out)
	}
}

func sum[T int32 | uint16](all []T) (n int64) {
	for _, v := range all {
		n += int64(v)
	}
	return n
}
