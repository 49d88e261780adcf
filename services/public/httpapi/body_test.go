package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/test/testkit"
)

// trickle sends a byte of a body each step until the connection ends, and returns when and how it was answered.
func (s *site) trickle(t testing.TB, header, begin string, step time.Duration) (took time.Duration, answer problem) {
	t.Helper()
	begun := time.Now()
	conn := s.dial(t, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"+header+"\r\n\r\n"+begin)
	var sending sync.WaitGroup
	stop := make(chan struct{})
	sending.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(step):
			}
			if _, err := io.WriteString(conn, "a"); err != nil {
				return
			}
		}
	})
	defer sending.Wait()
	defer close(stop)
	_ = conn.SetReadDeadline(begun.Add(time.Minute))
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := io.ReadAll(r.Body)
	if !r.Close {
		t.Error("the connection is to go on")
	}
	return time.Since(begun), refusal(t, r, string(all))
}

// TestTrickledBodies: a body that comes byte by byte is refused with 408 when its time is over, whatever of it has come.
func TestTrickledBodies(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	s := serve(t, script(nil), func(c *Config) { c.Body = limit })
	for name, begin := range map[string]string{"small": `{"prompt":"`, "large": `{"prompt":"` + strings.Repeat("a", 200<<10)} {
		took, p := s.trickle(t, "Content-Length: 8000000", begin, 20*time.Millisecond)
		if p.status != 408 || p.Code != "body_timeout" || took < limit || took > 30*time.Second {
			t.Errorf("%s: %+v after %v, want 408 after %v", name, p, took, limit)
		}
		testkit.Eventually(t, name+": bytes are still held", func() bool { return s.held() == 0 })
	}
	if took, p := s.trickle(t, "Transfer-Encoding: chunked", "20000\r\n"+`{"prompt":"`+strings.Repeat("a", 100<<10),
		20*time.Millisecond); p.status != 408 || took > 30*time.Second {
		t.Errorf("in chunks: %+v after %v", p, took)
	}
}

// held returns how many bytes large bodies hold.
func (s *site) held() int64 {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return allBodies - s.bodies.free
}

// waiting returns how many bodies wait.
func (s *site) waiting() int {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return len(s.bodies.waiting)
}

// hold takes what is free for large bodies, and the tenant's right to exceed it, and returns what gives it back.
func (s *site) hold(tenant string) (giveBack func()) {
	b := &body{c: &call{tenant: tenant}}
	for over := false; !over; over = s.held() > allBodies {
		if err := s.bodies.grow(context.Background(), b, func() {}); err != nil {
			panic(err)
		}
	}
	s.bodies.read(b) // what holds it is never slow
	return func() { s.bodies.release(b) }
}

// TestSlowBodiesGiveWay fills the memory of large bodies with ones that come slowly: whoever comes next gets it after some
// seconds, from those; without anybody else they have all their time.
func TestSlowBodiesGiveWay(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), func(c *Config) { c.Limits.Context = 1 << 24 })
	begin := `{"prompt":"` + strings.Repeat("a", 200<<10)
	const slow = 8
	gaveWay := make(chan struct{}, slow)
	var wg sync.WaitGroup
	for range slow {
		wg.Go(func() {
			if took, p := s.trickle(t, fmt.Sprintf("Content-Length: %d", defaultMax), begin, 10*time.Millisecond); p.status != 408 ||
				!strings.Contains(p.Message, "others waited") || took < rateAfter {
				t.Errorf("a slow one: %+v after %v", p, took)
			}
			gaveWay <- struct{}{}
		})
	}
	testkit.Eventually(t, "they hold memory", func() bool { return s.held() >= slow*(192<<10) })
	giveBack := s.hold("") // the rest, as others do that are not slow
	defer giveBack()
	select { // each is slow by now
	case <-gaveWay:
		t.Error("a slow body gave way while nobody waits")
	case <-time.After(rateAfter + 500*time.Millisecond):
	}
	begun := time.Now()
	body := `{"prompt":[` + strings.Repeat("1,", 100<<10) + `1],"max_tokens":1}`
	if answer, all := s.ask(t, "POST", "/v1/completions", body); answer.StatusCode != 400 && answer.StatusCode != 200 {
		t.Errorf("beside them: %s %.200s", answer.Status, all)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("beside them a body of 200 KB waited %v", took)
	}
	wg.Wait()
	giveBack()
	testkit.Eventually(t, "bytes are held in the end", func() bool { return s.held() == 0 })
}

