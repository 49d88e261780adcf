package calls

import (
	"slices"
	"strings"
)

// syntax is how a call is written behind its opening marker.
type syntax uint8

const (
	object  syntax = iota // {"name": NAME, "arguments": {…}}, or an array of these
	named                 // NAME marker {…}
	xml                   // NAME> <parameter=KEY> value </parameter> … </function>
	pairs                 // NAME <arg_key>KEY</arg_key> <arg_value>value</arg_value> …
	braces                // call:NAME{key:value, …}, strings between quotes of the format
	python                // [name(key=value, …), …]
	channel               // gpt-oss: a header before each message says whom it is for
)

// opener begins a call or several.
type opener struct {
	mark  string
	close string // ends it, "" for the end of the output
	syntax
	soft bool // also written for other purposes: a call only if it names a tool of the request
}

// within returns the opener of a call that is a tool's, written behind another mark.
func (o opener) within(mark string) opener {
	o.mark, o.soft = mark+o.mark, true
	return o
}

// Format is how the models of a family write thoughts and calls. Read only.
type Format struct {
	Name string
	// Markers says that markers of calls or thoughts may be control tokens, which an output must then show by their written form.
	Markers bool
	// ShortIDs says that the template refuses calls whose id is not of nine letters and digits.
	ShortIDs bool

	think   [2]string // around thoughts; empty for none
	openers []opener
	dropped []string // markers around several calls, and between them
	split   string   // of syntax named: between name and arguments
	quote   string   // of syntax braces: around strings
	bare    bool     // an answer that begins with an object which names a tool is a call
	python  bool     // an answer that begins with [name( is calls
	lead    bool     // an answer that begins with the line of a tool's name and an object is a call
	all     string   // begins an answer that is a text
	channel bool

	controls bool // markers of thoughts are control tokens
}

var thinkTags = [2]string{"<think>", "</think>"}

