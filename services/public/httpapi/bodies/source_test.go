package bodies

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// twin judges a body as the grammar does, in the slow way.
func twin(body []byte) bool {
	if !utf8.Valid(body) || !json.Valid(body) {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	// Go writes U+FFFD for half a character; one that was meant stays one
	var v any
	marked := bytes.ReplaceAll(bytes.ReplaceAll(body, []byte("\uFFFD"), []byte("x")), []byte(`\\`), []byte("xx"))
	for _, own := range []string{`\ufffd`, `\uFFFD`, `\ufFfd`} {
		marked = bytes.ReplaceAll(marked, []byte(own), []byte("x"))
	}
	d := json.NewDecoder(bytes.NewReader(marked))
	d.UseNumber() // one too large for a float64 is a number
	if !json.Valid(marked) || d.Decode(&v) != nil {
		return false
	}
	again, _ := json.Marshal(v)
	return once(body) && !bytes.Contains(again, []byte("\uFFFD")) && !bytes.Contains(again, []byte(`\ufffd`))
}

// once reports whether no object of a body that is JSON names a field twice.
func once(body []byte) bool {
	type level struct {
		names map[string]bool // nil: an array
		value bool            // a field's value comes next
	}
	var open []level
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	for {
		t, err := d.Token()
		if err != nil {
			return true
		}
		if last := len(open) - 1; last >= 0 && open[last].names != nil {
			if name, ok := t.(string); ok && !open[last].value {
				if open[last].names[name] {
					return false
				}
				open[last].names[name], open[last].value = true, true
				continue
			}
			open[last].value = false
		}
		switch t {
		case json.Delim('{'):
			open = append(open, level{names: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
	}
}

// FuzzSource compares what the source makes of bodies with encoding/json, in pieces of all sizes.
func FuzzSource(f *testing.F) {
	for _, s := range append(seeds, `{"a":"\ud83d\ude00\\\"\/\b\f\n\r\té","b":[1,-0.5e+3,true,false,null,[],{}],"":{"c":"\u00e9"}}`,
		`{"a":01}`, `{"a":1.}`, `{"a":-}`,
		`{"a":[{"b":1,"b\u00e9":2},{"b":1,"\u0062":2}]}`, `{"a":{"x":1},"b":{"x":1,"\n":{}},"c":[[{"x":1}]],"\ud83d\ude00":1,"😀":2}`, `{"a":1e}`, `{"a":tru}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a" 1}`, `{"a":1 "b":2}`, `[1 2]`, `{"a":1}}`, `{"a":"\ud800\n"}`,
		"{\"a\":\"\xed\xa0\x80\"}", `{"a":"\ude00"}`,
		strings.Repeat(`{"a":`, 63)+`{}`+strings.Repeat(`}`, 63), strings.Repeat(`[`, 65), strings.Repeat("6", 400)) {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		s := newSource(pieces{bytes.NewReader(body), int(size)%40 + 1}, Limits{Text: 1 << 20, Tokens: 64})
		object := s.kind() == "an object"
		var got, want map[string]string
		var err error
		if object {
			got = map[string]string{}
			err = s.object("", func(name string) error {
				if s.kind() == "a string" {
					text, n := s.text(1 << 20)
					if n != len(text) {
						t.Fatalf("a text of %d bytes has %d", len(text), n)
					}
					got[name] = text
					return nil
				}
				raw := s.raw(1 << 20)
				got[name] = "raw:" + string(raw)
				return nil
			})
		}
		out := s.outcome(nil)
		if valid := twin(body); valid != (out == nil) {
			t.Fatalf("%q: %v, valid: %v", body, out, valid)
		}
		if out != nil || !object || err != nil {
			return
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Fatal(err)
		}
		want = map[string]string{}
		for name, raw := range fields {
			var text string
			if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
				want[name] = text
			} else {
				want[name] = "raw:" + string(raw)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q: %q, want %q", body, got, want)
		}
	})
}

// pieces reads at most so many bytes at once.
type pieces struct {
	io.Reader
	most int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.most)]) }

