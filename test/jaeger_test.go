package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

const jaegerVersion = "v1.76.0" // as in test/scripts/jaeger

// jaeger is a running Jaeger.
type jaeger struct {
	otlp, query string // host:port
}

// startJaeger starts the Jaeger that test/scripts/jaeger has built or $TANDEM_JAEGER names, and ends it with the test.
// Without one the test is skipped: building it takes minutes, and the module proxy.
func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	binary := os.Getenv("TANDEM_JAEGER")
	if binary == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip("no cache directory: ", err)
		}
		binary = filepath.Join(cache, "tandem", "jaeger-"+jaegerVersion)
		if _, err := os.Stat(binary); err != nil {
			t.Skip("no Jaeger: test/scripts/jaeger builds one in some minutes, TANDEM_JAEGER names another")
		}
	}
	j := &jaeger{otlp: freePort(t), query: freePort(t)}
	args := []string{"--log-level", "error", "--collector.otlp.grpc.host-port", j.otlp, "--query.http-server.host-port", j.query}
	for _, other := range []string{"collector.otlp.http", "collector.grpc-server", "collector.http-server", "query.grpc-server",
		"admin.http"} {
		args = append(args, "--"+other+".host-port", freePort(t))
	}
	cmd := exec.Command(binary, args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Jaeger said:\n%s", &said)
		}
	})
	testkit.Eventually(t, "Jaeger answers", func() bool {
		_, err := j.get("/api/services")
		return err == nil
	})
	return j
}

func (j *jaeger) get(path string) ([]byte, error) {
	r, err := http.Get("http://" + j.query + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return b, err
}

// jaegerTrace is a trace as Jaeger's query API tells it.
type jaegerTrace struct {
	ID        string        `json:"traceID"`
	Spans     []*jaegerSpan `json:"spans"`
	Processes map[string]struct {
		Service string `json:"serviceName"`
	} `json:"processes"`
}

type jaegerSpan struct {
	ID         string            `json:"spanID"`
	Name       string            `json:"operationName"`
	Process    string            `json:"processID"`
	Start      int64             `json:"startTime"` // µs
	Duration   int64             `json:"duration"`  // µs
	References []jaegerReference `json:"references"`
	Tags       []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	} `json:"tags"`

	trace    *jaegerTrace
	parent   *jaegerSpan
	children []*jaegerSpan // by start
}

// jaegerReference is a span's parent (CHILD_OF) or link (FOLLOWS_FROM).
type jaegerReference struct {
	Type  string `json:"refType"`
	Trace string `json:"traceID"`
	Span  string `json:"spanID"`
}

// tag returns a tag, nil if there is none.
func (s *jaegerSpan) tag(key string) any {
	for _, t := range s.Tags {
		if t.Key == key {
			return t.Value
		}
	}
	return nil
}

func (s *jaegerSpan) service() string { return s.trace.Processes[s.Process].Service }

// below returns the spans of that name directly below s.
func (s *jaegerSpan) below(name string) (out []*jaegerSpan) {
	for _, c := range s.children {
		if c.Name == name {
			out = append(out, c)
		}
	}
	return out
}