// TestUnfinishedBodies: clients that announce much, send a little more than a small body and stop keep nobody out; nor do a tenant's
// bodies that take all memory, if another tenant comes.
func TestUnfinishedBodies(t *testing.T) {
	t.Parallel()
	keys, err := access.New([]string{"alice", "bob"})
	if err != nil {
		t.Fatal(err)
	}
	for name, keyed := range map[string]bool{"without keys": false, "with keys": true} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, script(nil), func(c *Config) {
				c.Limits.Context = 1 << 24
				if keyed {
					c.Keys = keys
				}
			})
			sent := 66 << 10
			if keyed {
				sent = 600 << 10 // 58 MiB in all
			}
			for range 100 {
				s.dial(t, fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"+
					"Authorization: Bearer alice\r\nContent-Length: 8000000\r\n\r\n"+`{"prompt":"%s`, strings.Repeat("a", sent)))
			}
			testkit.Eventually(t, "they hold memory", func() bool { return s.held() >= min(100*stepBody, allBodies) })
			begun := time.Now()
			r, _ := http.NewRequest("POST", s.url+"/v1/completions", strings.NewReader(`{"prompt":"`+
				strings.Repeat("a", 200<<10)+`","max_tokens":1}`))
			r.Header.Set("Authorization", "Bearer bob")
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if took := time.Since(begun); answer.StatusCode >= 402 || took > 20*time.Second { // not 408 nor 429
				t.Errorf("%s after %v: want it read at once", answer.Status, took)
			}
		})
	}
}

// TestNoMemoryForBodies has bodies wait for memory that does not become free: they are told to come again, small ones do not
// wait at all.
func TestNoMemoryForBodies(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), func(c *Config) {
		c.Body, c.Limits.Context = 2*time.Second, 1<<24 // beyond what a body holds
	})
	giveBack := s.hold("")
	p := s.refused(t, "POST", "/v1/completions", `{"prompt":"`+strings.Repeat("a", 100<<10)+`"}`)
	if p.status != 429 || p.Code != "rate_limit_exceeded" || p.header.Get("Retry-After") == "" {
		t.Errorf("without memory for it: %+v", p)
	}
	s.post(t, "/v1/completions", `{"prompt":"a"}`)
	giveBack()

	wait, cancel := context.WithCancel(t.Context()) // a client that leaves while it waits
	defer cancel()
	if n := s.held(); n != 0 {
		t.Fatalf("the one that waited holds %d bytes", n)
	}
	giveBack = s.hold("")
	r, _ := http.NewRequestWithContext(wait, "POST", s.url+"/v1/completions", strings.NewReader(`{"prompt":"`+strings.Repeat("a", 1<<20)+
		`"}`))
	go func() {
		testkit.Until(func() bool { return s.waiting() > 0 || wait.Err() != nil })
		cancel()
	}()
	if _, err := http.DefaultClient.Do(r); err == nil {
		t.Error("a request that was given up is answered")
	}
	testkit.Eventually(t, "nobody waits", func() bool { return s.waiting() == 0 })
	giveBack()

	if giveBack, err := s.cfg.Texts.Take(t.Context(), 4<<20); err != nil { // all memory for large texts
		t.Fatal(err)
	} else {
		defer giveBack()
	}
	if p := s.refused(t, "POST", "/v1/completions", `{"prompt":"`+strings.Repeat("a", 100<<10)+`"}`); p.status != 429 ||
		!strings.Contains(p.Message, "into tokens") {
		t.Errorf("without memory for its tokens: %+v", p)
	}
	s.post(t, "/v1/completions", `{"prompt":"a"}`)
}

