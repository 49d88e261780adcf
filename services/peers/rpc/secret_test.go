package rpc

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(tmp, mode), os.Rename(tmp, path)); err != nil {
		t.Fatal(err)
	}
}

const one, two = "the-first-secret-of-a-test", "the-second-secret-of-a-test"

func TestBadSecretFiles(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		says string
	}{
		"readable by others": {one, 0o604, "want 0600"},
		"writable by others": {one, 0o620, "want 0600"},
		"empty":              {"", 0o600, "16 to 1024"},
		"short":              {"short\n", 0o600, "16 to 1024"},
		"two lines":          {one + "\n" + two, 0o600, "visible ASCII"},
		"long":               {strings.Repeat("x", mostSecret+1), 0o600, "16 to 1024"},
		"binary":             {"0123456789abcdef\x00", 0o600, "visible ASCII"},
		"with spaces":        {"the first secret of a test", 0o600, "visible ASCII"},
	} {
		path := filepath.Join(dir, "f")
		write(t, path, c.text, c.mode)
		_, err := OpenSecret(path, nil)
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v: want %q", name, err, c.says)
		} else if strings.Contains(err.Error(), "secret-of-a-test") || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%s: the error shows the secret: %v", name, err)
		}
	}
	if _, err := OpenSecret(filepath.Join(dir, "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := OpenSecret(dir, nil); err == nil {
		t.Error("a folder is taken for a secret")
	}
	itself := func(secret string) string { return secret }
	var nobody *Secret
	if nobody.accepts("", itself) || nobody.AcceptsPool("", Drafter) || nobody.current() != "" || nobody.PoolToken(Drafter) != "" {
		t.Error("no secret accepts something")
	}
}

// TestSecretIsReplaced: the new one counts at once, the one before for a while, what cannot be used never.
func TestSecretIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	write(t, path, one+"\n", 0o600)
	var log bytes.Buffer
	server, err := OpenSecret(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	counters := new(tandem.Counters)
	server.Count(counters)
	caller, err := OpenSecret(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	itself := func(secret string) string { return secret }
	check := func(when string, accepted ...string) {
		t.Helper()
		for _, given := range []string{one, two, "something-else-of-a-test", ""} {
			want := false
			for _, a := range accepted {
				want = want || a == given
			}
			if got := server.accepts(given, itself); got != want {
				t.Errorf("%s: %q is accepted: %v, want %v", when, given, got, want)
			}
			if got := server.AcceptsPool(poolToken(given, Drafter), Drafter); got != want && given != "" {
				t.Errorf("%s: the pool's token of %q is accepted: %v, want %v", when, given, got, want)
			}
		}
	}
	check("at first", one)
	if caller.current() != one {
		t.Errorf("the caller shows %q", caller.current())
	}
	write(t, path, two, 0o600)
	if !server.accepts(two, itself) { // before it was time to look
		t.Error("the new secret is not known at once")
	}
	check("during the overlap", one, two)
	testkit.Eventually(t, "the caller notices the new secret", func() bool { return caller.current() == two })
	write(t, path, one, 0o644)
	server.refresh(true)
	server.refresh(true)
	check("after a file that others can read", one, two)
	if caller.current() != two || strings.Count(log.String(), "want 0600") != 1 || strings.Contains(log.String(), one) {
		t.Errorf("told: %s", log.String())
	}
	if n := counters.Snapshot()["secrets.refused"]; n != 1 {
		t.Errorf("%d files that cannot be used are counted: want 1", n)
	}
	later := *server.state.Load()
	later.until = time.Now().Add(-time.Second)
	server.state.Store(&later)
	check("after the overlap", two)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	server.refresh(true)
	check("after the file went away", two)
}

// TestDefaultSecret: whoever comes first makes it, all find the same, nobody else can read it.
func TestDefaultSecret(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", base)
	early, err := DefaultSecret(false, nil)
	if err != nil || early.current() != "" {
		t.Fatalf("before there is one: %q, %v", early.current(), err)
	}
	made, err := DefaultSecret(true, nil)
	if err != nil || len(made.current()) < leastSecret {
		t.Fatalf("made: %v", err)
	}
	again, err := DefaultSecret(true, nil)
	if err != nil || again.current() != made.current() {
		t.Errorf("another one was made: %v", err)
	}
	early.look.Store(0)
	if early.current() != made.current() {
		t.Error("a process that was there before does not find it")
	}
	info, err := os.Stat(filepath.Join(base, "tandem", "secret"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Join(base, "tandem"))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the folder: %v, %v", entries, err)
	}
}

func TestFolder(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", base)
	path := filepath.Join(base, "tandem")
	for range 2 {
		got, err := Folder()
		if info, _ := os.Lstat(path); err != nil || got != path || info.Mode().Perm() != 0o700 {
			t.Fatalf("%s, %v", got, err)
		}
	}
	bad := func(what, says string) {
		t.Helper()
		if _, err := Folder(); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v: want %q", what, err, says)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o750); err != nil {
		t.Fatal(err)
	}
	bad("open to a group", "want 0700")
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	bad("a link", "no folder")
	write(t, path, "x", 0o600)
	bad("a file", "no folder")
	if os.Getuid() == 0 {
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		bad("another user's", "belongs to user 12345")
		if err := os.Chown(base, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if got, err := Folder(); got != "/run/tandem" {
			t.Errorf("with another user's XDG_RUNTIME_DIR: %s, %v", got, err)
		}
	}
}
