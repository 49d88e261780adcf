package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// parsed returns a command line as it is understood, with variables.
func parsed(t *testing.T, env map[string]string, args ...string) (*kong.Context, *config.Resolver) {
	t.Helper()
	from := config.NewResolver(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	parser, err := newParser(from, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := readLine(parser, from, args)
	if err != nil {
		t.Fatalf("tandem %q: %v", args, err)
	}
	return ctx, from
}

// vary gives every field of a struct of settings another value than its default.
func vary(v reflect.Value) {
	for i := range v.NumField() {
		f, at := v.Type().Field(i), v.Field(i)
		switch to := at.Addr().Interface().(type) {
		case *string:
			switch *to = "ä \"" + f.Name + "\": #,"; f.Name {
			case "Pooling":
				*to = "mean"
			case "KVType":
				*to = "q8_0"
			case "LogLevel":
				*to = "error"
			case "LogFormat":
				*to = "json"
			}
		case *[]string:
			*to = []string{"a,b", "\xff" + f.Name}
			if f.Tag.Get("sep") == "" {
				*to = []string{"a", "b"}
			}
		case *[]int:
			*to = []int{-1, 4}
		case *int:
			if *to = i + 2; f.Name == "RepeatLimit" {
				*to = 1000
			}
		case *float64:
			*to = 0.123456789012345678
		case **float64:
			*to = new(0.1)
		case **int:
			*to = new(0)
		case **uint64:
			*to = new(uint64(1<<64 - 1))
		case *bool:
			*to = f.Tag.Get("default") != "true"
		case *time.Duration:
			*to = 0
		case *settings.Size:
			*to = 1<<40 + 1
		case **settings.Size:
			*to = new(settings.Size(1<<30 + 1))
		case *settings.GPUShare:
			*to = 12345
		default:
			if at.Kind() == reflect.Struct {
				vary(at)
			}
		}
		if f.Tag.Get("setting") == "-" {
			at.SetZero()
		}
	}
}

// TestChildrenRead: a child process reads out of its file what the process that starts it has written, whatever the values are, and says
// nothing about it.
func TestChildrenRead(t *testing.T) {
	dir, err := supervise.NewRunDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var g settings.Gateway
	var v settings.Verifier
	var d settings.Drafter
	for role, of := range map[string]any{"gateway": &g, "verifier": &v, "drafter": &d} {
		vary(reflect.ValueOf(of).Elem())
		args, err := group.Configured(dir, role, settings.Marshal(of))
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(dir.File(role + ".yaml")); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v: want a file for this user alone", role, st, err)
		}
		ctx, _ := parsed(t, nil, args...)
		read := ctx.Selected().Target
		if got := read.Field(0).Addr().Interface(); !reflect.DeepEqual(got, of) {
			t.Errorf("%s reads\n%+v\nwant\n%+v", role, got, of)
		}
		if ready, pulse := read.FieldByName("ReadyFD").Int(), read.FieldByName("PulseFD").Int(); ready != supervise.ReadyFD ||
			pulse != supervise.PulseFD {
			t.Errorf("%s: descriptors %d and %d", role, ready, pulse)
		}
		if lines := config.Old(ctx); len(lines) > 0 {
			t.Errorf("%s says %q", role, lines)
		}
	}
}

// TestNames: kong calls each setting as package settings does, and knows all of them; the settings of the roles are among those of config.
func TestNames(t *testing.T) {
	parser, err := newParser(config.NewResolver(os.LookupEnv))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]*kong.Flag{}
	for _, name := range []string{"up", "generate", "gateway", "drafter", "verifier", "config"} {
		for _, c := range parser.Model.Children {
			if c.Name != name {
				continue
			}
			for _, f := range c.Flags {
				if s, ok := settings.Find(f.Name); ok {
					known[s.Name] = f
				} else if f.Tag.Get("setting") != "-" {
					t.Errorf("tandem %s --%s is not in package settings", name, f.Name)
				}
			}
		}
	}
	for _, s := range settings.List() {
		if known[s.Name] == nil {
			t.Errorf("no command has the setting %s", s.Name)
		}
	}
}

// TestCacheFolderIsHeard: a gateway alone takes the cache's folder of the environment.
func TestCacheFolderIsHeard(t *testing.T) {
	ctx, _ := parsed(t, map[string]string{"TANDEM_CACHE": "/of/env"}, "gateway")
	if got := ctx.Selected().Target.Addr().Interface().(*gatewayCmd).Cache; got != "/of/env" {
		t.Errorf("a gateway alone takes the folder %q: want that of TANDEM_CACHE", got)
	}
}

