package calls

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/text/grammar"
)

const (
	weatherTool = `{"type":"object","properties":{"city":{"type":"string","maxLength":8},"days":{"type":"integer","minimum":1,"maximum":20},` +
		`"unit":{"enum":["c","f"]},"more":{"type":"boolean"}},"required":["city","unit"],"additionalProperties":false}`
	plainTool = `{"type":"object","properties":{},"additionalProperties":false}`
)

var demanded = Tools{{Name: "weather", Parameters: json.RawMessage(weatherTool), Strict: true}, {Name: "now",
	Parameters: json.RawMessage(plainTool),
	Strict:     true}}

// writtenForms are the forms of calls, each with the marks of its template and an output as its models write it: two calls, or one where
// the form has one. one is the call weather(city x, days 3, unit c) in each.
var writtenForms = []struct {
	name, template, output string
	calls                  int
}{
	{"hermes", "<tool_call>",
		"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}}\n</tool_call>\n" +
			"<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", 2},
	{"qwen3-coder", "<function= <parameter=",
		"<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n3\n</parameter>\n" +
			"<parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", 2},
	{"glm", "<arg_key>",
		"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n" +
			"<arg_key>unit</arg_key>\n<arg_value>c</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>", 2},
	{"glm4", "[gMASK]", "weather\n{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}", 1},
	{"functionary", ">>>all", "weather\n{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}>>>now\n{}", 2},
	{"pythonic", "[func_name1(", "[weather(city=\"x\", days=3, unit=\"c\"), now()]", 2},
	{"llama3", "<|python_tag|>", "{\"name\": \"weather\", \"parameters\": {\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}}", 1},
	{"granite", "<|tool_call|>", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}}, " +
		"{\"name\": \"now\", \"arguments\": {}}]", 2},
	{"mistral", "[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]weather[ARGS]{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}[TOOL_CALLS]now[ARGS]{}",
		2},
	{"mistral", "[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}}, " +
		"{\"name\": \"now\", \"arguments\": {}}]", 2},
	{"deepseek", "<｜tool▁call▁begin｜>```json", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n" +
		"{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function" +
		"<｜tool▁sep｜>now\n```json\n{}\n```" +
		"<｜tool▁call▁end｜><｜tool▁calls▁end｜>", 2},
	{"deepseek", "<｜tool▁call▁begin｜>",
		"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}" +
			"<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", 2},
	{"kimi-k2", "<|tool_call_argument_begin|>",
		"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0" +
			"<|tool_call_argument_begin|>" +
			"{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}<|tool_call_end|><|tool_call_begin|>functions.now:1" +
			"<|tool_call_argument_begin|>{}<|tool_call_end|>" +
			"<|tool_calls_section_end|>", 2},
	{"functiongemma", "<start_function_call>", "<start_function_call>call:weather{city:<escape>x<escape>,days:3,unit:<escape>c<escape>}" +
		"<end_function_call><start_function_call>call:now{}<end_function_call>", 2},
	{"gemma4", `<|tool_call> <tool_call|> <|"|>`, `<|tool_call>call:weather{city:<|"|>x<|"|>,days:3,unit:<|"|>c<|"|>}<tool_call|>` +
		`<|tool_call>call:now{}<tool_call|>`, 2},
	{"harmony", "<|channel|><|message|>",
		"<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary to=functions.weather " +
			"<|constrain|>json<|message|>{\"city\": \"x\", \"days\": 3, \"unit\": \"c\"}", 1},
}

// demand returns the grammar of a demand in the form of a template.
func demand(t *testing.T, template string, d Demand) *grammar.Grammar {
	t.Helper()
	d.Template, d.Mark = template, func(text string) string { return text }
	of, loose := Find(template).Allowed(d)
	if of == nil || len(loose) > 0 {
		t.Fatalf("%s: %v, loose %v", template, of, loose)
	}
	g, err := grammar.Compile(*of, grammar.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", template, err)
	}
	return g
}

