package test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A document's commands stand in fences of the language sh, its programs in those of the language go. What is said of
// one stands in a comment on the line above:
//
//	<!-- not run: why -->
//	<!-- background: text -->   goes on until the document ends; the next fence runs once it has printed the text
//	<!-- prints: text -->       the output must hold the text
type fence struct {
	line       int
	script     string
	program    bool // of Go, not a command
	skip       string
	background string
	prints     string
}

var fenceNote = regexp.MustCompile(`^<!-- (not run|background|prints): (.+) -->$`)

// fences returns the commands and programs of a document.
func fences(text string) (out []fence) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if lines[i] != "```sh" && lines[i] != "```go" {
			continue
		}
		f := fence{line: i + 1, program: lines[i] == "```go"}
		for up := i - 1; up >= 0; up-- {
			m := fenceNote.FindStringSubmatch(lines[up])
			if m == nil {
				break
			}
			switch m[1] {
			case "not run":
				f.skip = m[2]
			case "background":
				f.background = m[2]
			case "prints":
				f.prints = m[2]
			}
		}
		var body []string
		for i++; i < len(lines) && lines[i] != "```"; i++ {
			body = append(body, lines[i])
		}
		f.script = strings.Join(body, "\n")
		out = append(out, f)
	}
	return out
}

// TestDocs runs every command of the README, in a folder with the program and the shipped models.
func TestDocs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs every documented command: not in short mode")
	}
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	runDocument(t, "../README.md", fences(string(text)))
}

// TestGuides runs every command and program of the guides. They find a prompt there too, and models with the names of a user's.
func TestGuides(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	files, err := filepath.Glob("../docs/guides/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no guides: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			runDocument(t, file, fences(string(text)))
		})
	}
}

func runDocument(t *testing.T, file string, all []fence) {
	w := newWorld(t)
	dir := t.TempDir()
	link := func(from, to string) {
		t.Helper()
		abs, err := filepath.Abs(from)
		if err == nil {
			err = os.Symlink(abs, filepath.Join(dir, to))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	link(program, "tandem")
	link(labProgram, "tandem-lab")
	link("../models", "models")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/tandem-llm/tandem\n")
	if filepath.Base(file) == "README.md" {
		runFences(t, w, dir, file, all) // with nothing that a clone lacks but the program
		return
	}
	write("prompt.txt", "func (r *Reader) Read(")
	link("../deploy", "deploy")
	link("../test", "test")
	link("../models/gopher-19m-q8_0.gguf", "big.gguf")
	for to, from := range map[string]string{"small": "all", "go": "go", "py": "py", "prose": "prose", "big-f16": "all"} {
		link("../models/gopher-draft-"+from+"-f16.gguf", to+".gguf")
	}
	runFences(t, w, dir, file, all)
}

// runFences runs the commands and programs of a document in dir.
func runFences(t *testing.T, w *world, dir, file string, all []fence) {
	for _, f := range all {
		if f.skip != "" {
			t.Logf("%s:%d: not run: %s", file, f.line, f.skip)
			continue
		}
		script := strings.ReplaceAll(f.script, "go run ./cmd/tandem", "./tandem") // and -lab
		script = regexp.MustCompile(`(?m)^go build (-C lab -o ..|-o tandem) .*$`).ReplaceAllString(script, "true")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = dir
		if f.program {
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(f.script), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd = exec.CommandContext(ctx, "go", "run", file)
			cmd.Dir = ".."
		}
		cmd.Env = append(os.Environ(), "TMPDIR="+w.tmp, "XDG_RUNTIME_DIR="+w.home, "TANDEM_CACHE="+filepath.Join(dir, "cache"), w.mark,
			"PATH="+dir+":"+os.Getenv("PATH"))
		if f.background != "" {
			stop := begin(t, w, cmd, f)
			defer stop()
			continue
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s:%d: %v\n%s\n%s", file, f.line, err, f.script, out)
		}
		if !bytes.Contains(out, []byte(f.prints)) {
			t.Errorf("%s:%d: printed no %q\n%s\n%s", file, f.line, f.prints, f.script, out)
		}
	}
}

// begin starts a fence that goes on, and returns once it has printed what it is to print.
func begin(t *testing.T, w *world, cmd *exec.Cmd, f fence) (stop func()) {
	t.Helper()
	out := new(lockedBuffer)
	cmd.Args[len(cmd.Args)-1] = "exec " + strings.TrimSpace(f.script)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			t.Errorf("line %d: %s: did not stop", f.line, f.script)
		}
	}
	for deadline := time.Now().Add(60 * time.Second); !strings.Contains(out.String(), f.background); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("line %d: %s: ended: %v\n%s", f.line, f.script, err, out)
		default:
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("line %d: %s: no %q in a minute:\n%s", f.line, f.script, f.background, out)
		}
	}
	return stop
}

// heading is a line of a document that links may name; notInAnchor is what its anchor leaves out.
var (
	heading     = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestDocsLinks: what the documents point to is there, and so are the headings that links name.
func TestDocsLinks(t *testing.T) {
	files := []string{"../README.md", "../CONTRIBUTING.md", "../models/README.md", "../training/README.md"}
	for _, pattern := range []string{"../docs/*.md", "../docs/guides/*.md", "../docs/measurements/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			n++
			if to == "" {
				to = filepath.Base(file)
			}
			to = filepath.Join(filepath.Dir(file), to)
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s points to %s: %v", file, m[1], err)
			} else if anchor != "" && filepath.Ext(to) == ".md" && !hasAnchor(t, to, anchor) {
				t.Errorf("%s points to %s: there is no such heading", file, m[1])
			}
		}
	}
	if n == 0 {
		t.Error("no links found")
	}
}

// hasAnchor reports whether a document has a heading with the anchor that GitHub makes of it.
func hasAnchor(t *testing.T, file, anchor string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		if strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