// TestSourceAcrossWindows reads texts, escapes and values that begin and end everywhere around the end of what was read.
func TestSourceAcrossWindows(t *testing.T) {
	for pad := window - 40; pad < window+4; pad++ {
		text := strings.Repeat("x", pad) + "é\U0001F600\n\"\\"
		quoted, _ := json.Marshal(text)
		escaped := strings.ReplaceAll(string(quoted), "\U0001F600", `\ud83d\uDE00`)
		body := `{"prompt":` + escaped + `,"logit_bias": {"12" : -1.5 } ,"stop":["a\u0062"],"user":"me"}`
		c, err := Completion(iotest.OneByteReader(strings.NewReader(body)), defaults, Limits{Text: 1 << 20, Tokens: 64})
		if err != nil {
			t.Fatal(err)
		}
		if c.Prompts[0].Text != text || len(c.Request.Stop) != 1 || c.Request.Stop[0] != "ab" || c.Request.Sampling.Bias[0].Add != -1.5 {
			t.Fatalf("with %d bytes: %+v", pad, c.Request)
		}
	}
}

// TestSourceLimits keeps no more of a body than was allowed, and says how much there was.
func TestSourceLimits(t *testing.T) {
	l := Limits{Text: 100, Tokens: 10}
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, tc := range []struct {
		chat       bool
		body       string
		status     int
		param, say string
	}{
		{false, `{"prompt":"` + x(100) + `"}`, 200, "", ""},
		{false, `{"prompt":"` + x(101) + `"}`, 413, "prompt", "101 bytes: at most 100"},
		{false, `{"prompt":["a","` + x(99) + `\n\n"]}`, 413, "prompt", "101 bytes"},
		{false, `{"prompt":[` + strings.Repeat("1,", 8) + `1]}`, 200, "", ""},
		{false, `{"prompt":[` + strings.Repeat("1,", 9) + `1]}`, 400, "prompt", "10 tokens. However, your prompt resulted in 10 tokens."},
		{false, `{"prompt":[[1],[` + strings.Repeat("1,", 5000) + `1]]}`, 400, "prompt", "5001 tokens"},
		{false, `{"prompt":"a","user":"` + x(1e5) + `"}`, 200, "", ""},
		{false, `{"prompt":"a","` + x(5000) + `":1}`, 400, "", "name of 5000 bytes"},
		{false, `{"prompt":"a","temperature":1` + strings.Repeat("0", 1e5) + `}`, 400, "temperature", "…"},
		{false, `{"prompt":"a","seed":` + strings.Repeat("1", 1e5) + `}`, 400, "seed", "…"},
		{false, `{"prompt":"a","temperature":0.1000000000000000055511151231257827021181583404541015625}`, 200, "", ""},
		{false, `{"prompt":"a","response_format":{"type":"text","x":"` + x(1e5) + `"}}`, 200, "", ""},
		{true, `{"messages":[{"role":"user","content":"` + x(96) + `"}]}`, 200, "", ""},
		{true, `{"messages":[{"role":"user","content":"` + x(97) + `"}]}`, 413, "messages", "101 bytes: at most 100"},
		{true, `{"messages":[{"role":"user","content":"` + x(60) + `"},{"role":"user","content":"` + x(40) + `"}]}`, 413, "messages",
			"40 bytes: at most 36"},
		{true, `{"messages":[{"role":"user","content":[{"type":"text","text":"` + x(60) + `"},{"type":"text","text":"` + x(41) + `"}]}]}`,
			413, "messages", "41 bytes"},
		{true, `{"messages":[{"role":"user","content":"a","reasoning_content":"` + x(101) + `"}]}`, 413, "messages", "101 bytes"},
		{true, `{"messages":[{"role":"assistant","tool_calls":[{"a":"` + x(101) + `"}]}]}`, 413, "messages", "tool_calls"},
		{true, `{"messages":[` + strings.Repeat(`{"role":"user","content":"a"},`, 30) + `{}]}`, 413, "messages", "1 bytes: at most 0"},
	} {
		var err error
		if tc.chat {
			_, err = Chat(strings.NewReader(tc.body), defaults, l)
		} else {
			_, err = Completion(strings.NewReader(tc.body), defaults, l)
		}
		if tc.status == 200 {
			if err != nil {
				t.Errorf("%.60s: %v", tc.body, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%.60s is taken", tc.body)
			continue
		}
		if e := oai.FromError(err); e.Status != tc.status || e.Param != tc.param || !strings.Contains(e.Message, tc.say) ||
			len(e.Message) > 400 {
			t.Errorf("%.60s: %+v", tc.body, e)
		}
	}
}

// TestWhatIsWrongFirst: that a body is no JSON counts more than what its fields say, and that it does not come more than both.
func TestWhatIsWrongFirst(t *testing.T) {
	lost := errors.New("the line went dead")
	for _, tc := range []struct {
		body string
		then error
		want string
	}{
		{`{"bar":1,"prompt":7}`, nil, `prompt is 7`},
		{`{"bar":1,"prompt":7`, nil, "ends at byte 19"},
		{`{"bar":1,"prompt":7`, lost, lost.Error()},
		{`{"bar":1,,`, lost, "at byte 9"},
	} {
		var body io.Reader = strings.NewReader(tc.body)
		if tc.then != nil {
			body = io.MultiReader(body, iotest.ErrReader(tc.then))
		}
		if _, err := Completion(body, defaults, testLimits); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.body, err, tc.want)
		}
	}
}

