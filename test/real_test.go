package test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"
)

// realRoom is what every `tandem up` with real models is given: one short session.
var realRoom = []string{"--ctx", "1024", "--sessions", "1"}

// TestRealConversation holds a conversation of two turns with each real model that has a template, by that template: the prompt has as many
// tokens as llama.cpp's, the answers are right, and the same without drafts.
func TestRealConversation(t *testing.T) {
	mayBeSlow(t)
	for name, flags := range map[string][]string{
		"smollm2":      {"--draft", "lookup"},
		"qwen2.5-0.5b": {"--draft", "lookup"},
		"qwen2.5-1.5b": {"--draft", testkit.Qwen05, "--draft", "lookup"},
	} {
		t.Run(name, func(t *testing.T) {
			flags = append([]string{"--target", testkit.RealGoldens[name]}, flags...)
			for i, f := range flags {
				if strings.HasSuffix(f, ".gguf") {
					flags[i] = testkit.RealModel(t, f)
				}
			}
			var golden struct {
				Chats []struct {
					Messages json.RawMessage
					Tools    json.RawMessage
					Begins   bool `json:"add_generation_prompt"`
					Tokens   int  `json:"prompt_tokens"`
				}
			}
			testkit.RealGolden(t, "..", name, &golden)
			g := upWeb(t, "", append(flags, realRoom...)...)
			for _, c := range golden.Chats {
				if c.Begins && string(c.Tools) == "null" && !strings.Contains(string(c.Messages), "<|") {
					if _, tokens := g.answer(t, c.Messages, 1, true); tokens != c.Tokens {
						t.Errorf("%s has %d tokens: llama.cpp's prompt has %d", c.Messages, tokens, c.Tokens)
					}
				}
			}
			turns := []map[string]string{}
			for _, turn := range []struct{ ask, want string }{
				{"What is the capital of France? Answer with its name alone.", "Paris"},
				{"Repeat the name three times.", "Paris"},
			} {
				turns = append(turns, map[string]string{"role": "user", "content": turn.ask})
				messages, err := json.Marshal(turns)
				if err != nil {
					t.Fatal(err)
				}
				answer, _ := g.answer(t, messages, 48, true)
				if plain, _ := g.answer(t, messages, 48, false); plain != answer {
					t.Errorf("%s: %q with drafts, %q without", messages, answer, plain)
				}
				if !strings.Contains(answer, turn.want) {
					t.Errorf("%s: the answer is %q: want %q in it", messages, answer, turn.want)
				}
				turns = append(turns, map[string]string{"role": "assistant", "content": answer})
			}
		})
	}
}

// answer sends a conversation at temperature 0 and returns the answer and the tokens of the prompt.
func (g *webGroup) answer(t *testing.T, messages json.RawMessage, tokens int, drafts bool) (text string, prompt int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"messages": messages, "temperature": 0, "max_tokens": tokens,
		"speculation": map[string]any{"enabled": drafts}})
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	status, all := g.ask(t, "POST", "/v1/chat/completions", string(body))
	if status != 200 || json.Unmarshal([]byte(all), &c) != nil || len(c.Choices) != 1 {
		t.Fatalf("%s: %d: %s", body, status, all)
	}
	return c.Choices[0].Message.Content, c.Usage.Prompt
}

// TestRealCompletion continues a text with Gemma 3, a base model without a template, and what came with it once more: right, and the same
// without drafts. A conversation is refused.
func TestRealCompletion(t *testing.T) {
	mayBeSlow(t)
	t.Run("gemma3", continueGemma)
}

func continueGemma(t *testing.T) {
	g := upWeb(t, "", append([]string{"--target", testkit.RealModel(t, testkit.Gemma3), "--draft", "lookup"}, realRoom...)...)
	text := "Germany: Berlin. Italy: Rome. Spain: Madrid. France:"
	for range 2 {
		body := map[string]any{"prompt": text, "max_tokens": 24}
		c := g.complete(t, body)
		body["speculation"] = map[string]any{"enabled": false}
		if plain := g.complete(t, body); plain.Choices[0].Text != c.Choices[0].Text {
			t.Errorf("%q: %q with drafts, %q without", text, c.Choices[0].Text, plain.Choices[0].Text)
		}
		text += c.Choices[0].Text
	}
	if !strings.Contains(text, "France: Paris") {
		t.Errorf("the text is %q: want %q in it", text, "France: Paris")
	}
	if status, all := g.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}]}`); status != 400 {
		t.Errorf("a conversation with a model without a template: %d: %s: want 400", status, all)
	}
}
