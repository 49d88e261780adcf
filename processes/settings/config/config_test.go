package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/processes/settings"
)

type cli struct {
	Config string `name:"config"`
	Run    struct {
		Threads   int      `default:"3"`
		MaxTokens int      `default:"128"`
		Draft     []string `sep:"none"`
		Lock      bool
		Prompt    string `setting:"-"`
	} `cmd:""`
	Other struct {
		Listen string
	} `cmd:""`
}

// resolve parses args with a file of the given text ("" = no file) and the given variables.
func resolve(t *testing.T, yaml string, env map[string]string, args ...string) (*cli, []Setting, error) {
	t.Helper()
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "tandem.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	var c cli
	r := NewResolver(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	k, err := kong.New(&c, kong.Resolvers(r))
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := k.Parse(append([]string{"run"}, args...))
	if wrong := r.Err(); wrong != nil {
		err = wrong
	}
	if err != nil {
		return nil, nil, err
	}
	return &c, r.Effective(ctx), nil
}

func TestLayers(t *testing.T) {
	yaml := "threads: 5\nmax-tokens: 6\ndraft: [a, 'b,c']\nlock: true\nlisten: other-command\n"
	c, effective, err := resolve(t, yaml, map[string]string{"TANDEM_MAX_TOKENS": "7", "TANDEM_PROMPT": "ignored"}, "--threads=8")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Run
	if got.Threads != 8 || got.MaxTokens != 7 || !reflect.DeepEqual(got.Draft, []string{"a", "b,c"}) || !got.Lock || got.Prompt != "" {
		t.Errorf("values %+v", got)
	}
	origins := map[string]string{}
	for _, s := range effective {
		origins[s.Name] = filepath.Base(s.Origin)
	}
	want := map[string]string{"threads": "flag", "max-tokens": "TANDEM_MAX_TOKENS", "draft": "tandem.yaml", "lock": "tandem.yaml"}
	if !reflect.DeepEqual(origins, want) {
		t.Errorf("origins %v, want %v", origins, want)
	}
}

func TestDefaultsAndFileByVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(path, []byte("# nothing but a comment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, effective, err := resolve(t, "", map[string]string{"TANDEM_CONFIG": path})
	if err != nil {
		t.Fatal(err)
	}
	if c.Run.Threads != 3 || effective[0].Origin != "default" {
		t.Errorf("values %+v, settings %+v", c.Run, effective)
	}
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		yaml string
		env  map[string]string
		want string
	}{
		"unknown key":         {yaml: "thread: 5\n", want: `line 1: unknown key "thread", did you mean "threads"?`},
		"underscore":          {yaml: "max_tokens: 5\n", want: `unknown key "max_tokens", did you mean "max-tokens"?`},
		"nothing near":        {yaml: "quux-frobnicate: 5\n", want: "`tandem config --all` lists the settings"},
		"not a setting":       {yaml: "prompt: hello\n", want: `unknown key "prompt"`},
		"twice":               {yaml: "threads: 1\nthreads: 2\n", want: "twice"},
		"a section":           {yaml: "threads: {a: 1}\n", want: `line 1: key "threads": want a value`},
		"null":                {yaml: "threads:\n", want: "want a value"},
		"a list":              {yaml: "- threads\n", want: "line 1: want a mapping"},
		"not YAML":            {yaml: "threads: [1\n", want: "line 1"},
		"wrong value in file": {yaml: "threads: many\n", want: "tandem.yaml: threads: "},
		"wrong variable":      {env: map[string]string{"TANDEM_THREADS": "many"}, want: "TANDEM_THREADS: threads: "},
		"missing file":        {env: map[string]string{"TANDEM_CONFIG": "/no/such/file"}, want: "/no/such/file: no such file or directory"},
		"a directory":         {env: map[string]string{"TANDEM_CONFIG": "/"}, want: "/: it is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := resolve(t, tc.yaml, tc.env)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v: want %q in it", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
		})
	}
}

// FuzzParse feeds arbitrary files: no panic, and only known keys with plain values come out.
func FuzzParse(f *testing.F) {
	f.Add([]byte("threads: 5\nlist: [a, b]\n"))
	f.Add([]byte("a: &x b\nlist: *x\n"))
	f.Add([]byte("? {a: b}\n: c\n---\n"))
	f.Add([]byte("threads:"))
	known := []string{"list", "threads"}
	f.Fuzz(func(t *testing.T, data []byte) {
		k := keys{here: known}
		values, err := k.parse(data)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error has several lines: %q", err)
		}
		for name, v := range values {
			if _, ok := settings.Find(name); !ok && name != "list" {
				t.Errorf("unknown key %q came through", name)
			}
			switch v.(type) {
			case string, []any:
			default:
				t.Errorf("value of type %T", v)
			}
		}
	})
}

func TestTokensInURLsAreHidden(t *testing.T) {
	for text, want := range map[string]string{
		"nats://s3cret@10.0.0.1:4222":         "nats://(hidden)@10.0.0.1:4222",
		"tls://user:p@ss@host:4222/path@x":    "tls://(hidden)@host:4222/path@x",
		"nats://10.0.0.1:4222":                "nats://10.0.0.1:4222",
		"unix:///run/tandem/a@b/gateway.sock": "unix:///run/tandem/a@b/gateway.sock",
		"file:/run/pool@home":                 "file:/run/pool@home",
		"someone@example.com":                 "someone@example.com",
		"":                                    "",
	} {
		if got := hideUser(text); got != want {
			t.Errorf("%q is shown as %q: want %q", text, got, want)
		}
	}
}
