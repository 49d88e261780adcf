package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// HugeBody is a body of a request that holds much of one thing.
type HugeBody struct {
	Path string // of the route
	Name string // what it holds, and where
	Make func(size int) string
}

// apis are bodies of all routes that read one, with every list and text that they know; § stands for a number that differs.
var apis = []struct{ path, body string }{
	{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a§"}],"name":"n§"},{"role":"assistant",` +
		`"content":"b§","reasoning_content":"t§","tool_calls":[{"id":"c§","type":"function","function":{"name":"f§","arguments":"{}"}},` +
		`{"id":"k§","type":"custom","custom":{"name":"g§","input":"x"}}]},` +
		`{"role":"tool","tool_call_id":"c§","content":"r§"}],"tools":[{"type":"function","function":{"name":"f§","description":"d",` +
		`"parameters":{"type":"object","properties":{"a":{"enum":["x"]}},"required":["a"]}}},{"type":"custom","custom":{"name":"g§",` +
		`"format":{"type":"grammar","grammar":{"definition":"x"}}}}],"tool_choice":{"type":"allowed_tools",` +
		`"mode":"auto","tools":[{"type":"function","name":"f§"}]},"stop":["s§"],"logit_bias":{"1":1},"chat_template_kwargs":{"k":["v"]},` +
		`"metadata":{"m":"n"},"response_format":{"type":"text"},"modalities":["text"],"speculation":{"drafters":["d§"]},"max_tokens":1}`},
	{"/v1/completions", `{"prompt":["a§"],"suffix":"z","stop":["s§"],"logit_bias":{"1":1},"max_tokens":1,"metadata":{"m":["n"]}}`},
	{"/v1/completions", `{"prompt":[[1]],"max_tokens":1}`},
	{"/v1/embeddings", `{"input":["a§"],"metadata":{"m":["n"]}}`},
	{"/v1/embeddings", `{"input":[[1]]}`},
	{"/v1/responses", `{"instructions":"i","input":[{"role":"user","content":[{"type":"input_text","text":"a§"}]},{"role":"developer","content":` +
		`"d§"},{"type":"reasoning","summary":[{"type":"summary_text","text":"t§"}],"content":[{"type":"reasoning_text","text":"u§"}]},` +
		`{"type":"function_call","call_id":"c§","name":"f§","namespace":"s","arguments":"{}"},{"type":"function_call_output","call_id":"c§",` +
		`"output":[{"type":"input_text","text":"r§"}]},{"type":"custom_tool_call","call_id":"k§","name":"g§","input":"x"},{"role":"assistant",` +
		`"content":[{"type":"output_text","text":"b§"}]}],"tools":[{"type":"function","name":"f§","parameters":{"type":"object","enum":["x"]}},` +
		`{"type":"namespace","name":"s","tools":[{"type":"function","name":"f§"}]},{"type":"custom","name":"g§","format":{"definition":"x"}}],` +
		`"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f§","namespace":"s"}]},"include":["x§"],` +
		`"text":{"format":{"type":"json_schema","schema":{"a":["b"]}}},"metadata":{"m":"n"},"chat_template_kwargs":{"k":["v"]},` +
		`"stop":["s§"],"max_output_tokens":1}`},
	{"/v1/messages", `{"max_tokens":1,"system":[{"type":"text","text":"s§"}],"messages":[{"role":"user","content":[{"type":"text","text":"a§"},` +
		`{"type":"tool_result","tool_use_id":"c§","content":[{"type":"text","text":"r§"}]},{"type":"document","title":"t","source":` +
		`{"type":"text","data":"d§"}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"t§"},{"type":"tool_use","id":"c§",` +
		`"name":"f§","input":{"a":["b"]}},{"type":"text","text":"b§"}]},{"role":"system","content":"y§"}],"tools":[{"name":"f§",` +
		`"description":"d","input_schema":{"type":"object","properties":{"a":{"enum":["x"]}}}}],"tool_choice":{"type":"tool","name":"f"},` +
		`"stop_sequences":["s§"],"metadata":{"m":["n"]},"output_config":{"format":{"type":"json_schema","schema":{"a":["b"]}}}}`},
	{"/v1/messages/count_tokens", `{"messages":[{"role":"user","content":[{"type":"text","text":"a§"}]}]}`},
	{"/api/chat", `{"messages":[{"role":"user","content":"a§"},{"role":"assistant","content":"","thinking":"t§","tool_calls":[{"function":` +
		`{"name":"f§","arguments":{"a":["b"]}}}]},{"role":"tool","tool_name":"f§","content":"r§"},{"role":"user","content":"x","images":[]}],` +
		`"tools":[{"type":"function","function":{"name":"f§","parameters":{"a":["b"]}}}],"options":{"stop":["s§"],"num_predict":1},` +
		`"format":{"a":["b"]},"stream":false}`},
	{"/api/generate", `{"prompt":"p","system":"s","context":[1],"options":{"stop":["s§"],"num_predict":1},"format":{"a":["b"]},"images":[],` +
		`"stream":false}`},
	{"/api/embed", `{"input":["a§"],"options":{"x":1}}`},
	{"/api/embeddings", `{"prompt":"a"}`},
	{"/completion", `{"prompt":["a§",1],"stop":["s§"],"logit_bias":[["x§",1]],"response_fields":["a§"],"samplers":["b"],"n_predict":1}`},
	{"/completion", `{"prompt":[[1,"a"],{"prompt_string":"b§"}],"logit_bias":{"x":1},"n_predict":1}`},
	{"/infill", `{"input_prefix":"a","input_suffix":"b","prompt":"c","input_extra":[{"filename":"f§","text":"t§"}],"n_predict":1}`},
	{"/tokenize", `{"content":"a","with_pieces":true}`},
	{"/detokenize", `{"tokens":[1]}`},
	{"/apply-template", `{"messages":[{"role":"user","content":[{"type":"text","text":"a§"}]}],"chat_template_kwargs":{"k":["v"]}}`},
}

