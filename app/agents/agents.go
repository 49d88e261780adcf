// Package agents runs programs that work with a language model and tools, such as coding agents, with tandem as their server. One table
// says what each program is called, and how it is told of a server: by its own documented variables, and by files in a private folder. The
// user's own files stay as they are.
package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/tandem-llm/tandem"
)

// Program is a program that uses a model.
type Program struct {
	Name    string // as the user names it
	Title   string // as its makers do
	Binary  string // looked for in PATH
	Install string // the command that installs it
	Version string // the one that was tried with tandem
	Begins  int    // tokens of its first request
	Env     []Var
	Unset   []string // variables to remove: they would make it use another server, or send another server's key
	Files   []File   // in a folder of its own
	Args    []string // before the user's
}

// Var is a variable of the environment.
type Var struct{ Name, Value string }

// File is a file for a program to read. Name is a path below the program's folder.
type File struct{ Name, Text string }

// Server is what a program is told of a server: the values for Program.For.
type Server struct {
	URL, Key, Model string
	Context         int    // tokens of a conversation
	Dir             string // the program's folder
}

// Find returns the program of that name. Errors: Invalid.
func Find(name string) (Program, error) {
	i := slices.IndexFunc(table, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return Program{}, tandem.Errorf("", tandem.Invalid, "no program %q: want %s; docs/guides/agents.md says how others are connected",
			name, strings.Join(Names(), ", "))
	}
	return table[i], nil
}

// Names returns the names of all programs.
func Names() (names []string) {
	for _, p := range table {
		names = append(names, p.Name)
	}
	return names
}

const (
	work       = 8192  // tokens that a program needs beside its first request, to read a file and to answer
	mostOutput = 32000 // tokens of an answer that programs ask for
)

// TooSmall returns what will go wrong in a conversation of at most context tokens, as the end of a sentence that begins with the program;
// "" if there are enough.
func (p Program) TooSmall(context int) string {
	switch {
	case context >= p.Begins+work:
		return ""
	case context > p.Begins:
		return "begins with about " + strconv.Itoa(p.Begins) + " tokens, and a conversation has at most " + strconv.Itoa(context) +
			": it will soon be full"
	}
	return "begins with about " + strconv.Itoa(p.Begins) + " tokens, and a conversation has at most " + strconv.Itoa(context) +
		": its first request will be refused"
}

// For returns a copy of p in which the names "{url}", "{key}", "{model}", "{dir}", "{context}", "{output}" and "{compact}" are replaced by
// s's values. Errors: Invalid for a value with quotes, backslashes or control characters, which not all forms of settings can hold.
func (p Program) For(s Server) (Program, error) {
	output := min(max(s.Context/4, 1), mostOutput)
	values := [][2]string{{"{url}", s.URL}, {"{key}", s.Key}, {"{model}", s.Model}, {"{dir}", s.Dir},
		{"{context}", strconv.Itoa(s.Context)}, {"{output}", strconv.Itoa(output)}, {"{compact}", strconv.Itoa(s.Context - output)}}
	var pairs []string
	for _, v := range values {
		if strings.ContainsFunc(v[1], func(r rune) bool { return r == '"' || r == '\\' || unicode.IsControl(r) }) {
			return p, tandem.Errorf("", tandem.Invalid, "the %s %q cannot be written into the settings of %s: want one without quotes, "+
				"backslashes and control characters", strings.Trim(v[0], "{}"), v[1], p.Name)
		}
		pairs = append(pairs, v[0], v[1])
	}
	fill := strings.NewReplacer(pairs...).Replace
	p.Env, p.Files, p.Args = slices.Clone(p.Env), slices.Clone(p.Files), slices.Clone(p.Args)
	for i := range p.Env {
		p.Env[i].Value = fill(p.Env[i].Value)
	}
	for i := range p.Files {
		p.Files[i].Text = fill(p.Files[i].Text)
	}
	for i := range p.Args {
		p.Args[i] = fill(p.Args[i])
	}
	return p, nil
}

// Write writes p's files into dir, which must exist, readable for this user alone. Errors: Unavailable.
func (p Program) Write(dir string) error {
	for _, f := range p.Files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Text), 0o600); err != nil {
			return tandem.Errorf("", tandem.Unavailable, "settings of %s: %w", p.Name, err)
		}
	}
	return nil
}

// Environ returns a copy of the environment env with p's variables set and those of Unset removed. If env names a proxy, NO_PROXY excepts
// this machine's loopback addresses.
func (p Program) Environ(env []string) []string {
	set := map[string]string{}
	proxied := false
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		proxied = proxied || slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}, strings.ToUpper(name))
	}
	for _, v := range p.Env {
		set[v.Name] = v.Value
	}
	var out []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch _, ours := set[name]; {
		case ours || slices.Contains(p.Unset, name):
		case proxied && strings.ToUpper(name) == "NO_PROXY":
			out = append(out, name+"="+local+","+value)
		default:
			out = append(out, kv)
		}
	}
	for _, v := range p.Env {
		out = append(out, v.Name+"="+v.Value)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if proxied && !slices.ContainsFunc(out, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
			out = append(out, name+"="+local)
		}
	}
	return out
}

const local = "127.0.0.1,localhost,::1"

// Script returns shell commands that do what tandem launch does once a server runs. mktemp makes the folder that "{dir}" stands for, so p
// comes from For with Dir "{dir}". args are the user's.
func (p Program) Script(args []string) string {
	var b strings.Builder
	if p.private() {
		b.WriteString("dir=$(mktemp -d)\n")
	}
	for _, f := range p.Files {
		b.WriteString("cat > \"$dir\"/" + f.Name + " <<'END'\n" + f.Text + "END\n")
	}
	if len(p.Unset) > 0 {
		b.WriteString("unset " + strings.Join(p.Unset, " ") + "\n")
	}
	for _, v := range p.Env {
		b.WriteString("export " + v.Name + "=" + word(v.Value) + "\n")
	}
	b.WriteString(p.Binary)
	for _, a := range slices.Concat(p.Args, args) {
		b.WriteString(" " + word(a))
	}
	return b.String() + "\n"
}

// private reports whether p has a folder of its own.
func (p Program) private() bool {
	return len(p.Files) > 0 || slices.ContainsFunc(p.Env, func(v Var) bool { return strings.Contains(v.Value, "{dir}") })
}

// word writes s as one word of a shell, with {dir} as a variable.
func word(s string) string {
	var parts []string
	for i, part := range strings.Split(s, "{dir}") {
		if i > 0 {
			parts = append(parts, `"$dir"`)
		}
		switch {
		case part == "":
		case strings.ContainsFunc(part, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:,=+@%", r)
		}):
			parts = append(parts, "'"+strings.ReplaceAll(part, "'", `'\''`)+"'")
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return "''"
	}
	return strings.Join(parts, "")
}
