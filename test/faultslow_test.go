package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// gatewayCounter returns one of the gateway's own counters.
func (c *cluster) gatewayCounter(t testing.TB, name string) int64 {
	t.Helper()
	d, err := c.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d.Counters[name]
}

// TestStalledClients has as many clients as there are places stop reading in the middle of long outputs: others are
// answered as if they were not there. When they read again, each gets the text that it would have had.
func TestStalledClients(t *testing.T) {
	mayBeSlow(t)
	const places = 2
	c := newCluster(t, clusterConfig{sessions: places})
	jobs := c.workload(t, places, 60)
	alone := time.Now()
	c.once(t, jobs)
	usual := time.Since(alone)
	stalled := c.workload(t, places, 900)
	resume := make(chan struct{})
	var wg sync.WaitGroup
	for _, j := range stalled {
		j.request.Logprobs, j.request.TopLogprobs, j.request.Report = true, 20, true // much output for few tokens
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var tokens []uint32
			var end client.Finished
			for event, err := range c.client.Generate(ctx, j.request) {
				switch {
				case err != nil:
					t.Errorf("%s, which stalled: %v after %d tokens", j.id, err, len(tokens))
					return
				case event.Delta != nil:
					tokens = append(tokens, event.Delta.Tokens...)
					<-resume
				case event.Finished != nil:
					end = *event.Finished
				}
			}
			if !slices.Equal(tokens, j.want) || end.Statistics.Reopened == 0 {
				t.Errorf("%s, which stalled: opened again %d times, tokens\n%v, undisturbed\n%v", j.id, end.Statistics.Reopened, tokens,
					j.want)
			}
		})
	}
	goOn := sync.OnceFunc(func() { close(resume) })
	defer wg.Wait()
	defer goOn()
	parked := func() int64 { return c.gatewayCounter(t, "sessions.parked") }
	testkit.Eventually(t, "the sessions of clients that do not read to be parked", func() bool { return parked() == places })
	testkit.Eventually(t, "their memory to be free", func() bool { return c.allCounters(t)["verifier kv.pages"] == 0 })
	begun := time.Now()
	c.once(t, jobs)
	took := time.Since(begun)
	t.Logf("%d requests took %v alone, and %v beside as many clients that do not read as there are places", places, usual, took)
	if most := 4*usual + time.Second; took > most {
		t.Errorf("requests beside stalled clients took %v: want at most %v", took, most)
	}
	if n := parked(); n != places {
		t.Errorf("%d sessions are parked: want %d", n, places)
	}
	goOn()
	wg.Wait()
	if n := parked(); n != 0 {
		t.Errorf("%d sessions are parked after all have ended", n)
	}
}

// TestStalledStream is TestStalledClients with one place and a client of HTTP: what it reads in the end is, chunk by chunk, the text
// that it would have had.
func TestStalledStream(t *testing.T) {
	mayBeSlow(t)
	g := upWeb(t, template, "--sessions", "1")
	conversation := map[string]any{"messages": []map[string]string{{"role": "user", "content": "package main"}}, "max_tokens": 900,
		"ignore_eos": true, "temperature": 0,
		"stream": true, "logprobs": true, "top_logprobs": 20, "speculation": map[string]any{"report": true}}
	body, err := json.Marshal(conversation)
	if err != nil {
		t.Fatal(err)
	}
	small := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { // little fits on the way
			return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
		}}
		return d.DialContext(ctx, network, addr)
	}}}
	defer small.CloseIdleConnections()
	stream := func(pause func()) (text string, reopened int) {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", g.url+"/v1/chat/completions", bytes.NewReader(body))
		a, err := small.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		pause()
		lines := bufio.NewScanner(a.Body)
		lines.Buffer(nil, 1<<20)
		done := false
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if done = done || data == "[DONE]"; !ok || done {
				continue
			}
			var chunk struct {
				Choices []struct {
					Delta struct{ Content string }
				}
				Tandem struct{ Stats struct{ Reopened int } }
			}
			if err := json.Unmarshal([]byte(data), &chunk); err != nil {
				t.Fatalf("%v in %q", err, data)
			}
			for _, c := range chunk.Choices {
				text += c.Delta.Content
			}
			reopened += chunk.Tandem.Stats.Reopened
		}
		if lines.Err() != nil || !done {
			t.Errorf("the stream ended with %v", lines.Err())
		}
		return text, reopened
	}
	want, _ := stream(func() {})
	got, reopened := stream(func() {
		testkit.Eventually(t, "the session of a stream that nobody reads to be parked", func() bool {
			d, err := g.client.Describe(t.Context())
			return err == nil && d.Counters["sessions.parked"] == 1
		})
		begun := time.Now()
		if _, err := g.try(t.Context(), setting{0, 1}.request("x", 20)); err != nil {
			t.Error(err)
		}
		t.Logf("the request beside it took %v", time.Since(begun))
	})
	if got != want || want == "" || reopened == 0 {
		t.Errorf("opened again %d times, text %q, undisturbed %q", reopened, got, want)
	}
}

// TestDeafClients is the long form: clients that never read again are given up after 30 s, and nothing of them is left.
func TestDeafClients(t *testing.T) {
	if !*long {
		t.Skip("long form: make long")
	}
	const places = 2
	c := newCluster(t, clusterConfig{sessions: places})
	jobs := c.workload(t, places, 60)
	request := &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Text{Text: "package main\n"}, IgnoreEos: proto.Bool(true),
		MaxTokens: proto.Int32(900),
		Sampling:  &tandemv1.Sampling{Logprobs: proto.Bool(true), TopLogprobs: proto.Int32(20)}, Report: proto.Bool(true)}
	var wg sync.WaitGroup
	defer wg.Wait() // after all are closed
	for range places {
		s := dialSlow(t, filepath.Join(c.dir, "gateway.sock"), request)
		wg.Go(func() { _ = s.run() })
		defer s.conn.Close()
	}
	testkit.Eventually(t, "the slow clients' sessions to be parked",
		func() bool { return c.gatewayCounter(t, "sessions.parked") == places })
	begun := time.Now()
	c.once(t, jobs)
	t.Logf("requests beside clients that stall took %v", time.Since(begun))
	time.Sleep(31 * time.Second)
	if n := c.gatewayCounter(t, "sessions.parked"); n != 0 {
		t.Errorf("%d sessions are parked after 31 s", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := jobs[0].request
	most := 900
	r.Logprobs, r.TopLogprobs, r.Report, r.MaxTokens = true, 20, true, &most
	for event, err := range c.client.Generate(ctx, r) {
		if err != nil {
			if !errors.Is(err, client.Deadline) || !strings.Contains(err.Error(), "30s") {
				t.Errorf("a client that read nothing for 45 s is told %v: want a deadline that says so", err)
			}
			return
		}
		if event.Started != nil {
			time.Sleep(45 * time.Second) // it takes a while until no more fits on the way
		}
	}
	t.Error("a client that read nothing for 45 s was served to the end")
}