// accepts reports whether a grammar allows a text, and that it ends.
func accepts(g *grammar.Grammar, text string) bool {
	s, ok := g.Start().Next([]byte(text))
	return ok && s.Done()
}

// TestForcedCalls: in every written form a demanded call is allowed as the models write it, and what is no call of an offered tool, with
// arguments that its schema allows, is not. The list of forms is that of the formats: none is left out.
func TestForcedCalls(t *testing.T) {
	named := map[string]bool{}
	for _, c := range writtenForms {
		f := Find(c.template)
		if named[f.Name] = true; f.Name != c.name {
			t.Fatalf("%q is the form %s: want %s", c.template, f.Name, c.name)
		}
		g := demand(t, c.template, Demand{Tools: demanded, Must: true})
		if !accepts(g, c.output) {
			t.Errorf("%s: %q is not allowed", c.name, c.output)
		}
		for _, p := range read(f, Options{Tools: demanded}, false, c.output) {
			if p.Kind == Text || p.Kind == Arguments && p.Call == 0 && p.Text != `{"city": "x", "days": 3, "unit": "c"}` {
				t.Errorf("%s: its reader finds %v", c.name, p)
			}
		}
		for old, new := range map[string]string{"weather": "whether", "\"c\"": "\"k\"", "city": "town", "days": "hours",
			"<escape>c<": "<escape>k<",
			`|>c<|`:      `|>k<|`, "\nc\n": "\nk\n", ">c<": ">k<", "3": "21"} {
			if wrong := strings.ReplaceAll(c.output, old, new); wrong != c.output && accepts(g, wrong) {
				t.Errorf("%s: %q is allowed", c.name, wrong)
			}
		}
		doubled := strings.Replace(c.output, "{", "{{", 1) // as Qwen2.5-Coder-1.5B writes by itself
		for _, wrong := range []string{"", "Hello.", "I look.\n" + c.output, doubled, strings.Replace(c.output, ", ", ","+
			strings.Repeat(" ", 2), 1) +
			strings.Repeat(" ", 9)} {
			if wrong != c.output && accepts(g, wrong) {
				t.Errorf("%s: %q is allowed", c.name, wrong)
			}
		}
		single := demand(t, c.template, Demand{Tools: demanded, Must: true, Single: true})
		if c.calls > 1 && accepts(single, c.output) {
			t.Errorf("%s: two calls are allowed where one is", c.name)
		}
	}
	for _, f := range []*Format{Hermes, qwenCoder, glm, llama, mistral, deepseek, kimi, glm4, functionary, pythonic, granite,
		functionGemma, gemma4,
		harmony} {
		if !named[f.Name] {
			t.Errorf("form %s is not tested", f.Name)
		}
	}
}

// walk writes a random text that a grammar allows, and ends it as soon as it may. Free texts are short: hints end them.
func walk(g *grammar.Grammar, r *rand.Rand, hints []string) (string, bool) {
	s, out := g.Start(), []byte(nil)
	for range 4000 {
		if s.Done() && r.IntN(3) == 0 || s.Ended() {
			return string(out), true
		}
		add := s.Forced()
		if len(add) == 0 && r.IntN(3) == 0 {
			add = []byte(hints[r.IntN(len(hints))])
		}
		if next, ok := s.Next(add); ok && len(add) > 0 {
			s, out = next, append(out, add...)
			continue
		}
		var all []byte
		for b := range 128 {
			if _, ok := s.Next([]byte{byte(b)}); ok && b >= ' ' {
				all = append(all, byte(b))
			}
		}
		if len(all) == 0 {
			return string(out), false
		}
		b := all[r.IntN(len(all))]
		s, _ = s.Next([]byte{b})
		out = append(out, b)
	}
	return string(out), s.Done()
}

