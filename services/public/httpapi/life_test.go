package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// TestNoTemplate refuses chats of a model without a template, with what to do; completions work.
func TestNoTemplate(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) { c.Chat = nil })
	for _, path := range []string{"/v1/chat/completions", "/apply-template"} {
		p := s.refused(t, "POST", path, `{"messages":[{"role":"user","content":"a"}]}`)
		if p.status != 400 || p.Code != "unsupported_value" || p.Param != "messages" || !strings.Contains(p.Message, "--chat-template") {
			t.Errorf("%s: %+v", path, p)
		}
	}
	s.post(t, "/v1/completions", `{"prompt":"a"}`)
}

// TestLoading answers 503 while the model loads.
func TestLoading(t *testing.T) {
	m := NewMonitor(script(nil), nil, nil)
	s := serve(t, m, func(c *Config) { c.Health, c.Loading = m.Health, m.Loading })
	for _, path := range []string{"/readyz", "/health"} {
		if p := s.refused(t, "GET", path, ""); p.status != 503 || !strings.Contains(p.Message, "loading") ||
			p.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if p := s.refused(t, "POST", "/v1/completions", `{"prompt":"a"}`); p.status != 503 || !strings.Contains(p.Message, "loading") {
		t.Errorf("%+v", p)
	}
	if answer, _ := s.ask(t, "GET", "/livez", ""); answer.StatusCode != 200 {
		t.Error("livez: ", answer.Status)
	}
	m.VerifierState(true)
	s.post(t, "/v1/completions", `{"prompt":"a"}`)
	if answer, all := s.ask(t, "GET", "/readyz", ""); answer.StatusCode != 200 || all != "{\"status\":\"ok\"}\n" {
		t.Errorf("%s: %s", answer.Status, all)
	}
	m.VerifierState(false)
	if p := s.refused(t, "GET", "/readyz", ""); p.status != 503 || !strings.Contains(p.Message, "verifier is down") {
		t.Errorf("%+v", p)
	}
	s.post(t, "/v1/completions", `{"prompt":"a"}`) // it waits for the verifier: the generator's business
}

// TestDrain stops a server under load: what runs is finished, nobody new is let in, and what takes too long is told so.
func TestDrain(t *testing.T) {
	t.Parallel()
	var begun sync.WaitGroup
	begun.Add(2)
	release := make(chan struct{})
	stuck := make(chan error, 1)
	cfg := Config{Listen: "127.0.0.1:0", Model: Model{Name: "gopher"}, Defaults: testDefaults, Limits: limits, Vocab: alphabet{},
		Grace: 2 * time.Second,
		Generator: script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
			begun.Done()
			if r.MaxTokens == 7 {
				return endless(stuck)(ctx, r, sink)
			}
			<-release
			return hello(ctx, r, sink)
		})}
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	s := &site{Server: server, url: server.URL()}
	var wg sync.WaitGroup
	var answer *http.Response
	var long string
	wg.Go(func() { answer, _ = s.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`) })
	wg.Go(func() { _, long = s.ask(t, "POST", "/v1/completions", `{"prompt":"a","max_tokens":7,"stream":true}`) })
	begun.Wait()
	cancel()
	testkit.Eventually(t, "no new connection", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	close(release)
	wg.Wait()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if answer.StatusCode != 200 {
		t.Error("a request that could be finished was answered ", answer.Status)
	}
	got := events(t, strings.NewReader(long))
	if last := got[len(got)-1]; last.kind != "error" || !strings.Contains(last.data, "shutting down") {
		t.Errorf("a stream that takes too long ends with %+v", last)
	}
	if err := <-stuck; tandem.KindOf(err) != tandem.Unavailable {
		t.Errorf("its generation ended with %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestErrorOfStream ends a stream with an error.
func TestErrorOfStream(t *testing.T) {
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		res, err := hello(ctx, r, sink)
		if err == nil {
			err = tandem.Errorf("generate", tandem.Unavailable, "the verifier is gone")
		}
		return res, err
	}), nil)
	_, all := s.ask(t, "POST", "/v1/completions", `{"prompt":"a","stream":true}`)
	got := events(t, strings.NewReader(all))
	if last := got[len(got)-1]; last.kind != "error" ||
		!strings.Contains(last.data, `"error":{"message":"generate: the verifier is gone","type":"unavailable_error"`) {
		t.Errorf("the last event is %+v", last)
	}
}

// TestListen refuses addresses that cannot or must not be listened on.
func TestListen(t *testing.T) {
	base := Config{Generator: script(nil), Model: Model{Name: "gopher"}, Limits: limits, Vocab: alphabet{}}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	keys, _ := access.New([]string{"k"})
	for _, tc := range []struct {
		listen   string
		keys     *access.Keys
		insecure bool
		says     string // "" = listens
	}{
		{"0.0.0.0:0", nil, false, "--api-key"},
		{"0.0.0.0:0", keys, false, ""},
		{"0.0.0.0:0", nil, true, ""},
		{"[::]:0", nil, false, "--insecure-listen"},
		{"localhost:0", nil, false, ""},
		{"127.0.0.2:0", nil, false, ""},
		{"unix://" + t.TempDir() + "/h", nil, false, ""},
		{taken.Addr().String(), nil, false, "in use"},
		{"nonsense", nil, false, "host:port"},
	} {
		c := base
		c.Listen, c.Keys, c.Insecure = tc.listen, tc.keys, tc.insecure
		s, err := New(c)
		if err == nil {
			s.Close()
		}
		if (tc.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.listen, err, tc.says)
		}
	}
	for name, change := range map[string]func(*Config){"generator": func(c *Config) { c.Generator = nil },
		"name":    func(c *Config) { c.Model.Name = "" },
		"context": func(c *Config) { c.Limits.Context = 0 }} {
		c := base
		c.Listen = "127.0.0.1:0"
		change(&c)
		if _, err := New(c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestDescribe compares what the playground is told.
func TestDescribe(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) {
		c.Drafters = func() []string { return []string{"go", "py"} }
		c.Describe = func(context.Context) public.Description {
			return public.Description{Version: "v1", Model: "gopher", Vocab: 300, Context: 64,
				Processes: []public.Process{{Role: "gateway", Up: true}}, Counters: map[string]int64{"a": 1}}
		}
	})
	_, all := s.ask(t, "GET", "/tandem/v1/describe", "")
	var d description
	if err := json.Unmarshal([]byte(all), &d); err != nil {
		t.Fatal(err)
	}
	if d.Model != "gopher" || d.Version != "v1" || !d.Chat || d.Keyed || !d.Ready || d.Defaults.MaxTokens != 5 ||
		d.Defaults.Speculation.Width != 16 ||
		d.Defaults.Speculation.Strategy != "planner" || len(d.Drafters) != 2 || len(d.Processes) != 1 || d.Counters["a"] != 1 ||
		d.Limits.Choices != 16 || d.Limits.Width != 256 {
		t.Errorf("described as %+v", d)
	}
}

// TestLeftAtTheEnd: a client that hangs up when it has the last event has its answer; one that leaves while a choice waits has not.
func TestLeftAtTheEnd(t *testing.T) {
	for choices, want := range map[int]error{1: nil, 2: context.Canceled} {
		ctx, leave := context.WithCancel(t.Context())
		g := written(func(ctx context.Context, _ tandem.Request, _ tandem.Sink) (tandem.Result, error) {
			if choices == 2 {
				leave()
			}
			return tandem.Result{}, ctx.Err() // of the second choice an error, should it begin
		})
		texts := newTextAnswers(Config{Generator: g}, common{}, nil, nil)
		all, ended := []*choice{{Choice: answer.Choice{First: true}}, {}}[:choices], 0
		for _, x := range all {
			x.sink = answer.New(conversation.Output{}, "", func(*answer.Event) error {
				ended++
				leave()
				return nil
			})
		}
		err := texts.run(ctx, new(call), all)
		if leave(); !errors.Is(err, want) || choices == 1 && ended != 1 {
			t.Errorf("%d choices: %d ended, %v: want %v", choices, ended, err, want)
		}
	}
}
