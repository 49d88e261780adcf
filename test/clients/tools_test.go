package clients

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicopt "github.com/anthropics/anthropic-sdk-go/option"
	eino "github.com/cloudwego/eino-ext/components/model/openai"
	"github.com/cloudwego/eino/schema"
	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/ollama/ollama/api"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/tmc/langchaingo/llms"
	langchain "github.com/tmc/langchaingo/llms/openai"
)

const (
	question  = "Read the file hello.txt and say what it says."
	lastWords = "The file says forty-two."
)

// scripted runs tandem with the model that says the texts of drive/script.json: a call of the tool read_file, and then lastWords.
func scripted(t *testing.T) gateway {
	t.Helper()
	dir := t.TempDir()
	script, err := filepath.Abs("drive/script.json")
	if err != nil {
		t.Fatal(err)
	}
	write := exec.Command("go", "run", "-trimpath", "./test/scripted", "-script", script, "-out", dir)
	write.Dir = "../.."
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return start(t, "--target", filepath.Join(dir, "scripted.gguf"), "--chat-template", filepath.Join(dir, "scripted.jinja"),
		"--ctx", "8192")
}

// toolbox is a server of the Model Context Protocol in this process, with one tool, as a client of it sees it.
type toolbox struct {
	*mcpclient.Client
	tool  mcp.Tool
	calls int
}

func newToolbox(t *testing.T) *toolbox {
	t.Helper()
	b := new(toolbox)
	s := server.NewMCPServer("files", "1")
	s.AddTool(mcp.NewTool("read_file", mcp.WithDescription("Reads a file."),
		mcp.WithString("path", mcp.Required(), mcp.Description("the file"))),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			b.calls++
			if path, err := r.RequireString("path"); err != nil || path != "hello.txt" {
				t.Errorf("the tool is asked for %q, %v", path, err)
			}
			return mcp.NewToolResultText("The answer is forty-two."), nil
		})
	c, err := mcpclient.NewInProcessClient(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx := t.Context()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	hello := mcp.InitializeRequest{Params: mcp.InitializeParams{ProtocolVersion: mcp.LATEST_PROTOCOL_VERSION}}
	if _, err := c.Initialize(ctx, hello); err != nil {
		t.Fatal(err)
	}
	list, err := c.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil || len(list.Tools) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	b.Client, b.tool = c, list.Tools[0]
	return b
}

