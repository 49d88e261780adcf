package console

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/settings"
)

func TestCommand(t *testing.T) {
	for in, want := range map[string][2]string{
		"/bye": {"bye", ""}, "  /set  top_p 0.5 ": {"set", "top_p 0.5"}, "/?": {"?", ""}, "/nope x": {"nope", "x"},
		"// a comment": {}, "/": {}, "/* c */": {}, "/usr/bin/env": {}, "text /bye": {}, "": {}, "/Set": {},
	} {
		name, rest, is := command(in)
		if is != (want[0] != "") || is && (name != want[0] || rest != want[1]) {
			t.Errorf("%q is %q, %q, %v: want %q", in, name, rest, is, want)
		}
	}
}

func TestSet(t *testing.T) {
	var said strings.Builder
	c := &Conversation{Options: &settings.Talking{MaxTokens: 8, Shape: settings.Shape{Accept: "exact"}}, Drawn: tandem.ServerSampling,
		console: newConsole(&said, &said)}
	for _, tc := range []struct{ in, says string }{
		{"temperature 0.7", "temperature is 0.7"},
		{"temperature", "not a valid number"},
		{"temperature NaN", "/set temperature:"},
		{"temperature -1", "want 0 to"},
		{"max_tokens 0", "max_tokens is 0, no limit"},
		{"max_tokens -1", "max_tokens is -1, no limit"},
		{"max_tokens -7", "want 1 or more, or 0 or -1 for no limit"},
		{"top_k 5", "top_k is 5"},
		{"top_k default", "top_k is 40 (default)"},
		{"seed x", "not a valid number"},
		{"max_tokens 1e3", "not a valid number"},
		{"tree 1/2", "want nodes/depth/width"},
		{"tree 16/7/10", "tree is 16/7/10"},
		{"strategy best", "strategy"},
		{"nothing 1", "want one of accept, accept_delta, accept_epsilon, drafters, frequency_penalty"},
		{"ignore_eos maybe", "want on or off"},
		{"ignore_eos on", "ignore_eos is on"},
		{"stop a, b", `stop is ["a, b"]`},
		{"logit_bias 5", "want ID=ADD"},
		{"drafters x,y", `drafters is ["x" "y"]`},
		{"", "temperature       0.7"},
		{"", "top_p             0.95 (default)"},
		{"", "seed              random (default)"},
	} {
		said.Reset()
		if err := c.set(tc.in); err != nil || !strings.Contains(said.String(), tc.says) {
			t.Errorf("/set %s: says %q, %v: want %q in it", tc.in, said.String(), err, tc.says)
		}
	}
	if *c.Options.Temperature != 0.7 || c.Options.MaxTokens != -1 || c.Options.TopK != nil ||
		c.Options.Tree != "16/7/10" || c.Options.Strategy != "" {
		t.Errorf("options are %+v: want what was right alone to hold", *c.Options)
	}
}

