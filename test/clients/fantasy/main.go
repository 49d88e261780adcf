// Program fantasy has conversations with a tool by the library of that name, which Crush is made of. TestFantasy runs it. The library needs
// another version of OpenAI's client than the tests of the folder above, so it is a module of its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"charm.land/fantasy"
	"charm.land/fantasy/providers/openaicompat"
)

// main asks the server at $BASE by both of OpenAI's interfaces, whole and streamed. The tool reads a file of the working folder. For each
// conversation it prints a line: the name, how often the tool ran, how many answers there were, and the last text.
func main() {
	log.SetFlags(0)
	ran := 0
	type path struct {
		Path string `json:"path" description:"the file"`
	}
	read := fantasy.NewAgentTool("read_file", "Reads a file.",
		func(_ context.Context, p path, _ fantasy.ToolCall) (fantasy.ToolResponse, error) {
			ran++
			text, err := os.ReadFile(p.Path)
			return fantasy.NewTextResponse(string(text)), err
		})
	ctx, question := context.Background(), os.Args[1]
	for name, more := range map[string][]openaicompat.Option{"chat": nil, "responses": {openaicompat.WithUseResponsesAPI()}} {
		provider, err := openaicompat.New(append(more, openaicompat.WithBaseURL(os.Getenv("BASE")+"/v1"),
			openaicompat.WithAPIKey(os.Getenv("KEY")))...)
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		model, err := provider.LanguageModel(ctx, "m")
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		agent := fantasy.NewAgent(model, fantasy.WithTools(read))
		whole, err := agent.Generate(ctx, fantasy.AgentCall{Prompt: question})
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		fmt.Printf("%s: %d, %d: %s\n", name, ran, len(whole.Steps), whole.Response.Content.Text())
		ran = 0
		text := "" // of the last step
		streamed, err := agent.Stream(ctx, fantasy.AgentStreamCall{Prompt: question,
			OnStepStart: func(int) error { text = ""; return nil },
			OnTextDelta: func(_, piece string) error { text += piece; return nil }})
		if err != nil {
			log.Fatalf("%s streamed: %v", name, err)
		}
		fmt.Printf("%s streamed: %d, %d: %s\n", name, ran, len(streamed.Steps), text)
		ran = 0
	}
}