// smallest are the elements that a list is filled with, beside its own.
var smallest = []string{`{}`, `[]`, `0`, `""`, `null`, `[0]`, `{"type":"text"}`, strings.Repeat("[", 200) + strings.Repeat("]", 200)}

// written are the pieces that a text is made of.
var written = []string{"a", " ", `\n`, "word ", `\u0041`, `\u00e9`, `\ud83d\ude00`, "é", "1", `<|im_end|>`, `\"`}

// HugeBodies returns a body for each list, text and object of each API: the list full of the smallest elements and of its own, the text
// long, the object with many fields, and for each pair of lists both full, so that what is looked up in one by the other takes longest.
func HugeBodies() iter.Seq[HugeBody] {
	return func(yield func(HugeBody) bool) {
		for _, api := range apis {
			root := parse(api.body)
			var lists []*node
			for at, n := range root.all("") {
				for _, f := range n.fills() {
					one := map[*node]filler{n: f.fill}
					if !yield(HugeBody{api.path, at + ": " + f.name, func(size int) string { return root.with(one, size) }}) {
						return
					}
				}
				if n.kind == '[' && len(n.inner) > 0 {
					for _, other := range lists {
						both := map[*node]filler{n: own(n, true), other: own(other, false)}
						if !other.holds(n) && !yield(HugeBody{api.path, at + " and a list before", func(size int) string {
							return root.with(both, size/2)
						}}) {
							return
						}
					}
					lists = append(lists, n)
				}
			}
		}
	}
}

// node is a value of a body.
type node struct {
	kind  byte   // '{', '[', '"', or another byte for what has no parts
	raw   string // as written, of what has no parts
	names []string
	inner []*node
}

// filler writes so many bytes of a value.
type filler func(to *strings.Builder, size int)

func parse(raw string) *node {
	n := &node{kind: raw[0], raw: raw}
	d := json.NewDecoder(strings.NewReader(raw))
	if n.kind != '{' && n.kind != '[' {
		return n
	}
	_, _ = d.Token()
	for d.More() {
		if n.kind == '{' {
			name, _ := d.Token()
			n.names = append(n.names, name.(string))
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			panic(err)
		}
		n.inner = append(n.inner, parse(string(bytes.TrimSpace(value))))
	}
	return n
}