// traces asks for all traces of the gateway and ties their spans together.
func (j *jaeger) traces(t *testing.T) (all []*jaegerTrace, raw []byte) {
	t.Helper()
	raw, err := j.get("/api/traces?service=tandem-gateway&limit=100&lookback=1h")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Data []*jaegerTrace `json:"data"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	for _, x := range answer.Data {
		x.tie()
	}
	return answer.Data, raw
}

func (x *jaegerTrace) tie() {
	byID := map[string]*jaegerSpan{}
	slices.SortFunc(x.Spans, func(a, b *jaegerSpan) int { return int(a.Start - b.Start) })
	for _, s := range x.Spans {
		s.trace, byID[s.ID] = x, s
	}
	for _, s := range x.Spans {
		for _, r := range s.References {
			if p := byID[r.Span]; p != nil && s.parent == nil { // a span that is linked to its parent has that one reference, FOLLOWS_FROM
				s.parent = p
				p.children = append(p.children, s)
			}
		}
	}
}

// root returns the one span without a parent in the trace, nil if there is not exactly one.
func (x *jaegerTrace) root() (root *jaegerSpan) {
	for _, s := range x.Spans {
		if s.parent == nil {
			if root != nil {
				return nil
			}
			root = s
		}
	}
	return root
}

// tracedRequest is a request of TestJaeger and what its trace must show.
type tracedRequest struct {
	client.Request
	root     string
	drafters int
	tokens   []uint32
	trace    *jaegerTrace

	// What check has found. On a busy box a drafter may be late, so one trace in which it never was is asked for.
	beside, apart string // prefills of drafters that ran beside the verifier's, and that did not
	whole         int    // rounds that all drafters drafted for
}

const tracedModel = "gopher-19m-q8_0"

// TestJaeger runs requests with a real Jaeger as collector and asks it for their traces.
func TestJaeger(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	j := startJaeger(t)
	listen := freePort(t)
	models := []string{"gopher-draft-go-f16", "gopher-draft-py-f16"}
	flags := []string{"--otlp-endpoint", j.otlp, "--http", listen, "--target", filepath.Join("..", "models", tracedModel+".gguf")}
	for _, m := range models {
		flags = append(flags, "--draft", filepath.Join("..", "models", m+".gguf"))
	}
	g := up(t, flags...)

	const secret = "quetzalcoatl"
	prompt := "// Package " + secret + " reads.\npackage " + secret + "\n" + strings.Repeat("import \"io\"\n", 3)
	n, seed := 40, uint64(1)
	fixed := &client.Tree{Nodes: 8, Depth: 4, Width: 2}
	base := client.Request{Prompt: prompt, MaxTokens: &n, Seed: &seed, IgnoreEOS: true, FullTrace: true}
	rpc := "tandem.v1.GenerationService/Generate"
	requests := []*tracedRequest{
		{Request: base, root: rpc, drafters: 1}, {Request: base, root: rpc, drafters: 2}, {Request: base, root: rpc},
	}
	requests[0].Tree, requests[0].Drafters = fixed, models[:1]
	requests[1].Tree, requests[1].Vote, requests[1].Drafters = fixed, "tree", models
	requests[0].Strategy, requests[1].Strategy = "fixed", "fixed"
	requests[2].NoDraft = true
	for i, r := range requests {
		r.Prompt = fmt.Sprintf("// File %d.\n%s", i, prompt) // none finds another's in the cache
		r.tokens = g.run(t, r.Request).tokens
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	postCompletion(t, listen, "// File of HTTP.\n"+prompt, n, parent)
	requests = append(requests, &tracedRequest{Request: base, root: "POST /v1/completions", drafters: 1, tokens: make([]uint32, n)})

	var all []*jaegerTrace
	var raw []byte
	missing, spans, still := "", 0, 0
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		before := spans
		if all, raw = j.traces(t); len(all) != len(requests) {
			missing = fmt.Sprintf("%d traces of %d requests", len(all), len(requests))
		} else {
			missing, spans = "", 0
			for _, x := range all {
				missing += x.missing()
				spans += len(x.Spans)
			}
		}
		if still++; missing != "" || spans != before {
			still = 0
		}
		if still == 20 { // each process sends its spans once a second
			break
		}
		if time.Now().After(end) {
			t.Fatal("after 20 s Jaeger still lacks: ", missing)
		}
	}
	if bytes.Contains(raw, []byte(secret)) {
		t.Error("the prompt is told in a trace")
	}
	slices.SortFunc(all, func(a, b *jaegerTrace) int { return int(a.Spans[0].Start - b.Spans[0].Start) })
	for i, r := range requests {
		r.trace = all[i]
		t.Run(fmt.Sprint(i, " ", r.root), func(t *testing.T) { r.check(t) })
	}
	beside, apart, whole := "", "", 0
	for _, r := range requests {
		beside, apart = beside+r.beside, apart+r.apart
		if r.drafters > 1 {
			whole += r.whole
		}
	}
	if beside == "" || whole == 0 {
		t.Errorf("%d rounds have the drafts of both drafters, prefills beside the verifier's: %q: want some; apart: %q", whole, beside,
			apart)
	}
	if id := requests[3].trace.ID; !strings.Contains(parent, id) {
		t.Errorf("the client's trace %s goes on as %s", parent, id)
	}
	if *testkit.Rewrite {
		picture := filepath.Join("..", "docs", "pictures", "trace.svg")
		f, err := os.Create(picture)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := requests[1].trace.timeline(3).WriteSVG(f); err != nil {
			t.Fatal(err)
		}
		t.Log("written: ", picture)
	}
}

// postCompletion asks for a completion over HTTP, as part of a client's trace.
func postCompletion(t *testing.T, addr, prompt string, n int, traceparent string) {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true,
		"speculation": map[string]any{"max_width": 8, "max_depth": 4, "strategy": "fixed", "drafter": "gopher-draft-go-f16"}})
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("traceparent", traceparent)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", answer.Status, text)
	}
}

// missing says what of a trace has not arrived yet, "" if nothing: its root, its tokens' rounds, all processes.
func (x *jaegerTrace) missing() string {
	if x.root() == nil {
		return fmt.Sprintf("one root of trace %s with %d spans; ", x.ID, len(x.Spans))
	}
	told, rounds, processes := -1, 0, map[string]bool{}
	for _, s := range x.Spans {
		processes[s.service()] = true
		switch {
		case strings.HasPrefix(s.Name, "chat "):
			told = number(s.tag("gen_ai.usage.output_tokens"))
		case s.Name == "rounds":
			rounds += number(s.tag("tandem.accepted")) + number(s.tag("tandem.rounds"))
		}
	}
	if told != rounds || !processes["tandem-verifier"] {
		return fmt.Sprintf("rounds of trace %s: %d tokens are told, the rounds have %d, spans of %v; ", x.ID, told, rounds, processes)
	}
	return ""
}

// number returns an integer tag, -1 if it is none.
func number(v any) int {
	if f, ok := v.(float64); ok {
		return int(f)
	}
	return -1
}