// TestHelpFitsAScreen: the flags that people need are listed by --help, each in a line of 80 columns; all settings by config --all.
func TestHelpFitsAScreen(t *testing.T) {
	t.Setenv("COLUMNS", "")
	for _, command := range []string{"", "up", "generate", "run", "launch"} {
		parser, err := newParser(config.NewResolver(os.LookupEnv), strings.Fields(command)...)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		parser.Stdout, parser.Exit = &out, func(int) {}
		_, _ = parser.Parse(append(strings.Fields(command), "--help"))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) < 30 || len(lines) > 47 {
			t.Errorf("tandem %s --help has %d lines: want 30 to 47\n%s", command, len(lines), out.String())
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > 80 {
				t.Errorf("tandem %s --help: a line of more than 80 columns: %s", command, line)
			}
		}
	}
	var out bytes.Buffer
	if err := (&showConfigCmd{}).list(&app{stdout: &out}); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings.List() {
		if !strings.Contains(out.String(), "  "+s.Key+" (default: ") || !strings.Contains(out.String(), s.Help) {
			t.Errorf("config --all does not list %s", s.Key)
		}
	}
}

// TestOldFlags: flags that are settings now still work, and a line says how they are written.
func TestOldFlags(t *testing.T) {
	for line, want := range map[string]string{
		"up --target x --ctx 4":          "",
		"up --isa generic --isa=generic": "--isa is now --set isa=…",
		"up --lock --no-measure":         "--lock is now --set lock=true; --no-measure is now --set measure=false",
		"generate --alpha 0.5":           "--alpha is now --set strategies.llmcad.alpha=…",
		"up --set isa=generic":           "",
		"up --tree=8/4/2":                "",
		"config":                         "",
	} {
		ctx, _ := parsed(t, nil, strings.Fields(line)...)
		if got := strings.Join(config.Old(ctx), "; "); got != want {
			t.Errorf("tandem %s says %q: want %q", line, got, want)
		}
	}
}

// TestSetFlag: --set is worth a flag, before variables and the file; keys of a section are known with and without it.
func TestSetFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.yaml")
	text := "strategies:\n  minions: {length-max: 5, length-start: 2}\n  llmcad:\n    alpha: 0.5\nreward: 2\nisa: avx2\nheads: [a]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"TANDEM_LENGTH_MAX": "6", "TANDEM_ISA": "neon"}
	ctx, from := parsed(t, env, "up", "--config", file, "--set", "strategies.minions.length-max=7", "--set", "isa=generic", "--set",
		"draft=a,b", "--set", "draft=c")
	c := ctx.Selected().Target.Addr().Interface().(*upCmd)
	if c.LengthMax != 7 || c.LengthStart != 2 || c.Alpha != 0.5 || c.Reward != 2 || c.ISA != "generic" ||
		!reflect.DeepEqual(c.Draft, []string{"a,b", "c"}) || !reflect.DeepEqual(c.Heads, []string{"a"}) {
		t.Errorf("settings %+v", c)
	}
	origins := map[string]string{}
	for _, s := range from.Effective(ctx) {
		origins[s.Name] = s.Origin
	}
	for name, want := range map[string]string{"length-max": "--set", "length-start": file, "isa": "--set", "ctx": "default"} {
		if origins[name] != want {
			t.Errorf("%s comes from %s: want %s", name, origins[name], want)
		}
	}
	for line, want := range map[string]string{
		"up --set isa":   `--set "isa": want KEY=VALUE; ` + "`tandem config --all` lists the keys",
		"up --set iso=x": `--set: unknown key "iso", did you mean "isa"?`,
		"up --set strategies.minions.length-maxx=1": `--set: unknown key "strategies.minions.length-maxx", did you mean "strategies.minions.length-max"?`,
		"up --ctx 5 --set ctx=6":                    "--ctx and --set ctx=…: want one of them",
		"generate --set http=off":                   "--set http: `tandem generate` has no such setting",
		"up --set batches=-2":                       "--batches is -2: want -1 or more",
		"up --set ctx=1 --set ctx=2":                "config: --set: ctx is given 2 times: want one value",
		"up --set ctx=many":                         "config: --set: ctx: expected a valid 64 bit int but got \"many\"",
	} {
		if got := wrong(t, strings.Fields(line)...); !strings.Contains(got, want) {
			t.Errorf("tandem %s:\n%s\nwant\n%s", line, got, want)
		}
	}
}

// TestNegativeNumbers: a value may be negative, behind a space and behind an equals sign.
func TestNegativeNumbers(t *testing.T) {
	for _, line := range []string{"run --max-tokens -1", "run --max-tokens=-1", "run --temperature -0.5", "generate --top-k -3"} {
		ctx, _ := parsed(t, nil, strings.Fields(line)...)
		switch c := ctx.Selected().Target.Addr().Interface().(type) {
		case *runCmd:
			if c.MaxTokens != -1 && (c.Temperature == nil || *c.Temperature != -0.5) {
				t.Errorf("tandem %s: %d tokens, temperature %v", line, c.MaxTokens, c.Temperature)
			}
		case *generateCmd:
			if c.TopK != -3 {
				t.Errorf("tandem %s: top-k %d", line, c.TopK)
			}
		}
	}
	if got := wrong(t, "run", "--max-tokens", "--temperature", "1"); !strings.Contains(got, "max-tokens") {
		t.Errorf("a flag in place of a number: %s", got)
	}
}
