package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// TestWhoAnswers: a gateway tells over HTTP, gRPC and in ps what computes its texts, and refuses a verifier of another vocabulary by
// name, at once, and counts it.
func TestWhoAnswers(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	c := newCluster(t, clusterConfig{gatewayFlags: []string{"--http", addr}})
	var info struct{ Identity, Lineage string }
	if e := c.w.ok("model", "info", "--identity", "--json", targetModel); json.Unmarshal([]byte(e.stdout), &info) != nil ||
		info.Identity == "" {
		t.Fatalf("model info printed %q", e.stdout)
	}
	if got := c.identityOf(t); got != info.Identity {
		t.Errorf("a session has identity %q: want %q, as model info says", got, info.Identity)
	}
	ask := func(body string) (int, string) {
		t.Helper()
		r, err := http.Post("http://"+addr+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	want := `"system_fingerprint":"` + info.Identity + `"`
	if code, got := ask(`{"prompt": "x", "max_tokens": 4, "n": 2}`); code != http.StatusOK || !strings.Contains(got, want) {
		t.Errorf("%d, %s: want %s", code, got, want)
	}
	if code, got := ask(`{"prompt": "x", "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true}}`); code != http.StatusOK ||
		strings.Count(got, want) != strings.Count(got, "data: {") {
		t.Errorf("%d, %s: want %s in each chunk", code, got, want)
	}
	ps := c.w.ok("ps", "--addr", c.gatewayAddr, "--json").stdout
	for _, part := range []string{`"identity":"` + info.Identity + `"`, `"lineage":"` + info.Lineage + `"`, fmt.Sprintf(`"protocol":%d`, tandem.Protocol)} {
		if !strings.Contains(ps, part) {
			t.Errorf("ps printed %s: want %s", ps, part)
		}
	}
	if e := c.w.ok("ps", "-v", "--addr", c.gatewayAddr); !strings.Contains(e.stdout, info.Identity) {
		t.Errorf("ps printed %s: want the identity", e.stdout)
	}

	other := filepath.Join(t.TempDir(), "other.gguf")
	writeLongRoPE(t, other) // of another vocabulary
	old := c.verifier.cmd.Process.Pid
	c.verifier.kill()
	c.verifier = c.verifierOf(t, "--target", other)
	c.verifier.start()
	c.back(t, "verifier", old)
	n := 4
	_, err := c.try(t.Context(), client.Request{Prompt: "x", MaxTokens: &n})
	if !errors.Is(err, client.Unavailable) || !strings.Contains(err.Error(), "vocabulary") {
		t.Errorf("error %v: want unavailable, because of the vocabulary", err)
	}
	if code, got := ask(`{"prompt": "x", "max_tokens": 4}`); code != http.StatusServiceUnavailable || !strings.Contains(got, "vocabulary") {
		t.Errorf("%d, %s: want 503, because of the vocabulary", code, got)
	}
	testkit.Eventually(t, "refusals in the metrics", func() bool {
		m := scrape(t, addr)
		return m.sum("tandem_refusals_total", "process=verifier", "reason=vocabulary") > 0 &&
			m.sum("tandem_refusals_total", "process=gateway", "reason=vocabulary") > 0
	})
	testkit.Eventually(t, "a word in the gateway's log", func() bool {
		return strings.Contains(c.gateway.stderr.String(), "the verifier refuses this gateway, or is refused")
	})
}
