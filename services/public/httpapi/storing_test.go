package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// shelf is a store of models: "good" can be pulled and removed, "broken" ends on the way, "slow" when the client leaves.
type shelf struct {
	begun, left chan struct{}
}

// Pull implements Models.
func (s shelf) Pull(ctx context.Context, name string, told func(status, digest string, done, total int64)) error {
	if name != "good" && name != "broken" && name != "slow" {
		return tandem.Errorf("", tandem.Invalid, "no model %q", name)
	}
	told("pulling manifest", "", 0, 0)
	for done := int64(0); done <= 1000; done++ {
		told("pulling "+name, "sha256:12", done, 1000)
		if name == "broken" && done == 500 {
			return tandem.Errorf("", tandem.Unavailable, "the hub is gone")
		}
	}
	if name == "slow" {
		s.begun <- struct{}{}
		<-ctx.Done()
		s.left <- struct{}{}
		return context.Cause(ctx)
	}
	return nil
}

// Delete implements Models.
func (shelf) Delete(name string) (bool, error) { return name == "good", nil }

// TestPullOff: without leave no client fetches or removes a model, and is told what would let it.
func TestPullOff(t *testing.T) {
	s := serve(t, script(hello), nil)
	for method, path := range map[string]string{"POST": "/api/pull", "DELETE": "/api/delete"} {
		answer, all := s.ask(t, method, path, `{"model":"good"}`)
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(all, "--allow-pull") {
			t.Errorf("%s: %s: %s", path, answer.Status, all)
		}
	}
}

// TestPull: a pull is told line by line, as in Ollama's API, or in one answer; what is wrong before the first line has its own status.
func TestPull(t *testing.T) {
	s := serve(t, script(hello), func(c *Config) { c.Models = shelf{} })
	for _, tc := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/api/pull", `{"model":"good"}`, 200, `{"status":"pulling good","digest":"sha256:12","total":1000,"completed":1000}` + "\n" +
			`{"status":"success"}`},
		{"POST", "/api/pull", `{"name":"good","stream":false,"insecure":false}`, 200, `{"status":"success"}`},
		{"POST", "/api/pull", `{"model":"broken"}`, 200, `{"error":"the hub is gone"`},
		{"POST", "/api/pull", `{"model":"broken","stream":false}`, 503, `{"error":"the hub is gone"`},
		{"POST", "/api/pull", `{"model":"../../etc/passwd"}`, 400, `no model`},
		{"POST", "/api/pull", `{"model":7}`, 400, "model"},
		{"POST", "/api/pull", `{"model":""}`, 400, "model is missing"},
		{"POST", "/api/pull", `{"model":"good","insecure":true}`, 400, "insecure"},
		{"POST", "/api/pull", `{"model":"good"`, 400, "error"},
		{"POST", "/api/pull", `[]`, 400, "a JSON object"},
		{"POST", "/api/pull", ``, 400, "error"},
		{"GET", "/api/pull", ``, 405, "want POST"},
		{"DELETE", "/api/delete", `{"model":"good"}`, 200, ""},
		{"DELETE", "/api/delete", `{"name":"none"}`, 404, "was not pulled"},
		{"DELETE", "/api/delete", `{}`, 400, "model is missing"},
		{"POST", "/api/delete", `{"model":"good"}`, 405, "want DELETE"},
	} {
		answer, all := s.ask(t, tc.method, tc.path, tc.body)
		if answer.StatusCode != tc.status || !strings.Contains(all, tc.says) {
			t.Errorf("%s %s %s: %s: %s: want %d, %q", tc.method, tc.path, tc.body, answer.Status, all, tc.status, tc.says)
		}
		if n := strings.Count(all, "\n"); tc.status == 200 && n > 50 {
			t.Errorf("%s: %d lines for a transfer that took no time", tc.body, n)
		}
	}
}

// TestPullKeys: to fetch and remove is a right of its own keys, which open nothing else. A page of another origin has it only if it is
// named.
func TestPullKeys(t *testing.T) {
	const page = "https://chat.example.org"
	s := serve(t, script(hello), func(c *Config) {
		c.Models, c.Keys, c.PullKeys, c.Origins = shelf{}, keysOf(t, "client"), keysOf(t, "puller"), []string{page}
	})
	for key, want := range map[string][2]int{"client": {401, 200}, "puller": {200, 401}, "": {401, 401}} {
		answer, _ := s.ask(t, "POST", "/api/pull", `{"model":"good"}`, "Authorization", "Bearer "+key)
		removed, _ := s.ask(t, "DELETE", "/api/delete", `{"model":"good"}`, "X-Api-Key", key)
		other, _ := s.ask(t, "GET", "/v1/models", "", "Authorization", "Bearer "+key)
		if answer.StatusCode != want[0] || removed.StatusCode != want[0] || other.StatusCode != want[1] {
			t.Errorf("key %q: %s, %s, %s: want %v", key, answer.Status, removed.Status, other.Status, want)
		}
	}
	asked, _ := s.ask(t, "OPTIONS", "/api/delete", "", "Origin", page, "Access-Control-Request-Method", "DELETE")
	if got := asked.Header.Get("Access-Control-Allow-Methods"); got != "DELETE" {
		t.Errorf("a preflight is answered with %q", got)
	}
	open := serve(t, script(hello), func(c *Config) { c.Models = shelf{} })
	for method, path := range map[string]string{"POST": "/api/pull", "DELETE": "/api/delete"} {
		if answer, _ := open.ask(t, method, path, `{"model":"good"}`, "Origin", page); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s of a foreign page: %s", path, answer.Status)
		}
	}
}

// TestPullLeft: a pull ends when its client leaves.
func TestPullLeft(t *testing.T) {
	models := shelf{make(chan struct{}), make(chan struct{})}
	s := serve(t, script(hello), func(c *Config) { c.Models = models })
	for _, body := range []string{`{"model":"slow"}`, `{"model":"slow","stream":false}`} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		r, err := http.NewRequestWithContext(ctx, "POST", s.url+"/api/pull", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_ = answer.Body.Close()
			}
			close(ended)
		}()
		<-models.begun
		cancel()
		<-models.left
		<-ended
	}
}
