package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/text/calls"
)

func TestMain(m *testing.M) {
	testkit.AtOnce(32)
	goleak.VerifyTestMain(m)
}

const (
	vocabSize = 300
	bos       = tandem.Token(256)
	eot       = tandem.Token(257) // prints nothing
	context1  = 64                // positions of a session
)

// alphabet is a vocabulary of bytes, with control tokens for the beginning and the end of a text, "<s>" and "</s>".
type alphabet struct{}

func (alphabet) Encode(text string, special bool) (out []tandem.Token) {
	if special {
		out = append(out, bos)
	}
	for _, b := range []byte(text) {
		out = append(out, tandem.Token(b))
	}
	return out
}

func (a alphabet) EncodeWithControl(text string, special bool) []tandem.Token {
	var out []tandem.Token
	for i, part := range strings.Split(text, "<s>") {
		if i > 0 {
			out = append(out, bos)
		}
		out = append(out, a.Encode(part, special && i == 0)...)
	}
	return out
}

// FillIn knows the markers 261, 262 and 263, and 264 in front of a file.
func (a alphabet) FillIn(before, behind string, files ...tandem.Excerpt) (tokens []tandem.Token, lacking []string) {
	tokens = []tandem.Token{bos}
	for _, f := range files {
		tokens = append(append(tokens, 264), a.Encode(f.Name+":"+f.Text, false)...)
	}
	tokens = append(append(tokens, 261), a.Encode(before, false)...)
	tokens = append(append(tokens, 262), a.Encode(behind, false)...)
	return append(tokens, 263), nil
}

func (alphabet) GapEnds() []string { return []string{"<264>"} }

func (alphabet) AtLeast(text string) int { return len(text) }

func (alphabet) AppendBytes(dst []byte, t tandem.Token) []byte {
	switch {
	case t < 256:
		return append(dst, byte(t))
	case t == bos || t == eot:
		return dst
	}
	return append(dst, fmt.Sprintf("<%d>", t)...)
}

func (a alphabet) AppendWritten(dst []byte, t tandem.Token) []byte {
	switch t {
	case bos:
		return append(dst, "<s>"...)
	case eot:
		return append(dst, "</s>"...)
	}
	return a.AppendBytes(dst, t)
}

func (a alphabet) DecodeWritten(tokens []tandem.Token) string {
	var out []byte
	for _, t := range tokens {
		out = a.AppendWritten(out, t)
	}
	return string(out)
}

func (a alphabet) Texts(prev ...tandem.Token) func(tandem.Token) string {
	var held []byte
	next := func(t tandem.Token) string {
		held = a.AppendBytes(held, t)
		if n := len(held); n > 0 && !utf8.FullRune(held[max(0, n-1):]) || n > 1 && held[n-2] >= 0xc0 && !utf8.FullRune(held[n-2:]) {
			return ""
		}
		text := tandem.Lossy(held)
		held = nil
		return text
	}
	for _, t := range prev {
		next(t)
	}
	return next
}

// script is a generator that validates as the gateway does, then does what it is told; nil says "hello" until the
// tokens are used up.
type script func(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error)

var limits = tandem.Limits{Context: context1, Vocab: vocabSize}

func (f script) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	if err := r.Validate(limits); err != nil {
		return tandem.Result{}, err
	}
	if f == nil {
		return hello(ctx, r, s)
	}
	return f(ctx, r, s)
}

// hello says "hello " again and again, one token at a time, every other one a draft's. The seed says where it begins.
func hello(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	res := tandem.Result{Identity: "fp_1", Finish: tandem.FinishLength, PromptTokens: len(r.Tokens), CachedTokens: 1,
		Stats: tandem.Stats{Rounds: 2, Drafted: 3, DraftedDepth: 3,
			Accepted: 1, Prefill: 4 * time.Millisecond, Decode: 8 * time.Millisecond, Choices: map[string]int{"go 4/2": 2},
			Drafters:     []tandem.DrafterStats{{Name: "go", Rounds: 2, Drafted: 3, Accepted: 1, Weight: 1}},
			Coordination: []time.Duration{1000, 3000, 2000}}}
	if err := s.Started(tandem.Started{Session: 7, PromptTokens: r.Tokens, Request: r, Drafter: "go", Identity: "fp_1"}); err != nil {
		return res, err
	}
	const text = "hello "
	for i := range min(r.MaxTokens, limits.Context-len(r.Tokens)) {
		if ctx.Err() != nil {
			return res, tandem.Errorf("generate", tandem.KindOf(context.Cause(ctx)), "ended: %w", context.Cause(ctx))
		}
		c := text[(i+int(r.Sampling.Seed%uint64(len(text))))%len(text)]
		d := tandem.Delta{Text: string(c), Tokens: []tandem.Token{tandem.Token(c)}, Origins: []tandem.Origin{tandem.Origin(i % 2)}}
		if r.Sampling.Logprobs {
			p := tandem.Logprob{LogProb: -0.5}
			for k := range r.Sampling.TopLogprobs {
				p.Top = append(p.Top, tandem.TopLogprob{Token: tandem.Token(c) + tandem.Token(k), LogProb: -0.5 - float32(k)})
			}
			d.Logprobs = []tandem.Logprob{p}
		}
		if r.Report {
			d.Round = &tandem.Round{Index: i, Base: tandem.Position(len(r.Tokens) + i), Choice: "go 4/2", Why: "it is cheap",
				Tree: tandem.Tree{Tokens: []tandem.Token{tandem.Token('x'), tandem.Token(c), tandem.Token('z')},
					Parents: []int32{-1, 0, 0}, LogProbs: []float32{0, -0.25, -2}},
				Drafters: []string{"go", "py"}, Votes: []uint16{3, 2, 1}, Path: []int32{1},
				Lanes: []tandem.Lane{{Stage: "draft", By: "go", From: time.Millisecond, To: 2 * time.Millisecond}}}
		}
		if err := s.Delta(d); err != nil {
			return res, err
		}
		res.OutputTokens++
	}
	return res, nil
}

