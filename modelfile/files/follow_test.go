package files

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestFollow: what is read follows two files; what cannot be used changes nothing, and is told once.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	put := func(path, text string) {
		t.Helper()
		if err := Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	put(a, "1")
	put(b, "1")
	reads, told := 0, []string(nil)
	f, err := Follow(func() (string, error) {
		reads++
		x, err := ReadFile(a, 10)
		y, err2 := ReadFile(b, 10)
		switch {
		case err != nil || err2 != nil:
			return "", errors.New("cannot be read")
		case string(x) != string(y):
			return "", errors.New(string(x) + " and " + string(y) + " do not belong together")
		}
		return string(x), nil
	}, func(why error) { told = append(told, why.Error()) }, a, b)
	if err != nil {
		t.Fatal(err)
	}
	f.again = time.Hour
	want := func(when, text string, times int, all ...string) {
		t.Helper()
		for range 3 {
			if got := f.Now(); got != text {
				t.Fatalf("%s: %q, want %q", when, got, text)
			}
		}
		if reads != times || !slices.Equal(told, all) {
			t.Errorf("%s: read %d times, told %q: want %d and %q", when, reads, told, times, all)
		}
	}
	want("at first", "1", 1)
	put(a, "2")
	want("with one of two", "1", 2, "2 and 1 do not belong together")
	put(b, "2")
	want("with both", "2", 3, "2 and 1 do not belong together")
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	want("with one gone", "2", 4, "2 and 1 do not belong together", "cannot be read")
	put(b, "2")
	want("with both again", "2", 5, "2 and 1 do not belong together", "cannot be read")
	if err := os.WriteFile(a, []byte("3"), 0o600); err != nil { // in place
		t.Fatal(err)
	}
	if err := os.Chtimes(a, time.Time{}, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	want("written in place", "2", 6, "2 and 1 do not belong together", "cannot be read", "3 and 2 do not belong together")
	f.again = 0
	reads = 0
	if f.Now(); reads != 1 || len(told) != 3 {
		t.Errorf("unchanged, a while later: read %d times, told %q: want one more look, and no word", reads, told)
	}
}