// all returns a value and those in it with their places.
func (n *node) all(at string) iter.Seq2[string, *node] {
	return func(yield func(string, *node) bool) {
		if !yield(at, n) {
			return
		}
		for i, x := range n.inner {
			name := strconv.Itoa(i)
			if n.names != nil {
				name = n.names[i]
			}
			for at, x := range x.all(at + "/" + name) {
				if !yield(at, x) {
					return
				}
			}
		}
	}
}

func (n *node) holds(other *node) bool {
	return n == other || slices.ContainsFunc(n.inner, func(x *node) bool { return x.holds(other) })
}

// way is one to fill a value.
type way struct {
	name string
	fill filler
}

// fills returns the ways to fill a value.
func (n *node) fills() (out []way) {
	switch n.kind {
	case '[':
		for _, e := range smallest {
			out = append(out, way{fmt.Sprintf("full of %.20s", e), repeated("[", []string{e}, ",", "]", false)})
		}
		if len(n.inner) > 0 {
			out = append(out, way{"full of its own", own(n, false)})
		}
	case '{':
		for _, v := range []string{"0", "{}", `""`, "[0]"} {
			out = append(out, way{"many fields of " + v, repeated(n.body()+`,`, []string{`"k§":` + v}, ",", "}", false)})
		}
		out = append(out, way{"one field again and again", repeated(n.body()+`,`, []string{`"k":0`}, ",", "}", false)})
	case '"':
		for _, piece := range written {
			out = append(out, way{"a text of " + piece, repeated(`"`, []string{piece}, "", `"`, false)})
		}
	default:
		out = append(out, way{"a long number", repeated("1", []string{"0"}, "", "", false)})
	}
	return out
}

// own fills a list with its own elements; down: their numbers go down.
func own(n *node, down bool) filler {
	all := make([]string, len(n.inner))
	for i, x := range n.inner {
		all[i] = x.raw
	}
	return repeated("[", all, ",", "]", down)
}

// body returns an object without its end.
func (n *node) body() string {
	if len(n.inner) == 0 {
		return `{"x":0`
	}
	return strings.TrimSuffix(n.raw, "}")
}

func repeated(head string, each []string, between, tail string, down bool) filler {
	return func(to *strings.Builder, size int) {
		to.WriteString(head)
		end := to.Len() + size - len(head) - len(tail)
		if one := each[0]; len(each) == 1 && !strings.Contains(one, "§") {
			to.WriteString(one)
			to.WriteString(strings.Repeat(between+one, max(0, (end-to.Len())/len(between+one))))
			to.WriteString(tail)
			return
		}
		for i := 0; ; i++ {
			next := each[i%len(each)]
			if strings.Contains(next, "§") {
				number := i / len(each)
				if down {
					number = 1<<20 - number
				}
				next = strings.ReplaceAll(next, "§", strconv.Itoa(number))
			}
			if i > 0 && to.Len()+len(between)+len(next) > end {
				break
			}
			if i > 0 {
				to.WriteString(between)
			}
			to.WriteString(next)
		}
		to.WriteString(tail)
	}
}

// with writes a value in which some are filled with so many bytes each.
func (n *node) with(fills map[*node]filler, size int) string {
	var b strings.Builder
	b.Grow(size + len(n.raw))
	n.write(&b, fills, size-len(n.raw))
	return strings.ReplaceAll(b.String(), "§", "0")
}

func (n *node) write(b *strings.Builder, fills map[*node]filler, size int) {
	if fill := fills[n]; fill != nil {
		fill(b, size)
		return
	}
	if n.kind != '{' && n.kind != '[' {
		b.WriteString(n.raw)
		return
	}
	b.WriteByte(n.kind)
	for i, x := range n.inner {
		if i > 0 {
			b.WriteByte(',')
		}
		if n.names != nil {
			b.WriteString(strconv.Quote(n.names[i]) + ":")
		}
		x.write(b, fills, size)
	}
	b.WriteByte(n.kind + 2) // ']' and '}' come two after '[' and '{'
}
