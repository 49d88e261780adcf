package start

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/processes/settings"
)

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	if err := os.WriteFile(file, []byte("# ours\n a \n\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := settings.Web{APIKey: []string{"c"}, APIKeys: file}
	if got, err := Tokens(f); err != nil || !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("keys %q, %v", got, err)
	}
}

// TestMetricsKey refuses a file of the metrics' key that holds none.
func TestMetricsKey(t *testing.T) {
	f := settings.Web{MetricsKey: filepath.Join(t.TempDir(), "m")}
	for text, says := range map[string]string{"": "holds no key", "# none\n": "holds no key", "a b\n": "visible ASCII", "scraper\n": ""} {
		if err := os.WriteFile(f.MetricsKey, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := CheckWeb(f); (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("a file with %q: %v, want %q", text, err, says)
		}
	}
	os.Remove(f.MetricsKey)
	if err := CheckWeb(f); err == nil || !strings.Contains(err.Error(), "--metrics-key") {
		t.Errorf("without the file: %v", err)
	}
}

// TestPullKey: where clients have keys, to pull is a right that must be given; a right to nothing is refused.
func TestPullKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pull")
	if err := os.WriteFile(file, []byte("puller\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	most, clients := new(settings.Size(1<<30)), []string{"client"}
	for _, tc := range []struct {
		f     settings.Web
		says  string
		keyed bool
	}{{settings.Web{AllowPull: most}, "", false}, {settings.Web{AllowPull: most, PullKey: file, APIKey: clients}, "", true},
		{settings.Web{AllowPull: most, APIKey: clients}, "want --pull-key", false},
		{settings.Web{PullKey: file}, "without --allow-pull", false},
		{settings.Web{AllowPull: most, PullKey: file + "x"}, "--pull-key", false}} {
		keys, err := PullKeys(tc.f)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) || (keys != nil) != tc.keyed {
			t.Errorf("%+v: %v, %v: want %q", tc.f, keys, err, tc.says)
		}
		if wrong := CheckWeb(tc.f); (wrong == nil) != (err == nil) {
			t.Errorf("%+v: up says %v", tc.f, wrong)
		}
	}
}

// TestKeyFiles: a file that others can write is refused, one that others can read and short keys are told of, and a pipe does not block.
func TestKeyFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string, mode os.FileMode) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	const long = "a-key-of-this-test-1"
	for _, tc := range []struct {
		text string
		mode os.FileMode
		err  string
		warn []string
	}{{long, 0o600, "", nil}, {long, 0o644, "", []string{"mode 0644"}}, {long, 0o622, "others can write", nil},
		{long + "\nk\n", 0o600, "", []string{"key 2 of 2 has 1 characters"}}} {
		write(tc.text, tc.mode)
		f := settings.Web{APIKeys: path}
		_, err := Tokens(f)
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q with mode %o: %v: want %q", tc.text, tc.mode, err, tc.err)
		}
		var said []string
		WarnOfKeys(f, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
		if err == nil && len(said) != len(tc.warn) {
			t.Errorf("%q with mode %o: told %q: want %q", tc.text, tc.mode, said, tc.warn)
			continue
		}
		for i, w := range tc.warn {
			if !strings.Contains(said[i], w) || strings.Contains(said[i], long) {
				t.Errorf("%q with mode %o: told %q: want %q", tc.text, tc.mode, said[i], w)
			}
		}
	}
	_ = os.Remove(path)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Tokens(settings.Web{APIKeys: path}); err == nil ||
		!strings.Contains(err.Error(), "a pipe: want a regular file") {
		t.Errorf("a pipe: %v", err)
	}
}
