package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/processes/settings/config"
)

// wrong returns the error of a command line.
func wrong(t *testing.T, args ...string) string {
	t.Helper()
	settings := config.NewResolver(func(string) (string, bool) { return "", false })
	parser, err := newParser(settings, args...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = readLine(parser, settings, args)
	if err == nil {
		t.Fatalf("tandem %q is understood", args)
	}
	return err.Error()
}

const inTheLab = " is for tandem's developers, and not in this program: in a checkout, " +
	"go build -C lab -o .. ./cmd/tandem-lab, then ./tandem-lab "

// TestSuggestions: an unknown command or flag is answered with the nearest one, and with tandem's name of what other programs call so.
func TestSuggestions(t *testing.T) {
	for line, want := range map[string]string{
		"uo":                         `unknown command "uo": did you mean up?`,
		"generat":                    `unknown command "generat": did you mean generate?`,
		"gatewya":                    `unknown command "gatewya": did you mean gateway?`,
		"serve":                      `unknown command "serve": did you mean up?`,
		"chat":                       `unknown command "chat": did you mean run?`,
		"frobnicate":                 "unknown command \"frobnicate\"; `tandem --help` lists the commands",
		"models":                     `unknown command "models": did you mean list?`,
		"delete x":                   `unknown command "delete": did you mean rm?`,
		"cp x":                       `unknown command "cp": ` + peers["cp"],
		"stop":                       `unknown command "stop": ` + peers["stop"],
		"download llama3":            `unknown command "download": did you mean pull?`,
		"ask":                        "unknown command \"ask\"; `tandem --help` lists the commands",
		"up --flash-attn":            "unknown flag --flash-attn: " + always,
		"up --temp 1":                "unknown flag --temp: did you mean --temperature?",
		"up --n-gpu-layers 99":       "unknown flag --n-gpu-layers: did you mean --gpu-memory?",
		"trace --prompt x":           "tandem trace" + inTheLab + "trace",
		"bench kernels --type q8_0":  "tandem bench kernels" + inTheLab + "bench kernels",
		"model inf":                  `unknown command "inf": did you mean info?`,
		"up --htp x":                 "unknown flag --htp: did you mean --http?",
		"up --ctx-size 4096":         "unknown flag --ctx-size: did you mean --ctx?",
		"up --cors-origins x":        "unknown flag --cors-origins: did you mean --cors-origin?",
		"generate --max-token 3":     "unknown flag --max-token: did you mean --max-tokens?",
		"generate --threads 3":       "unknown flag --threads: did you mean --verifier-threads?",
		"gateway --chat-templat x":   "unknown flag --chat-templat: did you mean --chat-template?",
		"up --frobnicate":            "unknown flag --frobnicate; `tandem up --help` lists the flags",
		"config --config /no/such/f": "--config /no/such/f: no such file or directory",
	} {
		if got := wrong(t, strings.Fields(line)...); got != want {
			t.Errorf("tandem %s:\n%s\nwant\n%s", line, got, want)
		}
	}
}

// TestPeers: a sentence for another program's word names commands and flags that there are, and stands for none of tandem's.
func TestPeers(t *testing.T) {
	parser, err := newParser(config.NewResolver(func(string) (string, bool) { return "", false }))
	if err != nil {
		t.Fatal(err)
	}
	for word, says := range peers {
		for _, c := range parser.Model.Children {
			if c.Name == word {
				t.Errorf("%s is a command", word)
			}
		}
		for _, m := range regexp.MustCompile("`tandem ([a-z][a-z -]*[a-z])").FindAllStringSubmatch(says, -1) {
			node := parser.Model.Node
			for part := range strings.FieldsSeq(m[1]) {
				if i := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == part }); i >= 0 {
					node = node.Children[i]
				} else if !strings.HasPrefix(part, "--") {
					t.Errorf("%s: %q names no command", word, m[0])
				}
			}
		}
	}
}

// TestSettingsErrors: what is wrong with a file of settings is said of --config or of the variable that names it, whatever the command.
func TestSettingsErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.yaml")
	if err := os.WriteFile(file, []byte("thread: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"config", "generate", "up", "gateway"} {
		if got := wrong(t, command, "--config", file); got != "--config "+file+`: line 1: unknown key "thread", did you mean "threads"?` {
			t.Errorf("%s: %s", command, got)
		}
	}
	settings := config.NewResolver(func(name string) (string, bool) { return file, name == "TANDEM_CONFIG" })
	parser, err := newParser(settings, "up")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readLine(parser, settings, []string{"up"}); err == nil || !strings.HasPrefix(err.Error(),
		"TANDEM_CONFIG "+file+": line 1") {
		t.Errorf("by the variable: %v", err)
	}
}

// TestVersionFlag: --version prints what the command version begins with, and ends.
func TestVersionFlag(t *testing.T) {
	parser, err := newParser(config.NewResolver(func(string) (string, bool) { return "", false }), "--version")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := -1
	parser.Stdout, parser.Exit = &out, func(c int) { code = c }
	_, _ = parser.Parse([]string{"--version"})
	if first, _, _ := strings.Cut(buildVersion().line(), "\n"); code != 0 || strings.TrimSpace(out.String()) != first ||
		!strings.HasPrefix(first, "tandem ") {
		t.Errorf("code %d, %q: want %q", code, out.String(), first)
	}
}