func TestNextMessage(t *testing.T) {
	lines, release := readLines(strings.NewReader("one\r\n\n\"\"\"two\nthree\"\"\"\n\"\"\"\nfour\n\"\"\"\n\"\"\"five\nsix"))
	defer release()
	for _, want := range []string{"one", "", "two\nthree", "\nfour\n", "five\nsix"} {
		got, ok, err := nextMessage(t.Context(), lines)
		if got != want || !ok || err != nil {
			t.Errorf("message %q, %v, %v: want %q", got, ok, err, want)
		}
	}
	if got, ok, err := nextMessage(t.Context(), lines); ok || err != nil {
		t.Errorf("after the end: %q, %v, %v", got, ok, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok, err := nextMessage(ctx, make(chan line)); ok || err == nil {
		t.Errorf("of a chat that ended: %v, %v: want why", ok, err)
	}
	long, release := readLines(strings.NewReader(strings.Repeat("x", maxLine+1)))
	defer release()
	if _, _, err := nextMessage(t.Context(), long); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("of a line of %d bytes: %v: want Invalid", maxLine+1, err)
	}
}

func TestInterrupts(t *testing.T) {
	var i Interrupts
	if i.Taken() {
		t.Error("taken by nobody")
	}
	n := 0
	restore := i.Set(func() { n++ })
	if !i.Taken() || n != 1 {
		t.Errorf("called %d times: want once", n)
	}
	restore()
	if i.Taken() || n != 1 {
		t.Error("taken after it was given back")
	}
	done := make(chan struct{})
	go func() { i.Taken(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("locked")
	}
}

// TestNothingWasAnswered: a conversation fed from a file ends with an error if no message was answered, and says what helps in a full
// context.
func TestNothingWasAnswered(t *testing.T) {
	refusal := &client.Error{Kind: client.Invalid, Message: "prompt has 600 tokens: the context holds 512"}
	for _, tc := range []struct {
		asked, wrong int
		fails        bool
	}{{0, 0, false}, {3, 2, false}, {3, 3, true}} {
		c := Conversation{asked: tc.asked, wrong: tc.wrong, last: refusal}
		if err := c.failed(); (err != nil) != tc.fails || err != nil && (tandem.KindOf(err) != tandem.Invalid ||
			!strings.Contains(err.Error(), "600")) {
			t.Errorf("%d of %d without an answer: %v", tc.wrong, tc.asked, err)
		}
	}
	var out bytes.Buffer
	c := Conversation{console: console{err: &out}, last: refusal}
	_ = c.explain(refusal)
	if strings.Contains(out.String(), "/clear") {
		t.Errorf("before there is a conversation: %q", out.String())
	}
	c.Last = &talk.Answer{}
	_ = c.explain(refusal)
	if !strings.Contains(out.String(), "/clear") {
		t.Errorf("in a full context: %q: want /clear named", out.String())
	}
}

// TestCut: an answer that its limit ended says so, and what helps.
func TestCut(t *testing.T) {
	const full = "cut at 20: the context of 100 tokens is full; /clear begins anew, /set max_tokens bounds answers"
	for _, tc := range []struct {
		tokens, asked, limit, prompt int
		reason, want                 string
	}{
		{20, 20, 20, 5, "length", "cut at 20: /set max_tokens"},
		{20, settings.NoLimit, 20, 80, "length", full},
		{20, 50, 20, 80, "length", full},
		{20, 50, 20, 5, "length", "cut at 20: the gateway's --max-output-tokens"},
		{20, 20, 20, 5, "stop", ""},
		{12, 20, 20, 5, "length", ""}, // for another reason than a limit
	} {
		a := &talk.Answer{Request: tandem.Request{MaxTokens: tc.asked}, Limit: tc.limit, Tokens: make([]tandem.Token, tc.tokens),
			Finished: client.Finished{Reason: tc.reason, PromptTokens: tc.prompt}}
		if got := (&Conversation{Context: 100}).cut(a); got != tc.want {
			t.Errorf("%+v: says %q", tc, got)
		}
	}
}

// TestThoughts: what a model thinks is shown beside the answer, not in it.
func TestThoughts(t *testing.T) {
	var out, err strings.Builder
	c := &Conversation{console: newConsole(&out, &err)}
	for _, d := range []talk.Shown{{Delta: client.Delta{Text: "Well"}, Thought: true}, {Delta: client.Delta{Text: ", yes"}, Thought: true},
		{Delta: client.Delta{Text: "Yes."}}, {Delta: client.Delta{Text: " So."}}} {
		if err := c.show(t.Context(), &d); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != "Yes. So." || err.String() != "Well, yes\n\n" {
		t.Errorf("answer %q, beside it %q", out.String(), err.String())
	}
}

// TestComplete: Tab offers commands, options and files.
func TestComplete(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "talk.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Conversation{Options: &settings.Talking{}}
	for before, want := range map[string]string{"/sy": "/system", "/set top_p": "/set top_p",
		"/load " + dir + "/t": "/load " + dir + "/talk.json",
		"hello":               "", "/set x": ""} {
		if got := strings.Join(c.complete(before), "|"); got != want {
			t.Errorf("%q completes to %q: want %q", before, got, want)
		}
	}
}
