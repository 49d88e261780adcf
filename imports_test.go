package tandem_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "github.com/tandem-llm/tandem"
	gonja  = "github.com/nikolalohinski/gonja/v2/"
)

// rooms lists what the code of each room may import besides the standard library: other rooms by
// their folder, modules by their path. "." is package tandem. An import that is not here, and a folder
// without a room, fails the test: whoever wants the edge must add it here and say why in the commit.
var rooms = map[string][]string{
	".":       {},
	"spec":    {"."},
	"kernels": {},
	"engine":  {".", "kernels", "golang.org/x/sys"},
	// gonja's parser only: its evaluator and loaders would run what a model file says without a limit
	"engine/chat": {".", "engine/gguf", "engine/token", gonja + "config", gonja + "nodes", gonja + "parser", gonja + "tokens"},

	"schedule": {"."},

	"drafter":  {".", "spec", "engine", "schedule"},
	"verifier": {".", "spec", "engine", "schedule"},
	"gateway":  {".", "spec", "engine"},
	"mempool":  {"."},

	"proto": {"google.golang.org/grpc", "google.golang.org/protobuf"},
	"services": {".", "proto", "google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto",
		"github.com/nats-io", "go.opentelemetry.io", "golang.org/x/sys"},
	// what is measured and how it is shown is telemetry's alone
	"services/telemetry": {".", "services", "google.golang.org/grpc", "go.opentelemetry.io", "github.com/prometheus"},
	"client":             {"proto", "google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto"},

	"cmd":  {"*"},
	"test": {"*"},
}

// testOnly lists what test files of any room may import on top.
var testOnly = []string{"pgregory.net/rapid", "go.uber.org/goleak", "github.com/openai/openai-go"}

// domainTests are rooms whose tests may run the other domain rooms with them in one process, but never
// the wire.
var domainTests = []string{"drafter", "verifier", "gateway", "mempool"}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "tools" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		room := roomOf(filepath.ToSlash(filepath.Dir(path)))
		seen[room] = true
		allowed, known := rooms[room]
		if !known {
			t.Errorf("%s: folder %q is no room: add it to rooms with what it may import", path, room)
			return nil
		}
		if strings.HasSuffix(path, "_test.go") {
			allowed = slices.Concat(allowed, testOnly)
			if slices.Contains(domainTests, room) {
				allowed = append(allowed, domainTests...)
			}
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !mayImport(room, imported, allowed) {
				t.Errorf("%s: %s must not import %s", path, room, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []string{".", "spec", "kernels", "engine", "drafter", "verifier", "gateway", "services", "cmd"} {
		if !seen[room] {
			t.Errorf("room %q has no Go file: is the test looking at the right folder?", room)
		}
	}
}

// roomOf returns the room that a folder belongs to: itself if it has a list of its own, else its topmost folder.
func roomOf(dir string) string {
	if _, own := rooms[dir]; own {
		return dir
	}
	room, _, _ := strings.Cut(dir, "/")
	return room
}

func mayImport(room, imported string, allowed []string) bool {
	if imported == module {
		return room == "." || slices.Contains(allowed, ".") || slices.Contains(allowed, "*")
	}
	if rest, ours := strings.CutPrefix(imported, module+"/"); ours {
		to := roomOf(rest)
		return to == room || slices.Contains(allowed, to) || slices.Contains(allowed, rest) || slices.Contains(allowed, "*")
	}
	first, _, _ := strings.Cut(imported, "/")
	if !strings.Contains(first, ".") {
		return true // the standard library, and C
	}
	return slices.ContainsFunc(allowed, func(a string) bool {
		return a == "*" || imported == a || strings.HasPrefix(imported, a+"/")
	})
}

func TestImportRules(t *testing.T) {
	for _, tc := range []struct {
		room, imported string
		want           bool
	}{
		{"spec", "fmt", true},
		{"spec", module, true},
		{"spec", module + "/engine", false},
		{"kernels", "C", true},
		{"kernels", module, false},
		{"engine", module + "/engine/kv", true},
		{"engine", gonja + "parser", false},
		{"engine/chat", gonja + "parser", true},
		{"engine/chat", gonja + "exec", false},
		{"engine/chat", module + "/engine/token", true},
		{"engine/chat", module + "/engine/kv", false},
		{"gateway", module + "/engine/chat", false},
		{"drafter", module + "/verifier", false},
		{"gateway", module + "/services/pool", false},
		{"gateway", "google.golang.org/grpc", false},
		{"services", module + "/gateway", false},
		{"services", module + "/engine", false},
		{"services", "google.golang.org/grpc/codes", true},
		{"client", module, false},
		{"cmd", "github.com/alecthomas/kong", true},
	} {
		if got := mayImport(tc.room, tc.imported, rooms[tc.room]); got != tc.want {
			t.Errorf("%s importing %s: allowed %v, want %v", tc.room, tc.imported, got, tc.want)
		}
	}
}

// TestNoBinaries keeps programs and libraries out of the repository: everything is built from source.
func TestNoBinaries(t *testing.T) {
	list, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout: ", err)
	}
	magics := [][]byte{[]byte("\x7fELF"), []byte("MZ"), []byte("\xcf\xfa\xed\xfe"), []byte("!<arch>\n"), []byte("PK\x03\x04"), []byte("\x1f\x8b")}
	for _, name := range strings.Split(strings.TrimRight(string(list), "\x00"), "\x00") {
		f, err := os.Open(name)
		if err != nil {
			continue // deleted, not yet committed
		}
		head := make([]byte, 8)
		n, _ := f.Read(head)
		f.Close()
		for _, m := range magics {
			if bytes.HasPrefix(head[:n], m) {
				t.Errorf("%s is a binary or an archive: build it instead", name)
			}
		}
	}
}
