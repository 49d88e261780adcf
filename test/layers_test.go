package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
)

// TestLayers: what a model of Ollama's brings beside its file counts where neither a setting nor a request says otherwise, and is shown.
func TestLayers(t *testing.T) {
	t.Parallel()
	model, err := os.ReadFile(targetModel)
	if err != nil {
		t.Fatal(err)
	}
	hub := hubtest.New(t)
	layer := func(kind, text string) hubtest.Layer { return hubtest.Layer{Kind: kind, B: []byte(text)} }
	hub.Tag("library/tiny:1b", hubtest.Layer{Kind: "model", B: model}, layer("template", template), layer("system", "You write Go."),
		layer("params", `{"temperature":0,"stop":["\"fmt\""],"num_ctx":256,"mirostat":1}`), layer("license", "none"))
	name := strings.TrimPrefix(hub.URL, "http://") + "/library/tiny:1b"
	w, store := newWorld(t), t.TempDir()
	env := []string{"OLLAMA_MODELS=" + store, "NO_PROXY=*"}
	addr := freeAddr(t)
	g := &webGroup{group: w.begin(env, name, "--http", addr), url: "http://" + addr}
	t.Cleanup(func() { g.stop(t) })
	g.ready(t)
	if said := g.stderr.String(); !strings.Contains(said, `["mirostat"]`) {
		t.Errorf("said %q: want the parameter that is not used", said)
	}

	prompt := func(messages string) string {
		t.Helper()
		status, all := g.ask(t, "POST", "/apply-template", `{"messages":[`+messages+`]}`)
		var out struct{ Prompt string }
		if err := json.Unmarshal([]byte(all), &out); err != nil || status != 200 {
			t.Fatalf("%d: %s", status, all)
		}
		return out.Prompt
	}
	const user = `{"role":"user","content":"x"}`
	if got := prompt(user); got != "system: You write Go.\nuser: x\nassistant:" {
		t.Errorf("prompt %q: want the model's system message", got)
	}
	if got := prompt(`{"role":"developer","content":"a"},` + user); got != "system: a\nuser: x\nassistant:" {
		t.Errorf("prompt %q: want the request's own system message", got)
	}
	const imports = `{"prompt":"package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nimport (\n","max_tokens":12`
	for body, want := range map[string]bool{imports + `}`: true, imports + `,"stop":[]}`: false, imports + `,"stop":["zzz"]}`: false} {
		_, all := g.ask(t, "POST", "/v1/completions", body)
		var c completion
		if err := json.Unmarshal([]byte(all), &c); err != nil || len(c.Choices) != 1 ||
			strings.Contains(c.Choices[0].Text, `"fmt"`) == want || (c.Choices[0].Finish == "stop") != want {
			t.Errorf("%s: %s: want it stopped: %v", body, all, want)
		}
	}
	_, all := g.ask(t, "POST", "/api/show", `{"model":"tiny"}`)
	var show struct{ Parameters, System string }
	if err := json.Unmarshal([]byte(all), &show); err != nil || show.System != "You write Go." {
		t.Errorf("%s", all)
	}
	for _, want := range [][]string{{"num_ctx", "256"}, {"temperature", "0"}, {"stop", `"\"fmt\""`}} {
		found := false
		for line := range strings.Lines(show.Parameters) {
			f := strings.Fields(line)
			found = found || len(f) == 2 && f[0] == want[0] && f[1] == want[1]
		}
		if !found {
			t.Errorf("parameters %q: want %q", show.Parameters, want)
		}
	}

	for _, step := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"rm", name}, 1, "used by a tandem that runs"}, {[]string{"rm", "nobody:7b", name}, 2, "nobody:7b is not on this machine"},
		{[]string{"rm", "-f", "nobody:7b"}, 0, ""},
	} {
		cmd := w.command(t.Context(), step.args...)
		cmd.Env = append(cmd.Env, env...)
		if got := w.wait(cmd); got.code != step.code || !strings.Contains(got.stderr, step.says) {
			t.Errorf("%q: %d: %s: want %d and %q", step.args, got.code, got.stderr, step.code, step.says)
		}
	}
	cmd := w.command(t.Context(), "show", name)
	cmd.Env = append(cmd.Env, env...)
	if got := w.wait(cmd); got.code != 0 || !strings.Contains(got.stdout, "system = You write Go.") ||
		!strings.Contains(got.stdout, "num_ctx = 256") || !strings.Contains(got.stdout, "mirostat") {
		t.Errorf("%d: %s%s", got.code, got.stdout, got.stderr)
	}
	file := filepath.Join(store, "talk.json")
	cmd = w.command(t.Context(), "run", name, "--max-tokens", "3")
	cmd.Env, cmd.Stdin = append(cmd.Env, env...), strings.NewReader("/save "+file+"\n")
	if got := w.wait(cmd); got.code != 0 {
		t.Errorf("%d: %s%s", got.code, got.stdout, got.stderr)
	}
	if saved, err := os.ReadFile(file); err != nil || !strings.Contains(string(saved), "You write Go.") {
		t.Errorf("%v: a talk begins with %s", err, saved)
	}
	cmd = w.command(t.Context(), "rm", "--force", name)
	cmd.Env = append(cmd.Env, env...)
	if got := w.wait(cmd); got.code != 0 || !strings.Contains(got.stdout, "removed ") {
		t.Errorf("rm --force: %d: %s%s", got.code, got.stdout, got.stderr)
	}
	if status, all := g.ask(t, "POST", "/v1/completions", imports+`}`); status != 200 {
		t.Errorf("after its file is gone: %d: %s", status, all)
	}
}
