package supervise

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestNamedDir: a directory has the same name each time, another one while a living owner has it, and what a killed owner left is gone.
func TestNamedDir(t *testing.T) { // not beside tests that fork: a child holds locks until it runs its program
	base := t.TempDir()
	named := func(want string) *RunDir {
		t.Helper()
		d, err := NamedDir(base, "agent")
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(d.Path); err != nil || d.Path != filepath.Join(base, want) || st.Mode().Perm() != 0o700 {
			t.Fatalf("%s, mode %v, error %v: want %s of mode 0700", d.Path, st.Mode(), err, want)
		}
		return d
	}
	first := named("agent")
	second := named("agent-2")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	first = named("agent")
	if err := os.WriteFile(first.File("left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := first.release(); err != nil { // as a process that was killed
		t.Fatal(err)
	}
	first = named("agent")
	if _, err := os.Stat(first.File("left")); err == nil {
		t.Error("a file of the owner that was killed is still there")
	}
	var all sync.WaitGroup
	dirs := []*RunDir{first, second}
	paths := map[string]bool{}
	var mu sync.Mutex
	for range 20 {
		all.Go(func() {
			d, err := NamedDir(base, "agent")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			dirs, paths[d.Path] = append(dirs, d), true
		})
	}
	all.Wait()
	if len(paths) != 20 {
		t.Errorf("%v: want 20 directories for 20 owners", paths)
	}
	for _, d := range dirs {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNotes: the run directory of a killed owner goes at the next start of that user, wherever that one has its own.
func TestNotes(t *testing.T) { // not beside tests that fork: a child holds locks until it runs its program
	notes := filepath.Join(t.TempDir(), "runs")
	var dirs []*RunDir
	for range 3 {
		d, err := NewRunDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		d.Note(notes)
		dirs = append(dirs, d)
		if len(dirs) == 1 {
			_ = d.release() // killed
		}
	}
	for i, want := range []bool{false, true, true} {
		if _, err := os.Stat(dirs[i].Path); (err == nil) != want {
			t.Errorf("directory %d is there: %v, want %v", i, err == nil, want)
		}
	}
	precious := filepath.Join(t.TempDir(), "tandem-1x")
	if err := os.MkdirAll(precious, 0o700); err != nil {
		t.Fatal(err)
	}
	_ = os.Symlink(precious, filepath.Join(notes, "other"))
	last, err := NewRunDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	last.Note(notes)
	if _, err := os.Stat(precious); err != nil {
		t.Error("what is no run directory was removed")
	}
	_ = os.Remove(filepath.Join(notes, "other"))
	for _, d := range append(dirs[1:], last) {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(notes); !os.IsNotExist(err) {
		t.Errorf("the notes are still there: %v", err)
	}
}
