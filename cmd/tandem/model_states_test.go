package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/states"
	"github.com/tandem-llm/tandem/text/token"
)

// TestModelStates: chats are rendered by a template and answered, finished ones are taken as they are, too long ones are skipped and
// counted; bad input is refused in the words of the command line.
func TestModelStates(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	template := write("t.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"+
		"{% if add_generation_prompt %}assistant:{% endif %}")
	prompts := write("p.jsonl", `{"id":"asked","messages":[{"role":"system","content":"Be short."},{"role":"user","content":"Hello?"}]}`+"\n"+
		`{"id":"done","messages":[{"role":"user","content":"Hello?"},{"role":"assistant","content":"func main() {}"}]}`+"\n"+
		`{"id":"long","prompt":"`+strings.Repeat("word ", 200)+`"}`+"\n")
	command := func(out string) *modelStatesCmd {
		c := &modelStatesCmd{Model: "../../models/gopher-19m-q8_0.gguf", Out: filepath.Join(dir, out), Prompts: []string{prompts}, Top: 4,
			Ctx: 64, Sessions: 2, AnswerTokens: 6, TopP: 1, KVType: "f16", ChatTemplate: template}
		c.Device, c.Threads, c.JSON, c.Cache, c.CacheLimit = "cpu", 1, true, dir, 1<<30
		return c
	}
	run := func(c *modelStatesCmd) (r states.Result, err error) {
		var out bytes.Buffer
		if err = c.Run(&app{stdout: &out, stderr: &out, ctx: t.Context()}); err == nil {
			err = json.Unmarshal(out.Bytes(), &r)
		}
		return r, err
	}
	r, err := run(command("out"))
	if err != nil || r.Texts != 2 || r.Answers != 1 || r.TooLong != 1 || r.Shards != 1 || len(r.Shape.Taps) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	s, err := states.Read(filepath.Join(dir, "out", "000000.states"))
	if err != nil {
		t.Fatal(err)
	}
	vocab, err := token.Open(command("").Model)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, x := range s.Texts {
		var all []tandem.Token
		for _, id := range s.IDs[at : at+x.Tokens] {
			all = append(all, tandem.Token(id))
		}
		at += x.Tokens
		asked, answer := vocab.DecodeWritten(all[:x.Prompt]), vocab.DecodeWritten(all[x.Prompt:])
		if !strings.Contains(asked, "user: Hello?") || !strings.HasSuffix(asked, "assistant:") ||
			x.Origin == "done" && (!strings.Contains(answer, "func main() {}") || !vocab.IsEnd(all[len(all)-1])) ||
			x.Origin == "asked" && (x.Kind != states.KindAnswer || x.Tokens > x.Prompt+6 || !strings.Contains(asked, "Be short.")) {
			t.Errorf("%+v: asked %q, answered %q", x, asked, answer)
		}
	}
	for says, change := range map[string]func(*modelStatesCmd){
		"the chat template was":      func(c *modelStatesCmd) { c.ChatTemplate = write("u.jinja", "{{ messages[0].content }}") },
		`--taps "x": want numbers`:   func(c *modelStatesCmd) { c.Taps = "x" },
		"no chat template to ask it": func(c *modelStatesCmd) { c.ChatTemplate = "" },
		"messages[0].role is \"nobody\"": func(c *modelStatesCmd) {
			c.Out, c.Prompts = filepath.Join(dir, "role"), []string{write("r.jsonl", `{"messages":[{"role":"nobody","content":"x"}]}`)}
		},
	} {
		c := command("out")
		change(c)
		if _, err := run(c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: want Invalid that says %q", err, says)
		}
	}
}
