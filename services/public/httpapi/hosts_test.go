package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
)

// everywhere returns a server of every route on all addresses of this machine, as compose runs it, without keys unless change
// gives some.
func everywhere(t testing.TB, change func(*Config)) *site {
	t.Helper()
	s := serve(t, script(nil), func(c *Config) {
		c.Listen, c.Insecure, c.Hosts = "0.0.0.0:0", true, []string{"Gateway", "xn--bcher-kva.example"}
		c.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page "+r.URL.Path) })
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "metrics") })
		c.Describe = func(context.Context) public.Description { return public.Description{} }
		if change != nil {
			change(c)
		}
	})
	s.url = "http://127.0.0.1:" + s.url[strings.LastIndexByte(s.url, ':')+1:]
	return s
}

// TestHostOnAllAddresses: without keys a page whose name points at this machine gets nothing, on no route, wherever the
// server listens.
func TestHostOnAllAddresses(t *testing.T) {
	s := everywhere(t, nil)
	for _, route := range []struct{ method, path, body string }{
		{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`},
		{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"stream":true}`},
		{"POST", "/v1/completions", `{"prompt":"a"}`},
		{"POST", "/tokenize", `{"content":"a"}`}, {"POST", "/detokenize", `{"tokens":[1]}`},
		{"POST", "/apply-template", `{"messages":[{"role":"user","content":"a"}]}`},
		{"GET", "/v1/models", ""}, {"GET", "/v1/models/gopher", ""}, {"GET", "/tandem/v1/describe", ""}, {"GET", "/metrics", ""},
		{"GET", "/", ""}, {"GET", "/playground/", ""}, {"GET", "/playground/app.js", ""},
		{"GET", "/livez", ""}, {"GET", "/readyz", ""}, {"GET", "/health", ""}, {"GET", "/nothing", ""}, {"OPTIONS", "/v1/completions", ""},
	} {
		for _, host := range []string{"evil.example", "evil.example:8450"} {
			// a page that was loaded from there is of the same origin
			p := s.refused(t, route.method, route.path, route.body, "Host", host, "Origin", "http://"+host, "Sec-Fetch-Site", "same-origin")
			if p.status != 403 || p.Code != "host_not_allowed" || !strings.Contains(p.Message, "--allow-host") ||
				p.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s for %s: %+v", route.method, route.path, host, p)
			}
		}
		if answer, all := s.ask(t, route.method, route.path, route.body, "Host", "gateway:8450"); answer.StatusCode == 403 {
			t.Errorf("%s %s for gateway: %s", route.method, route.path, all)
		}
	}
	// with keys a page knows none of them, and any name will do
	keys, err := access.New([]string{"k"})
	if err != nil {
		t.Fatal(err)
	}
	keyed := everywhere(t, func(c *Config) { c.Keys, c.Insecure = keys, false })
	if answer, all := keyed.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`, "Host", "api.example", "Authorization",
		"Bearer k"); answer.StatusCode != 200 {
		t.Errorf("with a key: %s %s", answer.Status, all)
	}
}

// TestHosts sends Host headers in all their forms, as they are, to listeners of both kinds.
func TestHosts(t *testing.T) {
	open, local := everywhere(t, nil), serve(t, script(nil), func(c *Config) { c.Hosts = []string{"api.example."} })
	for _, tc := range []struct {
		host  string // "-" for none
		open  bool   // on all addresses
		local bool   // on loopback
	}{
		{"localhost", true, true}, {"localhost:8450", true, true}, {"LocalHost:1", true, true}, {"localhost.", true, true},
		{"localhost.:80", true, true},
		{"127.0.0.1", true, true}, {"127.9.9.9:80", true, true}, {"[::1]", true, true}, {"[::1]:8450", true, true},
		{"[::FFFF:127.0.0.1]:1", true, true},
		{"192.168.1.7:8450", true, false}, {"[2001:DB8::1]:80", true, false}, {"[fe80::1]", true, false},
		{"gateway", true, false}, {"GATEWAY.:8450", true, false}, {"xn--bcher-kva.example", true, false},
		{"XN--Bcher-KVA.example.:80", true, false},
		{"api.example", false, true}, {"API.example.:443", false, true},
		{"evil.example", false, false}, {"evil.example.", false, false}, {"localhost.evil.example", false, false},
		{"evil.localhost.example:80", false, false},
		{"gateway.evil.example", false, false}, {"xgateway", false, false}, {"xn--evil-x.example", false, false},
		{"127.0.0.1.evil.example", false, false},
		{"127.0.0.1:80:90", false, false}, {"::1", false, false}, {"[::1", false, false}, {"[localhost]", false, false},
		{"[127.0.0.1]", false, false},
		{"localhost:x", false, false}, {"localhost:80@evil.example", false, false}, {"localhost..", false, false}, {"0x7f.1", false, false},
		{"2130706433", false, false},
		{"", false, false}, {".", false, false}, {":80", false, false}, {"-", false, false},
	} {
		for _, side := range []struct {
			s    *site
			want bool
			name string
		}{{open, tc.open, "on all addresses"}, {local, tc.local, "on loopback"}} {
			header := "Host: " + tc.host + "\r\n"
			if tc.host == "-" {
				header = "" // HTTP/1.0 needs none
			}
			status, all := rawRequest(t, side.s, "GET /livez HTTP/1.0\r\n"+header+"\r\n")
			if side.want && status != 200 || !side.want && (status != 403 && status != 400 || status == 403 &&
				!strings.Contains(all, "host_not_allowed")) {
				t.Errorf("Host %q %s: %d %s, allowed: %v", tc.host, side.name, status, all, side.want)
			}
		}
	}
	// a target with a name of its own counts more than the header
	if status, all := rawRequest(t, open,
		"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); status != 403 {
		t.Errorf("a target on evil.example: %d %s", status, all)
	}
}

// rawRequest sends bytes and returns status and body of the answer.
func rawRequest(t testing.TB, s *site, text string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprint(conn, text)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// TestSocketTakesAnyHost: no page reaches a unix socket, and its clients make names up.
func TestSocketTakesAnyHost(t *testing.T) {
	path := t.TempDir() + "/h"
	serve(t, script(nil), func(c *Config) { c.Listen = "unix://" + path })
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	answer, err := client.Get("http://whatever/livez")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != 200 {
		t.Error(answer.Status)
	}
}

// TestHostsThatAreNone refuses names that no browser would send.
func TestHostsThatAreNone(t *testing.T) {
	for _, name := range []string{"", " ", "gateway:8450", "http://gateway", "bücher.example", "*", "*.example", "[::1]", "a b",
		strings.Repeat("a", 254)} {
		_, err := New(Config{Generator: script(nil), Model: Model{Name: "gopher"}, Limits: limits, Vocab: alphabet{}, Listen: "127.0.0.1:0",
			Hosts: []string{"good", name}})
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "--allow-host") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestMetricsKey: a key of their own opens the metrics, and nothing else; no other opens them.
func TestMetricsKey(t *testing.T) {
	clients, _ := access.New([]string{"client"})
	scraper, _ := access.New([]string{"scraper"})
	for _, keys := range []*access.Keys{nil, clients} {
		s := everywhere(t, func(c *Config) { c.Keys, c.MetricsKeys = keys, scraper })
		for key, want := range map[string]int{"": 401, "client": 401, "wrong": 401, "scraper": 200} {
			answer, all := s.ask(t, "GET", "/metrics", "", "Authorization", "Bearer "+key)
			if answer.StatusCode != want || want == 200 && all != "metrics" || want == 401 &&
				answer.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("the metrics with key %q: %s %s, want %d", key, answer.Status, all, want)
			}
		}
		want := 200
		if keys != nil {
			want = 401
		}
		if answer, all := s.ask(t, "GET", "/v1/models", "", "Authorization", "Bearer scraper"); answer.StatusCode != want {
			t.Errorf("models with the key of the metrics: %s %s, want %d", answer.Status, all, want)
		}
	}
}

// TestDescribeWithoutCounters: with a key of the metrics, clients learn names and limits, and no counter or number of a process; that key
// tells all. Without one, every client learns all.
func TestDescribeWithoutCounters(t *testing.T) {
	clients, _ := access.New([]string{"client"})
	scraper, _ := access.New([]string{"scraper"})
	describe := func(context.Context) public.Description {
		return public.Description{Model: "gopher", Counters: map[string]int64{"a": 1}, Processes: []public.Process{{Role: "verifier",
			Description: tandem.Description{PID: 77, Model: "m", Counters: map[string]int64{"b": 2}}}}}
	}
	for _, tc := range []struct {
		keys, metrics *access.Keys
		key           string
		status        int
		all           bool
	}{{nil, nil, "", 200, true}, {clients, nil, "client", 200, true}, {clients, scraper, "client", 200, false},
		{clients, scraper, "scraper", 200, true},
		{clients, scraper, "other", 401, false}, {nil, scraper, "", 200, false}, {nil, scraper, "scraper", 200, true}} {
		s := serve(t, script(nil), func(c *Config) { c.Keys, c.MetricsKeys, c.Describe = tc.keys, tc.metrics, describe })
		answer, body := s.ask(t, "GET", "/tandem/v1/describe", "", "Authorization", "Bearer "+tc.key)
		told := strings.Contains(body, `"pid":77`) && strings.Contains(body, `"counters":{"a":1}`) &&
			strings.Contains(body, `"counters":{"b":2}`)
		hidden := !strings.Contains(body, "77") && !strings.Contains(body, `{"a"`) && !strings.Contains(body, `{"b"`)
		if answer.StatusCode != tc.status || tc.status == 200 && (told != tc.all || hidden == tc.all || !strings.Contains(body, "gopher")) {
			t.Errorf("keys %v, metrics %v, key %q: %s %s: want %d, all %v", tc.keys != nil, tc.metrics != nil, tc.key, answer.Status, body,
				tc.status, tc.all)
		}
	}
	s := serve(t, script(nil), func(c *Config) { c.Keys, c.MetricsKeys, c.Describe = clients, scraper, describe })
	if answer, body := s.ask(t, "GET", "/tandem/v1/describe", "", "X-Api-Key", "scraper"); answer.StatusCode != 200 || !strings.Contains(body, `"pid":77`) {
		t.Errorf("the metrics' key in the other header: %s %s", answer.Status, body)
	}
	if d := describe(t.Context()); d.Bare().Processes[0].PID != 0 || d.Processes[0].PID != 77 {
		t.Error("Bare changes what it is called on")
	}
}
