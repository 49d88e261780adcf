package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestPlaced: a later start finds where models were placed, for the same box, GPU, driver, version, files and type of cache alone. What is
// damaged, of another machine or can be written by others does not count, and says so; it is replaced.
func TestPlaced(t *testing.T) {
	round := Round{Text: "assumed", Nodes: 1, Tokens: 1, VerifyNS: 1e6}
	at := func(device string, speed float64) Placement {
		return Placement{Device: device, DraftDevice: "cpu", TokensPerSecond: speed, Rounds: []Round{round}}
	}
	k := Kept{Cache: t.TempDir(), Version: "1", GPU: "NVIDIA H200, driver 550"}
	of := Placed{Target: Sighting{"t.gguf", 9, 1}, Drafts: []Sighting{{"d.gguf", 3, 1}}, KV: "f16"}
	made := of
	made.Now, made.Placements = at("cpu", 10), []Placement{at("cuda", 30), at("cpu", 10)}
	if _, err := k.Placed(of); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("before there is any: %v", err)
	}
	for range 2 {
		if err := k.Place(made); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := k.Placed(of); err != nil || len(got.Placements) != 2 || got.Placements[0].Device != "cuda" || got.Now.Device != "cpu" {
		t.Errorf("kept %+v, %v", got, err)
	}
	newer, changed, cache, alone := k, of, of, of
	newer.GPU = "NVIDIA H200, driver 570"
	changed.Target.Changed, cache.KV, alone.Drafts = 2, "q8_0", nil
	later := k
	later.Version = "2"
	for name, c := range map[string]struct {
		k  Kept
		of Placed
	}{"driver": {newer, of}, "file": {k, changed}, "cache": {k, cache}, "drafts": {k, alone}, "version": {later, of},
		"none": {Kept{}, of}} {
		if got, err := c.k.Placed(c.of); tandem.KindOf(err) != tandem.Stale || got.Placements != nil {
			t.Errorf("another %s: %+v, %v: want Stale", name, got, err)
		}
	}
	all, err := filepath.Glob(filepath.Join(k.Cache, "costs", "*"+placedFile))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	whole, err := os.ReadFile(all[0])
	if err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{"no plan": string(whole[:len(whole)/2]),
		"another machine":       strings.Replace(string(whole), "550", "551", 1),
		"-30 tokens per second": strings.Replace(string(whole), `: 30,`, `: -30,`, 1)} {
		if err := os.WriteFile(all[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Placed(of); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if err := os.Chmod(all[0], 0o622); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Placed(of); tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("others may write it: %v", err)
	}
	if err := k.Place(made); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Placed(of); err != nil {
		t.Errorf("not replaced: %v", err)
	}
}
