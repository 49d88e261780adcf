package access

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

func TestTenant(t *testing.T) {
	k, err := New([]string{"alpha-123", "beta~!"})
	if err != nil {
		t.Fatal(err)
	}
	a, okA := k.Tenant("Bearer alpha-123")
	b, okB := k.Tenant("bearer  beta~! ")
	if !okA || !okB || a == b || len(a) != 32 || strings.Contains(a, "alpha") {
		t.Errorf("tenants %q %v, %q %v", a, okA, b, okB)
	}
	other, err := New([]string{"x", "alpha-123"})
	if err != nil {
		t.Fatal(err)
	}
	if again, ok := other.Tenant("Bearer alpha-123"); !ok || again != a {
		t.Errorf("the same token is tenant %q among other keys, %q before", again, a)
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "alpha-123", "Basic alpha-123", "Bearer alpha-12", "Bearer alpha-1234",
		"Bearer ALPHA-123", "Bearer alpha-123,beta~!", "Bearer alpha-123 x", "Bearer\talpha-123", strings.Repeat("Bearer ", 1000)} {
		if name, ok := k.Tenant(header); ok || name != "" {
			t.Errorf("%.40q is let in as %q", header, name)
		}
	}
}

func TestNoKeys(t *testing.T) {
	k, err := New(nil)
	if err != nil || k != nil {
		t.Fatalf("%v, %v: want nil", k, err)
	}
	if name, ok := k.Tenant("anything"); !ok || name != "" {
		t.Errorf("without keys: %q, %v", name, ok)
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	for _, bad := range []string{"", "a b", "a\n", "é", "\xff", "a\x7f", strings.Repeat("x", maxToken+1)} {
		_, err := New([]string{"good", bad})
		if !errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), "key 2 of 2") || len(bad) > 1 &&
			strings.Contains(err.Error(), bad) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// TestKeysFollowTheirFile: keys that are added and removed count at once; a file that cannot be used changes nothing, and is told once.
func TestKeysFollowTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	put := func(text string) {
		t.Helper()
		if err := files.Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	put("alpha beta")
	k, err := Follow(path, func() ([]string, error) {
		all, err := files.ReadFile(path, 100)
		if words := strings.Fields(string(all)); err == nil && len(words) > 0 {
			return words, nil
		}
		return nil, errors.New("holds no key")
	})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	counters := new(tandem.Counters)
	k.Report(slog.New(slog.NewTextHandler(&log, nil)), counters)
	opens := func(when, all string) {
		t.Helper()
		got := ""
		for _, token := range []string{"alpha", "beta", "gamma"} {
			if _, ok := k.Tenant("Bearer " + token); ok {
				got += token + " "
			}
		}
		if got != all {
			t.Errorf("%s: %q are let in, want %q", when, got, all)
		}
	}
	opens("at first", "alpha beta ")
	alpha, _ := k.Tenant("Bearer alpha")
	put("alpha gamma")
	opens("with another key", "alpha gamma ")
	if again, _ := k.Tenant("Bearer alpha"); again != alpha || len(k.Tenants()) != 2 {
		t.Errorf("tenants %q of %q: want those of both keys, one as before", again, k.Tenants())
	}
	put("")
	opens("emptied", "alpha gamma ")
	put("alpha \x01")
	opens("damaged", "alpha gamma ")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	opens("gone", "alpha gamma ")
	if n := strings.Count(log.String(), "stay as they were"); n != 3 || counters.Snapshot()["keys.refused"] != 3 {
		t.Errorf("told %d times, counted %v: want once for each: %s", n, counters.Snapshot(), &log)
	}
	put("beta")
	opens("there again", "beta ")
}
