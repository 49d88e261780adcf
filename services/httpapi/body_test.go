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

	"github.com/tandem-llm/tandem/testkit"

	"github.com/tandem-llm/tandem"
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
	for n := int64(allBodies); ; n -= 1 << 16 {
		if n <= 0 || s.bodies.TryTake(n) {
			s.bodies.Give(max(n, 0))
			return allBodies - n
		}
	}
}

// TestSlowBodiesGiveWay fills the memory of large bodies with ones that come slowly: whoever comes next gets it after some
// seconds, from those; without anybody else they have all their time.
func TestSlowBodiesGiveWay(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), func(c *Config) { c.Limits.Context = 1 << 24 })
	begin := `{"prompt":"` + strings.Repeat("a", 200<<10)
	var wg sync.WaitGroup
	for range allBodies / defaultMax {
		wg.Go(func() {
			if took, p := s.trickle(t, fmt.Sprintf("Content-Length: %d", defaultMax), begin, 10*time.Millisecond); p.status != 408 ||
				!strings.Contains(p.Message, "others waited") || took < rateAfter {
				t.Errorf("a slow one: %+v after %v", p, took)
			}
		})
	}
	testkit.Eventually(t, "they hold all", func() bool { return s.held() == allBodies })
	time.Sleep(rateAfter + 500*time.Millisecond)
	if n := s.connections(); n != allBodies/defaultMax {
		t.Errorf("%d slow bodies go on while nobody waits", n)
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
	testkit.Eventually(t, "bytes are held in the end", func() bool { return s.held() == 0 })
}

// TestNoMemoryForBodies has bodies wait for memory that does not become free: they are told to come again, small ones do not
// wait at all.
func TestNoMemoryForBodies(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), func(c *Config) { c.Body = 2 * time.Second })
	if !s.bodies.TryTake(allBodies) {
		t.Fatal("something is held")
	}
	p := s.refused(t, "POST", "/v1/completions", `{"prompt":"`+strings.Repeat("a", 100<<10)+`"}`)
	if p.status != 429 || p.Code != "rate_limit_exceeded" || p.header.Get("Retry-After") == "" {
		t.Errorf("without memory for it: %+v", p)
	}
	s.post(t, "/v1/completions", `{"prompt":"a"}`)
	s.bodies.Give(allBodies)

	wait, cancel := context.WithCancel(t.Context()) // a client that leaves while it waits
	defer cancel()
	if !s.bodies.TryTake(allBodies) {
		t.Fatal("the one that waited holds something")
	}
	r, _ := http.NewRequestWithContext(wait, "POST", s.url+"/v1/completions", strings.NewReader(`{"prompt":"`+strings.Repeat("a", 1<<20)+
		`"}`))
	go func() {
		for !s.bodies.Crowded() && wait.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := http.DefaultClient.Do(r); err == nil {
		t.Error("a request that was given up is answered")
	}
	testkit.Eventually(t, "nobody waits", func() bool { return !s.bodies.Crowded() })
	s.bodies.Give(allBodies)

	if giveBack, err := s.cfg.Texts.Take(t.Context(), 4<<20); err != nil { // all memory for large texts
		t.Fatal(err)
	} else {
		defer giveBack()
	}
	s.cfg.Limits.Context = 1 << 24 // beyond what a body holds
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
