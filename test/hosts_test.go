package test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// TestHTTPHosts runs the real processes as compose does, on all addresses and without keys: a page whose name points here gets
// nothing, and the metrics have a key of their own.
func TestHTTPHosts(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "metrics.key")
	if err := os.WriteFile(key, []byte("scraper\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	upWeb(t, "", "--http", "0.0.0.0:"+port, "--insecure-listen", "--allow-host", "gateway", "--metrics-key", key, "--no-draft")
	for _, c := range []struct {
		host, path, key string
		want            int
	}{
		{"evil.example", "/v1/models", "", 403}, {"evil.example:" + port, "/", "", 403}, {"evil.example", "/metrics", "scraper", 403},
		{"evil.example", "/readyz", "", 403},
		{"gateway:8450", "/v1/models", "", 200}, {"127.0.0.1:" + port, "/", "", 200}, {"localhost", "/readyz", "", 200},
		{"10.1.2.3", "/v1/models", "", 200},
		{"localhost", "/metrics", "", 401}, {"gateway", "/metrics", "wrong", 401}, {"gateway", "/metrics", "scraper", 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:"+port+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		if c.key != "" {
			r.Header.Set("Authorization", "Bearer "+c.key)
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if a.StatusCode != c.want {
			t.Errorf("%s of %s with key %q: %s, want %d", c.path, c.host, c.key, a.Status, c.want)
		}
	}
}
