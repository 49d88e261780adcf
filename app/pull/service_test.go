package pull

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
)

func untold(string, string, int64, int64) {}

// TestService: a client fetches a model and removes it again. What is already here is fetched once.
func TestService(t *testing.T) {
	p, s, _ := begun(t)
	m := changed(t, "")
	s.Add("org/repo", "m-Q8_0.gguf", m)
	s.Tag("library/tiny:1b", hubtest.Layer{Kind: "model", B: m})
	v := &Service{Puller: p, Most: int64(3 * len(m))}
	for _, name := range []string{"hf:org/repo", "hf.co/org/repo:Q8_0", "tiny:1b", s.URL + "/library/tiny:1b"} {
		var lines []string
		last := int64(-1)
		err := v.Pull(t.Context(), name, func(status, digest string, done, total int64) {
			lines = append(lines, status)
			if total != 0 && (done < last || done > total || digest != "sha256:"+hubtest.Sum(m)) {
				t.Errorf("%s: %s %s %d of %d", name, status, digest, done, total)
			}
			last = done
		})
		if here := strings.Contains(name, ":Q8_0") || strings.Contains(name, "//"); err != nil || here != (lines == nil) {
			t.Errorf("%s: %q, %v", name, lines, err)
		}
	}
	for _, name := range []string{"hf:org/repo", "tiny:1b"} {
		if found, err := v.Delete(name); err != nil || !found {
			t.Errorf("removing %s: %v, %v", name, found, err)
		}
		if found, err := v.Delete(name); err != nil || found {
			t.Errorf("removing %s again: %v, %v", name, found, err)
		}
	}
}

// TestServiceRefuses: clients name models of the configured servers alone, no files, and no more than fits.
func TestServiceRefuses(t *testing.T) {
	p, s, _ := begun(t)
	m := changed(t, "")
	s.Add("org/repo", "m-Q8_0.gguf", m)
	s.Add("org/odd", "m-Q8_0.gguf", changed(t, "mamba9"))
	v := &Service{Puller: p, Most: int64(2*len(m) - 1)}
	here := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(here, m, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"": "want", here: "want", "../x": "want", "~/x": "want", "builtin:gopher": "",
		"hf:../..": "ORG/REPO", "hf:org/repo:../x.gguf": "repository", "hf:org/repo@../x": "revision", "a/../b": "want",
		"elsewhere.example/library/tiny": "alone", "http://127.0.0.1:1/m.gguf": "alone", "https://169.254.169.254/x/y:z": "alone",
		"file:///etc/passwd": "cannot be read", "hf:org/none": "no such model", "hf:org/odd": "mamba9", "none": "no such model",
		"x\x00y": "want"} {
		err := v.Pull(t.Context(), name, untold)
		if kind := tandem.KindOf(err); kind != tandem.Invalid && kind != tandem.Unsupported || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v: want %q", name, err, says)
		}
		if found, err := v.Delete(name); found || err != nil && tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("removing %q: %v, %v", name, found, err)
		}
	}
	if err := v.Pull(t.Context(), "hf:org/repo", untold); err != nil {
		t.Fatal(err)
	}
	s.Add("org/more", "n-Q8_0.gguf", append(m, 0))
	if err := v.Pull(t.Context(), "hf:org/more", untold); tandem.KindOf(err) != tandem.Invalid ||
		!strings.Contains(err.Error(), "--allow-pull") {
		t.Errorf("beyond the quota: %v", err)
	}
	n, err := p.Hub.ParseOf("hf:org/repo")
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := p.Hub.Find(n)
	if err != nil {
		t.Fatal(err)
	}
	v.Served = f.Path
	if _, err := v.Delete("hf:org/repo"); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "served here") {
		t.Errorf("removing the model that is served: %v", err)
	}
	s.Set(hubtest.Faults{Redirect: "http://169.254.169.254/"})
	v.Most *= 10
	if err := v.Pull(t.Context(), "hf:org/more", untold); tandem.KindOf(err) != tandem.Unavailable ||
		!strings.Contains(err.Error(), "public addresses only") {
		t.Errorf("a redirect to a private address: %v", err)
	}
	s.Set(hubtest.Faults{Always: 401})
	if err := v.Pull(t.Context(), "hf:org/more", untold); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a private model: %v", err)
	}
}

// TestServiceShares: two clients that pull one model share the transfer, also under a quota for one; one that leaves ends its own pull, and
// the next goes on there.
func TestServiceShares(t *testing.T) {
	p, s, _ := begun(t)
	m := append(changed(t, ""), make([]byte, 8<<20)...)
	s.Add("org/repo", "m-Q8_0.gguf", m)
	s.Set(hubtest.Faults{Rate: 8 << 20})
	v := &Service{Puller: p, Most: int64(len(m)) + 1<<16}
	ctx, leave := context.WithCancel(t.Context())
	err := v.Pull(ctx, "hf:org/repo", func(_, _ string, done, total int64) {
		if 2*done > total && total > 0 {
			leave()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	sent := s.Sent()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := v.Pull(ctx, "hf:org/repo", untold); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if more := s.Sent() - sent; more > int64(len(m))*3/4 {
		t.Errorf("%d bytes of %d were fetched after a half", more, len(m))
	}
	if found, err := v.Delete("hf:org/repo"); err != nil || !found {
		t.Errorf("%v, %v", found, err)
	}
	if left := p.Hub.Taken(); left != 0 {
		t.Errorf("%d bytes are left", left)
	}
}
