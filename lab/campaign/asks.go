package campaign

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// ask is one of the fixed requests. Everything that its text depends on is in it, so that every API answers it with the same text.
type ask struct {
	name        string
	prompt      string
	chat        bool // the prompt is a message of a user
	tokens      int
	temperature float64
	seed        uint64
	ignoreEOS   bool
	strategy    string
	plain       bool // without drafts, for references
}

const (
	topK = 40
	topP = 0.95
	minP = 0.05
)

// asks returns the fixed requests: short, middle and long prompts, texts and chats, greedy and drawn, short and long answers.
func asks(strategies []string) (all []ask) {
	paragraph := "// Reader reads records one after another. It keeps the last one, and reports where it stands.\n" +
		"type Reader struct {\n\tbuf []byte\n\tpos int64\n\terr error\n}\n\n"
	prompts := []string{"func (r *Reader) Read(", "def parse(", "The scheduler decides which goroutine runs next. ",
		paragraph + "// Next returns the next record.\nfunc (r *Reader) Next() (", strings.Repeat(paragraph, 7) + "func "}
	lengths := []int{8, 24, 64, 200}
	for i := range 24 {
		a := ask{prompt: prompts[i%len(prompts)], tokens: lengths[i%len(lengths)], seed: uint64(i), chat: i%6 == 5, ignoreEOS: i%3 == 0,
			strategy: strategies[i/2%len(strategies)]}
		if i%2 == 1 {
			a.temperature = []float64{0.8, 1.2}[i/2%2]
		}
		a.name = fmt.Sprintf("ask-%02d", i)
		all = append(all, a)
	}
	return all
}

// request is the ask as the Go client puts it.
func (a ask) request() client.Request {
	return client.Request{Prompt: a.prompt, MaxTokens: new(a.tokens), Temperature: new(a.temperature), Seed: new(a.seed), TopK: new(topK),
		TopP: new(topP), MinP: new(minP), IgnoreEOS: a.ignoreEOS, NoDraft: a.plain, Strategy: a.strategy}
}

// conversation is an ask with chat as the Go client puts it.
func (a ask) conversation() *tandemv1.ChatRequest {
	return &tandemv1.ChatRequest{Messages: []*tandemv1.ChatMessage{{Role: "user", Content: a.prompt}}, MaxTokens: new(int32(a.tokens)),
		IgnoreEos: new(a.ignoreEOS), Sampling: &tandemv1.Sampling{Temperature: new(a.temperature), Seed: new(a.seed),
			TopK: new(int32(topK)), TopP: new(topP), MinP: new(minP)},
		Speculation: &tandemv1.Speculation{Enabled: new(!a.plain), Strategy: new(a.strategy)}}
}

// body is the ask as JSON over HTTP, and path where it goes.
func (a ask) body() (path string, body map[string]any) {
	body = map[string]any{"max_tokens": a.tokens, "temperature": a.temperature, "seed": a.seed, "top_k": topK, "top_p": topP, "min_p": minP,
		"ignore_eos": a.ignoreEOS, "stream": true, "stream_options": map[string]any{"include_usage": true},
		"speculation": map[string]any{"strategy": a.strategy}}
	if a.chat {
		body["messages"] = []map[string]string{{"role": "user", "content": a.prompt}}
		return "/v1/chat/completions", body
	}
	body["prompt"] = a.prompt
	return "/v1/completions", body
}