// TestForcedCallsAreRead: whatever a demanded call's grammar allows, the form's reader finds calls of offered tools in it and no text, with
// arguments that have what the schema requires.
func TestForcedCallsAreRead(t *testing.T) {
	for _, c := range writtenForms {
		f, g := Find(c.template), demand(t, c.template, Demand{Tools: demanded, Must: true})
		r, found := rand.New(rand.NewPCG(7, 8)), 0
		for range 60 {
			text, ok := walk(g, r, []string{"</think>\n", "\n</parameter>\n", "</arg_value>\n", "<escape>", `<|"|>`, "<|end|>", "\"", "x"})
			if !ok {
				continue
			}
			for _, p := range read(f, Options{Tools: demanded}, false, text) {
				switch p.Kind {
				case Text:
					t.Fatalf("%s: %q has the text %q", c.name, text, p.Text)
				case Arguments:
					var got map[string]any
					if json.Unmarshal([]byte(p.Text), &got) != nil || len(got) > 0 && (got["city"] == nil || got["unit"] != "c" &&
						got["unit"] != "f") {
						t.Fatalf("%s: %q has the arguments %s", c.name, text, p.Text)
					}
					found++
				}
			}
		}
		if found < 15 {
			t.Errorf("%s: %d calls in all: the test shows little", c.name, found)
		}
	}
}

// TestThoughtsStayFree: a demanded call or answer comes behind the model's thoughts, which are free: those that the template has opened and
// those that the model opens, where the template shows them. The space behind them is bounded.
func TestThoughtsStayFree(t *testing.T) {
	answer := &grammar.Spec{Choices: []string{"yes", "no"}}
	for _, c := range []struct {
		template string
		thinking bool
		yes, no  []string
	}{
		{"<tool_call>", false, []string{"yes", "no"}, []string{"maybe", "<think>x</think>yes", " yes", "yes "}},
		{"<tool_call><think>", false, []string{"yes", "<think>\nyes or no?</think>\n\nyes", "<think></think>no"},
			[]string{"<think>yes", "<think>a</think>\n\n\n\n\n\nyes", "<think>a</think>b</think>yes", "a</think>yes"}},
		{"<tool_call><think>", true, []string{"a</think>yes", "</think>\n\nno"}, []string{"yes", "a</think>maybe"}},
		{"[TOOL_CALLS][THINK]", false, []string{"[THINK]a[/THINK]yes", "no"}, []string{"[THINK]yes"}},
		{">>>all", false, []string{"all\nyes"}, []string{"yes"}},
		{"<|channel|><|message|>", false, []string{"<|channel|>final<|message|>yes",
			"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>no"},
			[]string{"yes", "<|channel|>final<|message|>maybe", "<|channel|>analysis<|message|>yes"}},
	} {
		g := demand(t, c.template, Demand{Answer: answer, Thinking: c.thinking})
		for _, text := range c.yes {
			if !accepts(g, text) {
				t.Errorf("%s, thinking %v: %q is not allowed", c.template, c.thinking, text)
			}
		}
		for _, text := range c.no {
			if accepts(g, text) {
				t.Errorf("%s, thinking %v: %q is allowed", c.template, c.thinking, text)
			}
		}
	}
}

// TestAnswerOrCall: where the model may choose, an output is an answer of the demanded form or calls.
func TestAnswerOrCall(t *testing.T) {
	for _, c := range writtenForms {
		g := demand(t, c.template, Demand{Tools: demanded, Answer: &grammar.Spec{Choices: []string{"yes"}}})
		answer := map[string]string{"functionary": "all\nyes", "harmony": "<|channel|>final<|message|>yes"}[c.name]
		if answer == "" {
			answer = "yes"
		}
		if !accepts(g, c.output) || !accepts(g, answer) || accepts(g, "maybe") {
			t.Errorf("%s: a call %v, an answer %v, another %v", c.name, accepts(g, c.output), accepts(g, answer), accepts(g, "maybe"))
		}
	}
}