// The formats, by what the families' published templates show. Models of all families also write the form that most of their training
// data has, an object in <tool_call>, so the formats of one object take it too.
var (
	hermes = opener{mark: "<tool_call>", close: "</tool_call>"}
	tagged = opener{mark: "<function=", close: "</function>", syntax: xml}

	// Hermes is the form of Hermes 2 Pro, Qwen 2.5 and 3, and of models whose template has none of its own. They write the tags of
	// Qwen3-Coder where a client's prompt does, as Qwen Code's.
	Hermes = &Format{Name: "hermes", think: thinkTags, bare: true, openers: []opener{hermes,
		{mark: "<function_call>", close: "</function_call>", soft: true}, {mark: "<tools>", close: "</tools>", soft: true},
		{mark: "<TOOLCALL>", close: "</TOOLCALL>"}, {mark: "<tool_calls>", close: "</tool_calls>", soft: true},
		{mark: "functools", soft: true}, tagged.within("")}}

	qwenCoder = &Format{Name: "qwen3-coder", bare: true, think: thinkTags, openers: []opener{tagged, hermes}}

	glm = &Format{Name: "glm", think: thinkTags,
		openers: []opener{{mark: "<tool_call>", close: "</tool_call>", syntax: pairs}}}

	llama = &Format{Name: "llama3", Markers: true, bare: true, python: true, think: thinkTags, openers: []opener{
		{mark: "<|python_tag|>", soft: true}, {mark: "<|python_start|>", close: "<|python_end|>", syntax: python, soft: true},
		hermes, tagged.within("")},
		dropped: []string{"<|eom_id|>"}}

	mistral = &Format{Name: "mistral", Markers: true, controls: true, ShortIDs: true, think: [2]string{"[THINK]", "[/THINK]"},
		split: "[ARGS]", openers: []opener{{mark: "[TOOL_CALLS]", syntax: named}}}

	deepseek = &Format{Name: "deepseek", Markers: true, think: thinkTags, split: "<｜tool▁sep｜>",
		openers: []opener{{mark: "<｜tool▁call▁begin｜>", close: "<｜tool▁call▁end｜>", syntax: named}},
		dropped: []string{"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}}

	kimi = &Format{Name: "kimi-k2", Markers: true, think: thinkTags, split: "<|tool_call_argument_begin|>",
		openers: []opener{{mark: "<|tool_call_begin|>", close: "<|tool_call_end|>", syntax: named}},
		dropped: []string{"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}}

	glm4 = &Format{Name: "glm4", think: thinkTags, bare: true, lead: true, openers: []opener{hermes}}

	functionary = &Format{Name: "functionary", lead: true, all: "all\n", openers: []opener{{mark: ">>>", syntax: named, soft: true}}}

	pythonic = &Format{Name: "pythonic", think: thinkTags, bare: true, python: true, openers: []opener{hermes}}

	granite = &Format{Name: "granite", Markers: true, think: thinkTags, bare: true,
		openers: []opener{{mark: "<|tool_call|>", close: "<|/tool_call|>"}, hermes}}

	functionGemma = &Format{Name: "functiongemma", Markers: true, quote: "<escape>", openers: []opener{
		{mark: "<start_function_call>", close: "<end_function_call>", syntax: braces}}, dropped: []string{"<start_function_response>"}}

	gemma4 = &Format{Name: "gemma4", Markers: true, controls: true, quote: `<|"|>`, think: [2]string{"<|channel>thought\n", "<channel|>"},
		openers: []opener{{mark: "<|tool_call>", close: "<tool_call|>", syntax: braces}}, dropped: []string{"<|tool_response>"}}

	harmony = &Format{Name: "harmony", Markers: true, controls: true, channel: true}
)

// shown are the forms of one object that a template shows, whatever the other forms of its family.
func shown(template string) (out []opener) {
	for _, o := range Hermes.openers {
		if o.syntax == object && strings.HasPrefix(o.mark, "<") && strings.Contains(template, o.mark) {
			out = append(out, o)
		}
	}
	return out
}

// Find returns the format that a chat template shows. A template without tools, or with an unknown form, has Hermes'.
func Find(template string) *Format {
	for _, f := range []struct {
		marks []string // all of them
		*Format
	}{
		{[]string{"<|channel|>", "<|message|>"}, harmony},
		{[]string{"<｜tool▁call▁begin｜>"}, deepseek},
		{[]string{"<|tool_call_argument_begin|>"}, kimi},
		{[]string{"[TOOL_CALLS]"}, mistral},
		{[]string{"<start_function_call>"}, functionGemma},
		{[]string{"<|tool_call>", "<tool_call|>"}, gemma4},
		{[]string{"<function=", "<parameter="}, qwenCoder},
		{[]string{"<arg_key>"}, glm},
		{[]string{"[gMASK]"}, glm4},
		{[]string{">>>all"}, functionary},
		{[]string{"[func_name1("}, pythonic},
		{[]string{"<|tool_call|>"}, granite},
		{[]string{"<tool_call>"}, Hermes},
		{[]string{"<|python_tag|>"}, llama},
		{[]string{"<|start_header_id|>"}, llama},
		{[]string{"<|header_start|>"}, llama},
	} {
		found := true
		for _, mark := range f.marks {
			found = found && strings.Contains(template, mark)
		}
		if found {
			return f.with(shown(template))
		}
	}
	return Hermes
}

// With returns f with the forms of another format besides its own, for models whose prompt shows both. gpt-oss' channels stay alone.
func (f *Format) With(other *Format) *Format {
	if f == other || f.channel {
		return f
	}
	both := *f.with(other.openers)
	both.bare, both.python = f.bare || other.bare, f.python || other.python
	return &both
}

// with returns f with further openers, f itself if it has all of them.
func (f *Format) with(further []opener) *Format {
	further = slices.DeleteFunc(slices.Clone(further), func(o opener) bool {
		return slices.Contains(f.dropped, o.mark) || slices.ContainsFunc(f.openers, func(own opener) bool { return own.mark == o.mark })
	})
	if len(further) == 0 {
		return f
	}
	both := *f
	both.openers = slices.Concat(f.openers, further)
	return &both
}

// Reads reports whether outputs need a Reader: with tools, or where the template shows thoughts.
func (f *Format) Reads(template string, tools bool) bool {
	return tools || f.channel || f.all != "" || f.think[0] != "" && strings.Contains(template, strings.TrimSpace(f.think[0]))
}

// Written reports whether a Reader must be given control tokens by their written form.
func (f *Format) Written(tools bool) bool { return f.Markers && (tools || f.controls) }

// Within reports where in an answer an output begins that goes on with it: within its thought, or behind that, within its text.
func (f *Format) Within(answer string) (thought, text bool) {
	answer, open := strings.TrimLeft(answer, space), strings.TrimSpace(f.think[0])
	if behind, ok := strings.CutPrefix(answer, open); ok && open != "" {
		_, answer, ok = strings.Cut(behind, f.think[1])
		thought = !ok
	}
	return thought, strings.Trim(answer, space) != ""
}

// Thinks reports whether the output behind a prompt begins within a thought: the template has opened it.
func (f *Format) Thinks(prompt string) bool {
	open := strings.TrimSpace(f.think[0])
	return open != "" && strings.HasSuffix(strings.TrimRight(prompt, " \n"), open)
}
