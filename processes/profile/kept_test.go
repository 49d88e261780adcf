package profile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// keep keeps costs of a what, and fails the test if that is not possible.
func keep(t *testing.T, k Kept, w What, costs []tandem.Cost) {
	t.Helper()
	turn, ok, err := k.Turn()
	if err != nil || !ok {
		t.Fatalf("turn: %v, %v", ok, err)
	}
	defer turn.End()
	if err := turn.Keep(w, costs); err != nil {
		t.Fatal(err)
	}
}

// TestKept: what one process keeps the next finds, for the same model, device, threads and version alone. One measures at a time.
func TestKept(t *testing.T) {
	k := Kept{Cache: t.TempDir(), Version: "1"}
	costs := []tandem.Cost{{Rows: 1, Context: 128, Time: time.Millisecond}, {Rows: 8, Context: 128, Time: 2 * time.Millisecond}}
	if _, err := k.Costs(what); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("before there are any: %v, want Stale", err)
	}
	keep(t, k, what, costs)
	fewer := what
	fewer.Threads++
	keep(t, k, fewer, costs[:1])
	for w, want := range map[What][]tandem.Cost{what: costs, fewer: costs[:1]} {
		if got, err := k.Costs(w); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d threads: %v, %v: want %v", w.Threads, got, err, want)
		}
	}
	other := what
	other.Identity = tandem.IdentityParts{Tensors: "other", Shape: "s", Rope: "r", KV: "f16", Arithmetic: 1}.Identity()
	if _, err := k.Costs(other); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("of another model: %v, want Stale", err)
	}
	if _, err := (Kept{Cache: k.Cache, Version: "2"}).Costs(what); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("of another version: %v, want Stale", err)
	}
	turn, _, err := k.Turn()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := k.Turn(); ok || err != nil {
		t.Errorf("a second process measures: %v, %v", ok, err)
	}
	turn.End()
	for i := range mostSubjects + 3 {
		w := what
		w.Threads = 10 + i
		keep(t, k, w, costs)
	}
	if _, err := k.Costs(what); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("the oldest of too many: %v, want Stale", err)
	}
	none := Kept{}
	keep(t, none, what, costs)
	if _, err := none.Costs(what); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("without a cache: %v, want Stale", err)
	}
}

// TestKeptIsHostile: a file that cannot be believed is not used, and replaced by what is measured then.
func TestKeptIsHostile(t *testing.T) {
	costs := []tandem.Cost{{Rows: 1, Context: 128, Time: time.Millisecond}}
	foreign := (&Plan{}).Begin(Box{CPU: "another", Cores: 3, System: "linux/arm64"}, "1")
	foreign.Time(Subject{What: what, Points: Points(costs)})
	ofOther, err := foreign.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		kind tandem.Kind
		says string
	}{
		"garbage":            {"{", 0o600, tandem.Corrupt, "no plan"},
		"another format":     {`{"format":7}`, 0o600, tandem.Corrupt, "format 7"},
		"no machine":         {fmt.Sprintf(`{"format":%d}`, Format), 0o600, tandem.Corrupt, "another machine"},
		"of another box":     {string(ofOther), 0o600, tandem.Corrupt, "another machine"},
		"writable by others": {string(ofOther), 0o666, tandem.Corrupt, "mode 0666"},
		"too long":           {strings.Repeat(" ", MostBytes+1), 0o600, tandem.Corrupt, "bytes"},
	} {
		k := Kept{Cache: t.TempDir(), Version: "1"}
		file := k.file(".json")
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Costs(what); tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want %v with %q", name, err, c.kind, c.says)
		}
		keep(t, k, what, costs)
		if got, err := k.Costs(what); err != nil || !slices.Equal(got, costs) {
			t.Errorf("%s: measured again: %v, %v", name, got, err)
		}
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v: want mode 0600", name, st.Mode(), err)
		}
	}
	open := Kept{Cache: filepath.Join(t.TempDir(), "open"), Version: "1"}
	if err := os.Mkdir(open.Cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open.Cache, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Costs(what); tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("a folder that others can write: %v, want Corrupt", err)
	}
	if turn, ok, err := open.Turn(); !ok || tandem.KindOf(err) != tandem.Unavailable || turn.Keep(what, costs) != nil {
		t.Errorf("keeping there: %v, %v: want a turn that keeps nothing, Unavailable", ok, err)
	}
	link := Kept{Cache: t.TempDir(), Version: "1"}
	if err := os.Symlink("/dev/full", filepath.Join(link.Cache, "costs")); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := link.Turn(); !ok || err == nil {
		t.Errorf("where no folder can be: %v, %v: want a turn and an error", ok, err)
	}
}