// schema returns the tool's schema as the Model Context Protocol gives it.
func (b *toolbox) schema(t *testing.T) (out map[string]any) {
	t.Helper()
	raw, err := json.Marshal(b.tool.InputSchema)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// call calls the tool over the protocol with the arguments that a model has written.
func (b *toolbox) call(t *testing.T, name, arguments string) string {
	t.Helper()
	var r mcp.CallToolRequest
	r.Params.Name = name
	var of map[string]any
	if err := json.Unmarshal([]byte(arguments), &of); err != nil {
		t.Fatalf("arguments %q: %v", arguments, err)
	}
	r.Params.Arguments = of
	result, err := b.CallTool(t.Context(), r)
	if err != nil || result.IsError || len(result.Content) != 1 {
		t.Fatalf("%s(%s): %+v, %v", name, arguments, result, err)
	}
	return result.Content[0].(mcp.TextContent).Text
}

// loop runs a conversation: turn asks the model once, calls the tool if the model wants it, and returns the text and whether it has called.
func (b *toolbox) loop(t *testing.T, name string, turn func() (text string, called bool)) {
	t.Helper()
	before := b.calls
	text, called := turn()
	if !called {
		t.Errorf("%s: no call in the first answer, %q", name, text)
		return
	}
	if text, called = turn(); called || !strings.Contains(text, lastWords) || b.calls != before+1 {
		t.Errorf("%s: %d calls of the tool, then %q, another call: %v", name, b.calls-before, text, called)
	}
}

// TestToolsOpenAI: the official client's conversations with a tool, by chat completions and by responses, whole and streamed.
func TestToolsOpenAI(t *testing.T) {
	g, b, ctx := scripted(t), newToolbox(t), t.Context()
	c := openai.NewClient(option.WithBaseURL(g.url+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0))
	for _, streamed := range []bool{false, true} {
		p := openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)},
			Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: b.tool.Name,
				Description: openai.String(b.tool.Description), Parameters: b.schema(t)})}}
		b.loop(t, "chat", func() (string, bool) {
			var all openai.ChatCompletionAccumulator
			answer, err := &all.ChatCompletion, error(nil)
			if streamed {
				s := c.Chat.Completions.NewStreaming(ctx, p)
				for s.Next() {
					all.AddChunk(s.Current())
				}
				err = s.Err()
			} else {
				answer, err = c.Chat.Completions.New(ctx, p)
			}
			if err != nil || len(answer.Choices) != 1 {
				t.Fatalf("%+v, %v", answer, err)
			}
			m := answer.Choices[0].Message
			p.Messages = append(p.Messages, m.ToParam())
			for _, x := range m.ToolCalls {
				p.Messages = append(p.Messages, openai.ToolMessage(b.call(t, x.Function.Name, x.Function.Arguments), x.ID))
			}
			return m.Content, len(m.ToolCalls) > 0
		})
	}
	for _, streamed := range []bool{false, true} {
		items := responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage(question, responses.EasyInputMessageRoleUser)}
		b.loop(t, "responses", func() (string, bool) {
			p := responses.ResponseNewParams{Model: "m", Store: openai.Bool(false),
				Input: responses.ResponseNewParamsInputUnion{OfInputItemList: items},
				Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction(b.tool.Name, b.schema(t), false)}}
			var answer *responses.Response
			var err error
			if streamed {
				s := c.Responses.NewStreaming(ctx, p)
				for s.Next() {
					if e := s.Current(); e.Type == "response.completed" {
						answer = &e.Response
					}
				}
				err = s.Err()
			} else {
				answer, err = c.Responses.New(ctx, p)
			}
			if err != nil || answer == nil {
				t.Fatal(answer, err)
			}
			called := false
			for _, x := range answer.Output {
				if x.Type == "function_call" {
					call := x.AsFunctionCall()
					result := responses.ResponseInputItemParamOfFunctionCallOutput(b.call(t, call.Name, call.Arguments))
					result.OfFunctionCallOutput.CallID = openai.String(call.CallID)
					items = append(items, responses.ResponseInputItemParamOfFunctionCall(call.Arguments, call.CallID, call.Name), result)
					called = true
				}
			}
			return answer.OutputText(), called
		})
	}
}

// TestToolsAnthropic: the official client's conversation with a tool, whole and streamed.
func TestToolsAnthropic(t *testing.T) {
	g, b, ctx := scripted(t), newToolbox(t), t.Context()
	c := anthropic.NewClient(anthropicopt.WithBaseURL(g.url), anthropicopt.WithAPIKey(key), anthropicopt.WithMaxRetries(0))
	for _, streamed := range []bool{false, true} {
		p := anthropic.MessageNewParams{Model: "m", MaxTokens: 500,
			Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(question))},
			Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: b.tool.Name,
				InputSchema: anthropic.ToolInputSchemaParam{Properties: b.schema(t)["properties"], Required: []string{"path"}}}}}}
		b.loop(t, "messages", func() (text string, called bool) {
			m, err := new(anthropic.Message), error(nil)
			if streamed {
				s := c.Messages.NewStreaming(ctx, p)
				for s.Next() && err == nil {
					err = m.Accumulate(s.Current())
				}
				if err == nil {
					err = s.Err()
				}
			} else {
				m, err = c.Messages.New(ctx, p)
			}
			if err != nil {
				t.Fatal(err)
			}
			p.Messages = append(p.Messages, m.ToParam())
			for _, x := range m.Content {
				switch x.Type {
				case "text":
					text += x.Text
				case "tool_use":
					called = true
					p.Messages = append(p.Messages, anthropic.NewUserMessage(anthropic.NewToolResultBlock(x.ID,
						b.call(t, x.Name, string(x.Input)), false)))
				}
			}
			return text, called
		})
	}
}