// TestBodyMemory reads 8 MiB of everything that bodies are made of, and measures what is allocated, garbage included.
func TestBodyMemory(t *testing.T) {
	size := 8 << 20
	if testing.Short() {
		size = 1 << 20
	}
	most := uint64(20 * size) // 14 as it is; the race detector's allocations are larger
	fill := func(before, each, after string) string {
		return before + strings.Repeat(each, (size-len(before)-len(after))/len(each)) + after
	}
	for name, body := range map[string]string{
		"one text": fill(`{"messages":[{"role":"user","content":"`, "word ", `"}]}`),
		"escapes":  fill(`{"messages":[{"role":"user","content":"`, `\u0041`, `"}]}`),
		"messages": fill(`{"messages":[`, `{"role":"user","content":"a"},`, `{}]}`),
		"parts": fill(`{"messages":[`, `{"role":"user","content":[`+strings.Repeat(`{"type":"text","text":"a"},`, 1000)+
			`{"type":"text","text":"a"}]},`, `{}]}`),
		"nesting": fill(`{"messages":[{"role":"assistant","tool_calls":[`, strings.Repeat("[", 50)+strings.Repeat("]", 50)+",",
			`1]}]}`),
		"tokens":         fill(`{"prompt":[`, "1,", `1]}`),
		"lists":          fill(`{"prompt":[`, "[1,2,3],", `[1]]}`),
		"fields":         fill(`{"messages":[],"metadata":{`, `"a":[[{"b":[1]}]],`, `"b":1}}`),
		"a long name":    fill(`{"`, "x", `":1}`),
		"a long number":  fill(`{"temperature":1`, "0", `}`),
		"a long garbage": fill(`{"tools":[`, `{"type":"function"},`, `1]}`),
		"white space":    fill(`{"messages":`, " ", `[]}`),
	} {
		for _, chat := range []bool{true, false} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun, in := time.Now(), strings.NewReader(body)
			if chat {
				_, _ = Chat(in, defaults, Limits{Text: 4 << 20, Tokens: 1 << 17})
			} else {
				_, _ = Completion(in, defaults, Limits{Text: 4 << 20, Tokens: 1 << 17})
			}
			took := time.Since(begun)
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc
			t.Logf("%s, chat %v: %.1f MiB, %v", name, chat, float64(allocated)/(1<<20), took)
			if allocated > most {
				t.Errorf("%s, chat %v: %d bytes are allocated: want at most %d", name, chat, allocated, most)
			}
		}
	}
}

// TestFieldsOfOneObject: an object of more fields than a map of them may have is refused before it is decoded.
func TestFieldsOfOneObject(t *testing.T) {
	var b strings.Builder
	for i := range maxNested + 1 {
		fmt.Fprintf(&b, `,"k%d":0`, i)
	}
	_, err := Chat(strings.NewReader(`{"options":{`+b.String()[1:]+`}}`), defaults, testLimits)
	if err == nil || !strings.Contains(err.Error(), "options.k65536 is one too many") {
		t.Fatal(err)
	}
}

// TestReadingEnds: a body is read no further when its client has gone.
func TestReadingEnds(t *testing.T) {
	for name, read := range dialects {
		body := io.MultiReader(strings.NewReader(`{"options":{"seed":1},"stop":["a`), iotest.ErrReader(context.Canceled))
		if _, err := read(body, testLimits); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
