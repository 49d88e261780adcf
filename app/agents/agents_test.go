package agents

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

// TestScripts: what each program is told, as --print shows it.
func TestScripts(t *testing.T) {
	for _, name := range Names() {
		p, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err = p.For(Server{URL: "http://127.0.0.1:8450", Key: "KEY", Model: "qwen2.5-coder", Context: 32768, Dir: "{dir}"})
		if err != nil {
			t.Fatal(err)
		}
		got, golden := p.Script([]string{"-p", "what's here?"}), filepath.Join("testdata", name+".golden")
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || got != string(want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
		checkFiles(t, p)
	}
	if _, err := Find("emacs"); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "claude, codex, opencode") {
		t.Errorf("an unknown program: %v", err)
	}
}

// checkFiles checks that nothing is left to fill in, and that JSON is JSON.
func checkFiles(t *testing.T, p Program) {
	t.Helper()
	texts := map[string]string{}
	for _, f := range p.Files {
		texts[f.Name] = f.Text
	}
	for _, v := range p.Env {
		texts[v.Name] = v.Value
	}
	for name, text := range texts {
		for _, left := range []string{"{url}", "{key}", "{model}", "{context}", "{output}", "{compact}"} {
			if strings.Contains(text, left) {
				t.Errorf("%s: %s holds %s", p.Name, name, left)
			}
		}
		if (strings.HasSuffix(name, ".json") || strings.HasPrefix(text, `{"`)) && !json.Valid([]byte(text)) {
			t.Errorf("%s: %s is no JSON: %s", p.Name, name, text)
		}
	}
}

// TestFor: the table stays as it is, and values that would end a string of the settings are refused.
func TestFor(t *testing.T) {
	p, _ := Find("codex")
	before := p.Files[0].Text
	if _, err := p.For(Server{URL: "u", Key: "k", Model: "m", Context: 100, Dir: "d"}); err != nil || p.Files[0].Text != before {
		t.Errorf("%v; the table holds %q", err, p.Files[0].Text)
	}
	for _, bad := range []Server{{Model: `a"b`}, {Key: `a\b`}, {URL: "a\nb"}} {
		if _, err := p.For(bad); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%+v: %v: want it refused", bad, err)
		}
	}
}

func TestTooSmall(t *testing.T) {
	p := Program{Begins: 1000}
	for context, want := range map[int]string{900: "will be refused", 1000: "will be refused", 5000: "will soon be full", 9192: ""} {
		if got := p.TooSmall(context); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%d tokens: %q: want %q", context, got, want)
		}
	}
}

// TestEnviron: a program's variables replace the user's, those of other servers are gone, and a proxy is not asked for the server.
func TestEnviron(t *testing.T) {
	p := Program{Env: []Var{{"A", "new"}}, Unset: []string{"SECRET"}}
	for _, c := range []struct{ env, want []string }{
		{[]string{"A=old", "SECRET=x", "PATH=/bin"}, []string{"PATH=/bin", "A=new"}},
		{[]string{"https_proxy=p", "no_proxy=x"}, []string{"https_proxy=p", "no_proxy=127.0.0.1,localhost,::1,x", "A=new",
			"NO_PROXY=127.0.0.1,localhost,::1"}},
	} {
		if got := p.Environ(c.env); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q becomes %q: want %q", c.env, got, c.want)
		}
	}
}

func TestLine(t *testing.T) {
	u := Use{Tokens: 300, Time: 10 * time.Second, Plain: 15 * time.Second, Drafts: true, Exact: true}
	lossy, unknown, none := u, u, u
	lossy.Exact, unknown.Plain, none.Drafts = false, 0, false
	for want, u := range map[string]Use{
		"300 tokens in 10.0 s of decoding, 30.0 tokens/s, 1.50 times plain decoding; the same bits as without drafts": u,
		"30.0 tokens/s; the same bits as without drafts":                                                              unknown,
		"1.50 times plain decoding; drafts were accepted by a lossy rule":                                             lossy,
		"300 tokens in 10.0 s of decoding, 30.0 tokens/s, without drafts":                                             none,
		"no tokens were generated": {},
	} {
		if got := u.Line(); !strings.HasSuffix(got, want) {
			t.Errorf("%+v: %q: want %q", u, got, want)
		}
	}
}

// TestHeld: what is written while a program has the screen comes after it, the last of much.
func TestHeld(t *testing.T) {
	var out strings.Builder
	h := &Held{To: &out}
	say := func(s string) {
		if n, err := h.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	say("a")
	release := h.Hold()
	say(strings.Repeat("x", mostHeld))
	say("b")
	if out.String() != "a" {
		t.Errorf("passed on: %q", out.String())
	}
	release()
	say("c")
	if want := "a" + strings.Repeat("x", mostHeld-1) + "bc"; out.String() != want {
		t.Errorf("%d bytes: want %d", out.Len(), len(want))
	}
}