// TestLargeAnswers bounds what is collected for an answer, and for all of them.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var once sync.Once
	wordy := script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		err := sink.Started(tandem.Started{Request: r})
		d := tandem.Delta{Text: strings.Repeat("x", 50_000), Tokens: []tandem.Token{'x'}, Origins: []tandem.Origin{0}}
		if r.Sampling.Logprobs || r.Report {
			d.Text = "x"
		}
		if r.Sampling.Logprobs {
			d.Logprobs = []tandem.Logprob{{Top: make([]tandem.TopLogprob, r.Sampling.TopLogprobs)}}
		}
		if r.Report {
			d.Round = &tandem.Round{Tree: tandem.Tree{Tokens: make([]tandem.Token, 200)}}
		}
		for i := 0; i < r.MaxTokens && err == nil; i++ {
			err = sink.Delta(d)
		}
		if r.Sampling.Seed == 99 {
			<-release
		}
		if err != nil {
			err = tandem.Errorf("generate", tandem.Canceled, "the sink takes no more") // whoever generates may word it so
		}
		return tandem.Result{Finish: tandem.FinishLength}, err
	})
	s := serve(t, wordy, nil)
	for _, fields := range []string{`"max_tokens":200`, `"max_tokens":20,"n":16`, `"max_tokens":5000,"logprobs":20`,
		`"max_tokens":1000,"speculation":{"report":true}`} {
		p := s.refused(t, "POST", "/v1/completions", `{"prompt":"a",`+fields+`}`)
		if p.status != 400 || p.Code != "answer_too_large" || !strings.Contains(p.Message, "8 MiB") {
			t.Errorf("%s: %+v", fields, p)
		}
	}
	if answer, _ := s.ask(t, "POST", "/v1/completions", `{"prompt":"a","max_tokens":200,"stream":true}`); answer.StatusCode != 200 {
		t.Errorf("as a stream: %s", answer.Status)
	}
	s.post(t, "/v1/completions", `{"prompt":"a","max_tokens":140}`)
	defer once.Do(func() { close(release) })
	var wg sync.WaitGroup
	for range 10 { // 7 MiB each
		wg.Go(func() {
			answer, _ := s.ask(t, "POST", "/v1/completions", `{"prompt":"a","max_tokens":140,"seed":99}`)
			if answer.StatusCode != 200 && answer.StatusCode != 429 {
				t.Error(answer.Status)
			}
		})
	}
	testkit.Eventually(t, "the answers take what there is", func() bool {
		free := s.answers.TryTake(7 << 20)
		if free {
			s.answers.Give(7 << 20)
		}
		return !free
	})
	if p := s.refused(t, "POST", "/v1/completions", `{"prompt":"a","max_tokens":150}`); p.status != 429 ||
		!strings.Contains(p.Message, "64 MiB") {
		t.Errorf("beyond what all may take: %+v", p)
	}
	s.post(t, "/v1/completions", `{"prompt":"a","max_tokens":4}`) // small ones always
	once.Do(func() { close(release) })
	wg.Wait()
	testkit.Eventually(t, "answers that were sent count no more", func() bool { return s.answers.TryTake(allAnswers) })
}

// TestNativeAnswers bounds what /tokenize, /detokenize and /apply-template make of a body.
func TestNativeAnswers(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), nil)
	long := strings.Repeat("x", mostTokenized)
	for path, body := range map[string]string{"/tokenize": `{"content":"` + long + `x"}`,
		"/apply-template": `{"messages":[{"role":"user","content":"` + long + `"}]}`} {
		if p := s.refused(t, "POST", path, body); p.status != 413 || p.Code != "prompt_too_large" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if p := s.refused(t, "POST", "/detokenize", `{"tokens":[`+strings.Repeat("299,", mostTokenized/5+1)+`1]}`); p.status != 413 ||
		p.Code != "answer_too_large" || p.Param != "tokens" {
		t.Errorf("/detokenize: %+v", p)
	}
	for pieces, text := range map[string]string{"false": long, "true": long[:100_000]} {
		a := s.post(t, "/tokenize", `{"content":"`+text+`","with_pieces":`+pieces+`}`)
		if n := len(a["tokens"].([]any)); n != len(text) {
			t.Errorf("%d tokens, want %d", n, len(text))
		}
	}
	if _, all := s.ask(t, "POST", "/tokenize", `{"content":""}`); all != "{\"tokens\":[]}\n" {
		t.Errorf("nothing is %q", all)
	}
}

// TestNestedBodiesAreCounted: a body of another API holds the memory of what it is put together of, not only its own size.
func TestNestedBodiesAreCounted(t *testing.T) {
	s := serve(t, script(nil), large)
	for path, body := range map[string][2]string{
		"/v1/messages":         {`{"max_tokens":1,"messages":[{"role":"user","content":[`, `{"type":"text"},`},
		"/v1/responses":        {`{"input":[`, `{"role":"user"},`},
		"/v1/chat/completions": {`{"messages":[`, `{"role":"user","content":""},`},
	} {
		r, w := io.Pipe()
		gone, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			request, _ := http.NewRequestWithContext(gone, "POST", s.url+path, r)
			if answer, err := http.DefaultClient.Do(request); err == nil {
				answer.Body.Close()
			}
		}()
		const n = 10_000
		if _, err := io.WriteString(w, body[0]+strings.Repeat(body[1], n)); err != nil {
			t.Fatal(err)
		}
		counted := path != "/v1/chat/completions" // whose messages are made while they are read
		testkit.Eventually(t, path+": what is read is counted", func() bool {
			held := s.held()
			return held > 0 && (held >= n*nestedSize-smallNested-stepBody) == counted
		})
		cancel()
		w.Close()
		<-ended
		testkit.Eventually(t, path+": memory is given back", func() bool { return s.held() == 0 })
	}
}