// lines is a template that puts each message on a line of its own.
type lines struct{}

func (lines) Reads(name string) bool { return name == "enable_thinking" || name == "style" }

func (lines) Prompt(_ context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(of.Variables)) {
		fmt.Fprintf(&b, "%s=%s\n", name, of.Variables[name])
	}
	if len(of.Tools) > 0 {
		fmt.Fprintf(&b, "tools=%s\n", of.Tools)
	}
	if of.Must {
		fmt.Fprintf(&b, "a call, several %v\n", !of.Single)
	}
	for _, m := range of.Messages {
		if m.Content == "refuse" {
			return conversation.Prompt{}, tandem.Errorf("chat", tandem.Invalid,
				"template line 3: after the optional system message, roles must alternate")
		}
		if m.Content == "loop" {
			return conversation.Prompt{}, tandem.Errorf("chat", tandem.Deadline, "the template takes longer than 1s")
		}
		fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Content)
	}
	if of.Continue {
		b.WriteString("goes on\n")
	}
	p := conversation.Prompt{Text: b.String(), Tokens: func() []tandem.Token { return alphabet{}.Encode(b.String(), true) }}
	p.Output.Allowed = of.Answer
	if len(of.Tools) > 0 {
		o := calls.Options{Tools: calls.Parse(of.Tools), Single: of.Single}
		p.Output.Reader = func() *calls.Reader { return calls.Hermes.Reader(o) }
	}
	return p, nil
}

var testDefaults = ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10},
	Strategy: tandem.StrategyPlanner}

// site is a running server.
type site struct {
	*Server
	url string
	cfg Config
}

// serve runs a server of g until the test ends; change may change its configuration.
func serve(t testing.TB, g tandem.Generator, change func(*Config)) *site {
	t.Helper()
	cfg := Config{Listen: "127.0.0.1:0", Generator: g, Model: Model{Name: "gopher", Architecture: "llama",
		Created: time.Unix(1700000000, 0)},
		Defaults: testDefaults, Limits: limits, Vocab: alphabet{}, Chat: lines{}, Counters: new(tandem.Counters), Texts: budget.NewTexts()}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		work.Wait()
	})
	return &site{s, s.URL(), cfg}
}

// ask sends a request as curl does, and returns the answer.
func (s *site) ask(t testing.TB, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer, string(all)
}

// post sends a body that must be answered with 200, and decodes the answer.
func (s *site) post(t testing.TB, path, body string) map[string]any {
	t.Helper()
	answer, all := s.ask(t, "POST", path, body)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s with %s: %s: %s", path, body, answer.Status, all)
	}
	return object(t, all)
}

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return out
}

// problem is an answer that is an error.
type problem struct {
	status                     int
	Message, Type, Param, Code string
	header                     http.Header
}

// refused sends a request that must be refused in OpenAI's form.
func (s *site) refused(t testing.TB, method, path, body string, headers ...string) problem {
	t.Helper()
	answer, all := s.ask(t, method, path, body, headers...)
	return refusal(t, answer, all)
}

func refusal(t testing.TB, answer *http.Response, all string) problem {
	t.Helper()
	var e struct {
		Error *struct {
			Message, Type string
			Param, Code   *string
		}
	}
	if err := json.Unmarshal([]byte(all), &e); err != nil || e.Error == nil {
		t.Fatalf("%s: %.300q is no error object: %v", answer.Status, all, err)
	}
	p := problem{status: answer.StatusCode, Message: e.Error.Message, Type: e.Error.Type, header: answer.Header}
	if e.Error.Param != nil {
		p.Param = *e.Error.Param
	}
	if e.Error.Code != nil {
		p.Code = *e.Error.Code
	}
	if p.Message == "" || p.Type == "" {
		t.Errorf("%s: %q: want a message and a type", answer.Status, all)
	}
	return p
}

// event is one server-sent event; a comment has neither kind nor data.
type event struct{ id, kind, data, comment string }

// events reads a stream to its end.
func events(t testing.TB, r io.Reader) (all []event) {
	t.Helper()
	var e event
	for in := bufio.NewScanner(r); in.Scan(); {
		line := in.Text()
		switch {
		case line == "":
			all = append(all, e)
			e = event{}
		case strings.HasPrefix(line, ":"):
			e.comment = line
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			e.kind = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data += line[6:]
		default:
			t.Errorf("line %q is no part of an event", line)
		}
	}
	return all
}

// same compares JSON texts.
func same(t testing.TB, what, got, want string) {
	t.Helper()
	var a, b bytes.Buffer
	if err := json.Compact(&a, []byte(got)); err != nil {
		t.Fatalf("%s: %v in %q", what, err, got)
	}
	if err := json.Compact(&b, []byte(want)); err != nil {
		t.Fatalf("%s: %v in %q", what, err, want)
	}
	if a.String() != b.String() {
		t.Errorf("%s:\n%s\nwant\n%s", what, a.String(), b.String())
	}
}
