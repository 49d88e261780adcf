package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
)

// taker reads a completion over HTTP, and takes its stream up again wherever it breaks off.
type taker struct {
	url, body string
	id        string // of the last event
	text      string
	begun     int // answers
}

// all reads until the stream is complete.
func (s *taker) all(t *testing.T, came func()) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		done, err := s.once(t, came)
		switch {
		case done:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("behind %q after a minute: %w", s.id, err)
		}
	}
}

// once reads an answer, until it is complete or breaks off.
func (s *taker) once(t *testing.T, came func()) (done bool, err error) {
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/completions", strings.NewReader(s.body))
	if err != nil {
		return false, err
	}
	if s.id != "" {
		r.Header.Set("Last-Event-ID", s.id)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		all, _ := io.ReadAll(answer.Body)
		return false, fmt.Errorf("%s: %s", answer.Status, all)
	}
	s.begun++
	var e struct{ id, text string }
	in := bufio.NewScanner(answer.Body)
	for in.Scan() {
		line := in.Text()
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			e.id = id
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if data == "[DONE]" {
				return true, nil
			}
			var c struct{ Choices []struct{ Text string } }
			if json.Unmarshal([]byte(data), &c) == nil && len(c.Choices) > 0 {
				e.text = c.Choices[0].Text
			}
		}
		if line == "" && e.id != "" { // the event is whole
			s.id, s.text = e.id, s.text+e.text
			e.id, e.text = "", ""
			came()
		}
	}
	return false, in.Err()
}

// TestStreamsOutliveGateway kills the gateway again and again while texts are streamed: every client has its whole text, as without that.
func TestStreamsOutliveGateway(t *testing.T) {
	const tokens = 300
	kills := 3
	if *long {
		kills = 100
	}
	g := up(t, "--http", "127.0.0.1:0", "--sessions", "8")
	c, err := client.Dial(g.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var came atomic.Int64
	var taken atomic.Int64
	for n := 0; n < kills && !t.Failed(); {
		var requests [3]client.Request
		var wants [3]string // over gRPC
		var calm [3]taker   // over HTTP, whose defaults differ
		for i := range requests {
			r := client.Request{Prompt: fmt.Sprintf("// Function %d returns", i), MaxTokens: new(tokens), IgnoreEOS: true,
				Temperature: new(0.8), Seed: new(uint64(n*7 + i))}
			requests[i], wants[i] = r, g.run(t, r).text
			body, _ := json.Marshal(map[string]any{"prompt": r.Prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": 0.8,
				"seed": *r.Seed, "stream": true})
			calm[i] = taker{url: g.http, body: string(body)}
			if err := calm[i].all(t, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		var streams sync.WaitGroup
		for i := range requests {
			streams.Go(func() {
				got := ""
				for e, err := range c.Generate(t.Context(), requests[i]) {
					if err != nil {
						t.Errorf("gRPC, stream %d: %v", i, err)
						return
					}
					if e.Delta != nil {
						got += e.Delta.Text
						came.Add(1)
					}
				}
				if got != wants[i] {
					t.Errorf("gRPC, stream %d: %q\nwant %q", i, got, wants[i])
				}
			})
			streams.Go(func() {
				s := &taker{url: g.http, body: calm[i].body}
				if err := s.all(t, func() { came.Add(1) }); err != nil {
					t.Errorf("HTTP, stream %d: %v", i, err)
				} else if s.text != calm[i].text || s.text == "" {
					t.Errorf("HTTP, stream %d: %q\nwant %q", i, s.text, calm[i].text)
				}
				taken.Add(int64(s.begun - 1))
			})
		}
		over := make(chan struct{})
		go func() { streams.Wait(); close(over) }()
		for ended := false; !ended && n < kills; {
			at := came.Load()
			for came.Load() < at+60 && !ended { // all have a little more
				select {
				case <-over:
					ended = true
				case <-time.After(time.Millisecond):
				}
			}
			if !ended {
				gateway := g.w.one(t, "gateway")
				_ = syscall.Kill(gateway, syscall.SIGKILL)
				g.back(t, "gateway", gateway)
				n++
			}
		}
		<-over
	}
	if t.Logf("%d kills; %d streams of HTTP were taken up again", kills, taken.Load()); taken.Load() == 0 {
		t.Error("no stream broke off: want some, to see them taken up")
	}
}
