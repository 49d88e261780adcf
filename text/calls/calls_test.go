package calls

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

const offered = `[{"type": "function", "function": {"name": "read_file", "description": "Reads a file", "parameters": {"type": "object",
	"properties": {"path": {"type": "string"}, "lines": {"type": "integer"}, "all": {"type": ["boolean", "null"]},
	"kind": {"enum": ["a", "b"]}}}}},
	{"type": "function", "function": {"name": "list", "parameters": {}}}, {"name": "flat"}, {"type": "web_search"}]`

// show writes pieces as one line each: the kind, and the text.
func show(all []Piece) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "%s%d %q\n", [...]string{"text", "thought", "call", "arguments"}[p.Kind], p.Call, p.Text)
	}
	return b.String()
}

// merge joins neighbours of the same kind.
func merge(all []Piece) (out []Piece) {
	for _, p := range all {
		if n := len(out); n > 0 && p.Kind != Begin && out[n-1].Kind == p.Kind && out[n-1].Call == p.Call {
			out[n-1].Text += p.Text
			continue
		}
		out = append(out, p)
	}
	return out
}

// read returns what a reader makes of an output that comes in these parts.
func read(f *Format, o Options, cut bool, parts ...string) []Piece {
	r := f.Reader(o)
	var all []Piece
	for _, p := range parts {
		all = append(all, r.Read(p)...)
	}
	return merge(append(all, r.End(cut)...))
}

// output is what a model of a family writes, by its published template, and what becomes of it.
type output struct {
	name, template, output string
	thinking, single       bool
	cut, text              bool
	want                   string
}

// outputs reads testdata/outputs.txt: blocks with a name, the marks of a template, options, an output, and a line for each piece.
func outputs(t testing.TB) (all []output) {
	t.Helper()
	raw, err := os.ReadFile("testdata/outputs.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(strings.TrimPrefix(string(raw), "== "), "\n== ") {
		name, rest, _ := strings.Cut(block, "\n")
		x := output{name: name}
		for _, line := range strings.Split(strings.TrimSpace(rest), "\n") {
			key, value, _ := strings.Cut(line, ": ")
			switch key {
			case "template":
				x.template = value
			case "options":
				x.thinking, x.single = strings.Contains(value, "thinking"), strings.Contains(value, "single")
				x.cut, x.text = strings.Contains(value, "cut"), strings.Contains(value, "text")
			case "output":
				if x.output, err = strconv.Unquote(value); err != nil {
					t.Fatalf("%s: %s: %v", name, value, err)
				}
			default:
				x.want += line + "\n"
			}
		}
		all = append(all, x)
	}
	return all
}

func TestOutputs(t *testing.T) {
	for _, x := range outputs(t) {
		t.Run(x.name, func(t *testing.T) {
			f, o := Find(x.template), Options{Tools: Parse(json.RawMessage(offered)), Thinking: x.thinking, Text: x.text, Single: x.single}
			if got := show(read(f, o, x.cut, x.output)); got != x.want {
				t.Fatalf("%s: %q gives\n%swant\n%s", f.Name, x.output, got, x.want)
			}
			bytes := make([]string, len(x.output))
			for i := range x.output {
				if got := show(read(f, o, x.cut, x.output[:i], x.output[i:])); got != x.want {
					t.Fatalf("cut at %d, before %q, it gives\n%swant\n%s", i, x.output[i:], got, x.want)
				}
			}
			for i := range bytes {
				bytes[i] = x.output[i : i+1]
			}
			if got := show(read(f, o, x.cut, bytes...)); got != x.want {
				t.Fatalf("byte by byte it gives\n%swant\n%s", got, x.want)
			}
		})
	}
}

// TestWithoutTools: calls are not looked for where no tool is offered, thoughts are.
func TestWithoutTools(t *testing.T) {
	const call = "<tool_call>{\"name\": \"list\", \"arguments\": {}}</tool_call>"
	want := fmt.Sprintf("thought0 \"x\"\ntext0 %q\n", call)
	if got := show(read(Hermes, Options{}, false, "<think>x</think>"+call)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestEndlessHeader: a header of gpt-oss that is longer than any is text.
func TestEndlessHeader(t *testing.T) {
	long := strings.Repeat("x", 2*maxName)
	if got, want := show(read(harmony, Options{}, false, "<|channel|>"+long, long)), fmt.Sprintf("text0 %q\n", long+long); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// FuzzReader: whatever comes, cut anywhere, the same is returned; arguments are objects; nothing is lost of an output without calls.
func FuzzReader(f *testing.F) {
	for _, x := range outputs(f) {
		for i := range formats {
			f.Add(x.output, uint8(i), uint64(len(x.output)), x.thinking, x.cut)
		}
	}
	offered, typed := Parse(json.RawMessage(offered)), Parse(json.RawMessage(typed))
	f.Fuzz(func(t *testing.T, output string, format uint8, cuts uint64, thinking, cutOff bool) {
		if len(output) > 1<<12 {
			return
		}
		of := formats[int(format)%len(formats)]
		o := Options{Tools: offered, Thinking: thinking && of.think[0] != ""}
		if cuts%2 == 0 {
			o.Tools = typed
		}
		if wrong := check(of, o, output, cutOff, rand.New(rand.NewPCG(cuts, 0))); wrong != "" {
			t.Fatalf("%s: %q: %s", of.Name, output, wrong)
		}
	})
}

// TestWithin: a continued answer goes on in its thought, or in its text.
func TestWithin(t *testing.T) {
	for answer, want := range map[string][2]bool{"": {}, " \n<think>Hm": {true, false}, "<think>": {true, false}, "<think>Hm</think>\n": {},
		"<think>Hm</think> So": {false, true}, "Write <think>": {false, true}, "So": {false, true}} {
		if thought, text := Hermes.Within(answer); want != [2]bool{thought, text} {
			t.Errorf("%q: thought %v, text %v, want %v", answer, thought, text, want)
		}
	}
	if thought, text := harmony.Within("So"); thought || !text {
		t.Errorf("gpt-oss: thought %v, text %v", thought, text)
	}
}

// TestAlike: where two tools differ in their capitals alone, neither stands for a third way to write them.
func TestAlike(t *testing.T) {
	both := Parse(json.RawMessage(`[{"name": "read"}, {"name": "Read"}]`))
	for name, want := range map[string]string{"read": "read", "Read": "Read", "READ": ""} {
		got := ""
		if tool := both.find(name); tool != nil {
			got = tool.Name
		}
		if got != want {
			t.Errorf("%q finds %q, want %q", name, got, want)
		}
	}
}