// TestStrictToolsBehindTheMarker: with a free choice a strict tool's arguments are held to its schema from the marker on, in the first and
// in later calls; text around stays free. Forms whose calls have no marker say that they cannot.
func TestStrictToolsBehindTheMarker(t *testing.T) {
	for _, c := range writtenForms {
		d := Demand{Tools: demanded, Template: c.template, Mark: func(text string) string { return text }}
		of, loose := Find(c.template).Allowed(d)
		if slices.Contains([]string{"glm4", "functionary", "pythonic", "llama3"}, c.name) {
			if of != nil || len(loose) != 2 || !strings.Contains(fmt.Sprint(loose), "without a marker") {
				t.Errorf("%s: %v, loose %v", c.name, of, loose)
			}
			continue
		}
		g := demand(t, c.template, d)
		free := "Hello."
		if c.name == "harmony" {
			free = "<|channel|>final<|message|>Hello."
		}
		wrong := strings.NewReplacer("city", "town").Replace(c.output)
		if !accepts(g, free) || !accepts(g, c.output) || accepts(g, wrong) {
			t.Errorf("%s: text %v, calls %v, wrong ones %v", c.name, accepts(g, free), accepts(g, c.output), accepts(g, wrong))
		}
		if c.name != "harmony" && (!accepts(g, "I look.\n"+c.output+"\nDone.") || accepts(g, "I look.\n"+c.output+"\nAgain "+wrong)) {
			t.Errorf("%s: calls between texts: %v, a wrong one behind: %v", c.name, accepts(g, "I look.\n"+c.output+"\nDone."),
				accepts(g, "I look.\n"+c.output+"\nAgain "+wrong))
		}
	}
}

// TestLooseTools: a tool whose schema cannot be compiled is named with the reason; it is still called in its form, with any object.
func TestLooseTools(t *testing.T) {
	tools := append(Tools{{Name: "odd", Parameters: json.RawMessage(`{"type":"object","not":{}}`)}}, demanded...)
	for _, template := range []string{"<tool_call>", "<arg_key>", "<|channel|><|message|>"} {
		of, loose := Find(template).Allowed(Demand{Tools: tools, Must: true, Template: template,
			Mark: func(text string) string { return text }})
		if of == nil || len(loose) != 1 || loose[0].Tool != "odd" || !strings.Contains(loose[0].Why, "not") {
			t.Errorf("%s: %v", template, loose)
		}
	}
	d := Demand{Tools: tools, Must: true, Template: "<tool_call>", Mark: func(text string) string { return text }}
	of, _ := Hermes.Allowed(d)
	if g, err := grammar.Compile(*of, grammar.Limits{}); err != nil || !accepts(g,
		"<tool_call>\n{\"name\": \"odd\", \"arguments\": {\"a\": 1}}\n</tool_call>") {
		t.Errorf("%v: any arguments are not allowed", err)
	}
	large := slices.Repeat(demanded, 1)
	for i := range 60 { // each compiles, all together do not
		large = append(large, Tool{Name: fmt.Sprintf("t%d", i), Parameters: json.RawMessage(`{"type":"object","description":"` +
			strings.Repeat("x", 8<<10) + `"}`)})
	}
	for template, loosened := range map[string]int{"<tool_call>": len(large), "<arg_key>": 0} { // which holds no descriptions
		of, loose := Find(template).Allowed(Demand{Tools: large, Must: true, Template: template, Mark: func(s string) string { return s }})
		if len(loose) != loosened || loosened > 0 && !strings.Contains(loose[0].Why, "all tools together") {
			t.Errorf("%s: %d loose tools of %d", template, len(loose), len(large))
		} else if _, err := grammar.Compile(*of, grammar.Limits{}); err != nil {
			t.Errorf("%s: %v", template, err)
		}
	}
	if of, loose := Hermes.Allowed(Demand{Tools: Tools{{Name: "f"}}}); of != nil || loose != nil {
		t.Errorf("nothing is demanded: %v, %v", of, loose)
	}
}
