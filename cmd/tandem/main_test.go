package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/pool"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		cores, drafter, verifier int
		draft                    string
		wantDrafter, wantVerify  int
	}{
		{cores: 1, draft: "d", wantDrafter: 1, wantVerify: 1},
		{cores: 2, draft: "d", wantDrafter: 1, wantVerify: 2},
		{cores: 4, draft: "d", wantDrafter: 1, wantVerify: 4},
		{cores: 16, draft: "d", wantDrafter: 4, wantVerify: 16},
		{cores: 16, wantDrafter: 0, wantVerify: 16},
		{cores: 16, draft: "d", drafter: 2, wantDrafter: 2, wantVerify: 16},
		{cores: 16, draft: "d", drafter: 2, verifier: 3, wantDrafter: 2, wantVerify: 3},
	} {
		var drafts []string
		if tc.draft != "" {
			drafts = []string{tc.draft}
		}
		l := launch{drafts: drafts, groupFlags: groupFlags{DrafterThreads: tc.drafter, VerifierThreads: tc.verifier}}
		if d, v := l.split(tc.cores); d != tc.wantDrafter || v != tc.wantVerify {
			t.Errorf("%+v: %d and %d threads", tc, d, v)
		}
	}
}

func TestParseTokens(t *testing.T) {
	got, err := parseTokens("1, 22,333")
	if err != nil || !slices.Equal(got, []tandem.Token{1, 22, 333}) {
		t.Errorf("tokens %v, %v", got, err)
	}
	for _, bad := range []string{"", ",", "1,x", "-1", "1.5", "99999999999"} {
		if got, err := parseTokens(bad); err == nil || tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%q: tokens %v, error %v: want Invalid", bad, got, err)
		}
	}
}

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		err  error
		line string
		code int
	}{
		{nil, "", 0},
		{tandem.Errorf("gguf", tandem.Invalid, "bad\nvalue\x1b[31m"), "tandem: gguf: bad value [31m\n", 2},
		{tandem.Errorf("", tandem.Corrupt, "damaged"), "tandem: damaged\n", 1},
		{os.ErrClosed, "tandem: file already closed\n", 1},
	} {
		var out strings.Builder
		if code := report(&out, tc.err); code != tc.code || out.String() != tc.line {
			t.Errorf("%v: code %d, %q: want %d, %q", tc.err, code, out.String(), tc.code, tc.line)
		}
	}
}

func TestQuantile(t *testing.T) {
	var values []time.Duration
	if quantile(values, 0.5) != 0 {
		t.Error("quantile of nothing is not 0")
	}
	for i := range 101 {
		values = append(values, time.Duration(100-i))
	}
	if p50, p99 := quantile(values, 0.5), quantile(values, 0.99); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %d, p99 %d: want 50, 99", p50, p99)
	}
}

func TestChildEnv(t *testing.T) {
	got := childEnv([]string{"HOME=/h", "TANDEM_LISTEN=x", "TMPDIR=/t", "OTEL_X=y"}, "/run")
	if want := []string{"HOME=/h", "OTEL_X=y", "TMPDIR=/run"}; !reflect.DeepEqual(got, want) {
		t.Errorf("environment %v: want %v", got, want)
	}
}

func TestPoolFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	go func() {
		time.Sleep(20 * time.Millisecond)
		if err := writePoolFile(path, pool.Access{URL: "nats://127.0.0.1:1234", Token: "secret"}); err != nil {
			t.Error(err)
		}
	}()
	r := &role{log: slog.New(slog.DiscardHandler)}
	access, err := r.poolAccess(t.Context(), "file:"+path)
	if err != nil || access.URL != "nats://127.0.0.1:1234" || access.File != path {
		t.Errorf("access %+v, %v", access, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: want 0600", st.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".pool-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := r.poolAccess(t.Context(), ""); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("no pool: %v", err)
	}
	if _, err := r.poolAccess(t.Context(), "file:/nowhere/pool"); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("no such directory: %v", err)
	}
	if access, err := r.poolAccess(t.Context(), "file:"+path+".later"); err != nil || access.File != path+".later" || access.URL != "" {
		t.Errorf("file not written yet: %+v, %v: want to go on", access, err)
	}
	if _, err := r.poolAccess(t.Context(), "file:/"); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("directory: %v", err)
	}
}

func TestModelPath(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	if _, err := targetPath(""); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("outside of a checkout: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+modulePath+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "go.mod"), []byte("module example.com/other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := targetPath(""); err != nil || got != filepath.Join(dir, "models", defaultTarget) {
		t.Errorf("default target %q, %v", got, err)
	}
	if got, err := draftPath("own.gguf"); err != nil || got != "own.gguf" {
		t.Errorf("own draft %q, %v", got, err)
	}
}
