package conversation

import (
	"encoding/json"
	"strings"
)

// CustomTool returns a tool that takes a text as a function of one string, input. format is OpenAI's, of chats or of the Responses API. A
// grammar in it becomes a text of the description, since nothing forces it yet.
func CustomTool(name, description string, format json.RawMessage) Tool {
	type grammar struct{ Syntax, Definition string }
	var f struct {
		Type string
		grammar
		Nested grammar `json:"grammar"` // as chats write it
	}
	if json.Unmarshal(format, &f) == nil && f.Type == "grammar" {
		if f.Nested.Definition != "" {
			f.grammar = f.Nested
		}
		if f.Definition != "" {
			description = strings.TrimSpace(description + "\n\nThe argument input is a text that follows this grammar (" + f.Syntax +
				"):\n" + f.Definition)
		}
	}
	return Tool{Type: "function", Function: Function{Name: name, Description: description,
		Parameters: json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}`)}}
}

// CustomArguments returns the arguments of a call whose tool takes a text.
func CustomArguments(input string) json.RawMessage {
	raw, _ := Marshal(map[string]string{"input": input})
	return raw
}

// CustomInput is the inverse of CustomArguments. Arguments without an input are the text as they are.
func CustomInput(arguments string) string {
	var a struct{ Input *string }
	if json.Unmarshal([]byte(arguments), &a) == nil && a.Input != nil {
		return *a.Input
	}
	return arguments
}
