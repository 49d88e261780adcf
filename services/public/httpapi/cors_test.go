package httpapi

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/access"
)

func keysOf(t *testing.T, tokens ...string) *access.Keys {
	t.Helper()
	keys, err := access.New(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestCrossOrigin: a page may use the server if its origin is given; the preflight needs no key; others may not read anything.
func TestCrossOrigin(t *testing.T) {
	const page, other = "http://localhost:3000", "http://evil.example"
	open := serve(t, script(nil), func(c *Config) { c.Origins = []string{"HTTP://localhost:3000", "chrome-extension://abc"} })
	keyed := serve(t, script(nil), func(c *Config) { c.Origins, c.Keys = []string{page}, keysOf(t, "k") })
	all := serve(t, script(nil), func(c *Config) { c.Origins, c.Keys = []string{"*"}, keysOf(t, "k") })
	none := serve(t, script(nil), func(c *Config) { c.Keys = keysOf(t, "k") })
	for _, tc := range []struct {
		name                   string
		site                   *site
		origin                 string
		preflight, post, keyed int // status of the preflight, of a request without a key, and of one with it
		reads                  bool
	}{
		{"a page of a given origin", open, page, 204, 200, 200, true},
		{"an extension", open, "chrome-extension://abc", 204, 200, 200, true},
		{"another page", open, other, 403, 403, 403, false},
		{"another port", open, "http://localhost:3001", 403, 403, 403, false},
		{"another scheme", open, "https://localhost:3000", 403, 403, 403, false},
		{"a page without an origin", open, "null", 403, 403, 403, false},
		{"a given origin, with keys", keyed, page, 204, 401, 200, true},
		{"another page, with keys", keyed, other, 204, 401, 200, false},
		{"any page, with keys", all, other, 204, 401, 200, true},
		{"no origin is given, with keys", none, page, 204, 401, 200, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer, text := tc.site.ask(t, "OPTIONS", "/v1/chat/completions", "", "Origin", tc.origin,
				"Access-Control-Request-Method", "POST",
				"Access-Control-Request-Headers", "authorization,content-type,x-stainless-os",
				"Access-Control-Request-Private-Network", "true")
			h := answer.Header
			if answer.StatusCode != tc.preflight || tc.preflight == 204 && text != "" {
				t.Errorf("preflight: %s: %s", answer.Status, text)
			}
			if tc.reads && (h.Get("Access-Control-Allow-Origin") != tc.origin || h.Get("Access-Control-Allow-Methods") != "POST" ||
				h.Get("Access-Control-Allow-Headers") != "authorization, content-type, x-stainless-os" ||
				h.Get("Access-Control-Allow-Private-Network") != "true" || !strings.Contains(strings.Join(h.Values("Vary"), ","),
				"Origin")) {
				t.Errorf("preflight: %v", h)
			}
			if !tc.reads && (h.Get("Access-Control-Allow-Origin") != "" || h.Get("Access-Control-Allow-Headers") != "") {
				t.Errorf("preflight of a page that may not read: %v", h)
			}
			for key, want := range map[string]int{"": tc.post, "k": tc.keyed} {
				headers := []string{"Origin", tc.origin, "Sec-Fetch-Site", "cross-site"}
				if key != "" {
					headers = append(headers, "Authorization", "Bearer "+key)
				}
				answer, text := tc.site.ask(t, "POST", "/v1/completions", `{"prompt":"a","foo":1}`, headers...)
				h := answer.Header
				if answer.StatusCode != want {
					t.Errorf("with key %q: %s: %s", key, answer.Status, text)
				}
				if tc.reads != (h.Get("Access-Control-Allow-Origin") == tc.origin) || h.Get("Access-Control-Allow-Credentials") != "" {
					t.Errorf("with key %q: %v", key, h)
				}
				if tc.reads && !strings.Contains(h.Get("Access-Control-Expose-Headers"), "X-Tandem-Ignored") {
					t.Errorf("with key %q: %v", key, h)
				}
				if tc.site != none && h.Get("Vary") != "Origin" {
					t.Errorf("with key %q: Vary %q", key, h.Values("Vary"))
				}
			}
		})
	}
	if answer, text := open.ask(t, "OPTIONS", "/v1/nothing", "", "Origin", page, "Access-Control-Request-Method",
		"GET"); answer.StatusCode != 404 {
		t.Errorf("preflight of no path: %s: %s", answer.Status, text)
	}
	if answer, _ := open.ask(t, "OPTIONS", "/v1/models", "", "Origin", page, "Access-Control-Request-Method", "GET",
		"Access-Control-Request-Headers", "x y"); answer.StatusCode != 204 ||
		answer.Header.Get("Access-Control-Allow-Methods") != "GET, HEAD" ||
		answer.Header.Get("Access-Control-Allow-Headers") != headersOfClient {
		t.Errorf("preflight with odd headers: %s %v", answer.Status, answer.Header)
	}
}

// TestOrigins refuses what no browser sends as an origin, and all origins without keys.
func TestOrigins(t *testing.T) {
	for given, want := range map[string]string{"https://a.example": "https://a.example", "https://A.example:443": "https://a.example",
		"http://a.example:80": "http://a.example", "https://a.example:80": "https://a.example:80", "http://[::1]:3000": "http://[::1]:3000",
		"tauri://localhost": "tauri://localhost", "*": "*"} {
		if got, err := allowedOrigins([]string{given}, true); err != nil || got[0] != want {
			t.Errorf("%s: %q, %v", given, got, err)
		}
	}
	for _, given := range []string{"", "a.example", "https://a.example/", "https://a.example/x", "https://u@a.example", "https://*.example",
		"null", "https://a.example?x", "localhost:3000", "https://"} {
		if got, err := allowedOrigins([]string{given}, true); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(),
			"--cors-origin") {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	if _, err := allowedOrigins([]string{"*"}, false); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("* without keys: %v", err)
	}
}
