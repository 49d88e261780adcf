package httpapi

import (
	"context"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/access"
)

// TestCacheSalt: a salt is the request's own, under which nothing is shared; without one the tenant shares.
func TestCacheSalt(t *testing.T) {
	t.Parallel()
	var got []tandem.Request
	const key = "a-key-of-this-test"
	keys, err := access.New([]string{key})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		got = append(got, r)
		return hello(ctx, r, sink)
	}), func(c *Config) { c.Keys = keys })
	const ask = `{"messages":[{"role":"user","content":"a"}],"max_tokens":1`
	for _, more := range []string{``, `,"cache_salt":"x"`, `,"cache_salt":"x"`, `,"cache_salt":"y"`} {
		answer, all := s.ask(t, "POST", "/v1/chat/completions", ask+more+"}", "X-Api-Key", key)
		if answer.StatusCode != 200 {
			t.Fatalf("%s: %s", answer.Status, all)
		}
	}
	if got[0].Sharing() != got[0].Tenant || got[1].Sharing() != got[2].Sharing() || got[1].Sharing() == got[3].Sharing() ||
		got[1].Sharing() == got[0].Tenant || got[1].Tenant != got[0].Tenant || !tandem.Salted(got[1].Sharing()) {
		t.Errorf("shared under %q %q %q %q", got[0].Sharing(), got[1].Sharing(), got[2].Sharing(), got[3].Sharing())
	}
	long := strings.Repeat("x", 129)
	answer, all := s.ask(t, "POST", "/v1/chat/completions", ask+`,"cache_salt":"`+long+`"}`, "X-Api-Key", key)
	if answer.StatusCode != 400 || !strings.Contains(all, "cache_salt has 129 bytes") {
		t.Errorf("%s: %s", answer.Status, all)
	}
}
