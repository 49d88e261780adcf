package chat

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/text/token"
)

// TestRealTemplates compares conversations rendered by the templates of real models with what Jinja2 makes of them.
func TestRealTemplates(t *testing.T) {
	for name, file := range testkit.RealGoldens {
		t.Run(name, func(t *testing.T) {
			path := testkit.RealModel(t, file)
			var want struct {
				Chats []struct {
					Messages []Message
					Tools    json.RawMessage
					Prompt   bool `json:"add_generation_prompt"`
					Text     string
				}
			}
			testkit.RealGolden(t, "../..", name, &want)
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			vocab, err := token.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			template, err := FromGGUF(f, vocab)
			if err != nil {
				t.Fatal(err)
			}
			if template == nil {
				if len(want.Chats) > 0 || file != testkit.Gemma3 {
					t.Fatalf("%s has no template", file)
				}
				return // a base model
			}
			if len(want.Chats) < 6 {
				t.Fatalf("%d conversations: want 6 or more", len(want.Chats))
			}
			for i, c := range want.Chats {
				tools := c.Tools
				if string(tools) == "null" {
					tools = nil
				}
				got, err := template.Render(context.Background(), c.Messages, Options{AddGenerationPrompt: c.Prompt, Tools: tools})
				if err != nil {
					t.Fatalf("conversation %d: %v", i, err)
				}
				if got.Text != c.Text {
					t.Errorf("conversation %d:\n%q\nJinja2 renders\n%q", i, got.Text, c.Text)
				}
			}
		})
	}
}