// TestToolsOllama: the conversation of Ollama's own client, whole and streamed.
func TestToolsOllama(t *testing.T) {
	g, b := scripted(t), newToolbox(t)
	base, err := url.Parse(g.url)
	if err != nil {
		t.Fatal(err)
	}
	c := api.NewClient(base, &http.Client{Transport: keyed{}})
	var tool api.Tool
	described, _ := json.Marshal(map[string]any{"type": "function",
		"function": map[string]any{"name": b.tool.Name, "description": b.tool.Description, "parameters": b.schema(t)}})
	if err := json.Unmarshal(described, &tool); err != nil {
		t.Fatal(err)
	}
	for _, streamed := range []bool{false, true} {
		talk := []api.Message{{Role: "user", Content: question}}
		b.loop(t, "chat", func() (string, bool) {
			m := api.Message{Role: "assistant"}
			err := c.Chat(t.Context(), &api.ChatRequest{Model: "scripted", Messages: talk, Tools: api.Tools{tool}, Stream: &streamed},
				func(r api.ChatResponse) error {
					m.Content += r.Message.Content
					m.ToolCalls = append(m.ToolCalls, r.Message.ToolCalls...)
					return nil
				})
			if err != nil {
				t.Fatal(err)
			}
			talk = append(talk, m)
			for _, x := range m.ToolCalls {
				talk = append(talk, api.Message{Role: "tool", ToolName: x.Function.Name,
					Content: b.call(t, x.Function.Name, x.Function.Arguments.String())})
			}
			return m.Content, len(m.ToolCalls) > 0
		})
	}
}

// TestToolsFrameworks: conversations with a tool of langchaingo and eino.
func TestToolsFrameworks(t *testing.T) {
	g, b, ctx := scripted(t), newToolbox(t), t.Context()
	m, err := langchain.New(langchain.WithBaseURL(g.url+"/v1"), langchain.WithToken(key), langchain.WithModel("m"))
	if err != nil {
		t.Fatal(err)
	}
	talk := []llms.MessageContent{llms.TextParts(llms.ChatMessageTypeHuman, question)}
	b.loop(t, "langchaingo", func() (string, bool) {
		answer, err := m.GenerateContent(ctx, talk, llms.WithTools([]llms.Tool{{Type: "function",
			Function: &llms.FunctionDefinition{Name: b.tool.Name, Description: b.tool.Description, Parameters: b.schema(t)}}}))
		if err != nil {
			t.Fatal(err)
		}
		choice := answer.Choices[0]
		for _, x := range choice.ToolCalls {
			talk = append(talk, llms.MessageContent{Role: llms.ChatMessageTypeAI, Parts: []llms.ContentPart{x}},
				llms.MessageContent{Role: llms.ChatMessageTypeTool, Parts: []llms.ContentPart{llms.ToolCallResponse{ToolCallID: x.ID,
					Name: x.FunctionCall.Name, Content: b.call(t, x.FunctionCall.Name, x.FunctionCall.Arguments)}}})
		}
		return choice.Content, len(choice.ToolCalls) > 0
	})
	e, err := eino.NewChatModel(ctx, &eino.ChatModelConfig{BaseURL: g.url + "/v1", APIKey: key, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	with, err := e.WithTools([]*schema.ToolInfo{{Name: b.tool.Name, Desc: b.tool.Description,
		ParamsOneOf: schema.NewParamsOneOfByParams(map[string]*schema.ParameterInfo{"path": {Type: schema.String, Required: true}})}})
	if err != nil {
		t.Fatal(err)
	}
	said := []*schema.Message{schema.UserMessage(question)}
	b.loop(t, "eino", func() (string, bool) {
		answer, err := with.Generate(ctx, said)
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, answer)
		for _, x := range answer.ToolCalls {
			said = append(said, schema.ToolMessage(b.call(t, x.Function.Name, x.Function.Arguments), x.ID))
		}
		return answer.Content, len(answer.ToolCalls) > 0
	})
}
