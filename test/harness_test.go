// Package test runs the whole system: the real program, its three processes, the shipped models.
//
// Tests run beside each other (t.Parallel) unless they compare times or memory.
package test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

var (
	long   = flag.Bool("long", false, "also run the long forms, which take hours")
	slow   = flag.Bool("slow", false, "run the slow tests, and no others unless -run names them")
	tags   = flag.String("with", "", "build tags of the program under test: brokenaccept and brokenkernel must make TestSameText fail")
	filter = flag.String("filter", "", "long forms: only prompts whose id begins with this")
)

// mayBeSlow skips a test unless -slow or -long asks for it. A slow test builds the program anew, or runs it where a stranger's machine
// cannot: in containers, beside Jaeger, under qemu; or it takes long, and others look at the same more briefly. `make slow`
// and `.ci/run nightly` run all tests that call this or a function that does: slowTests finds them by that.
func mayBeSlow(t *testing.T) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if names, err := slowTests(); err != nil || !slices.Contains(names, name) {
		t.Fatalf("slowTests does not find that %s calls mayBeSlow (%v)", name, err)
	}
	if !*slow && !*long {
		t.Skip("slow: make slow runs it")
	}
}

// slowTests returns the names of the package's tests whose sources call mayBeSlow, themselves or by other functions of the package.
var slowTests = sync.OnceValues(func() ([]string, error) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		return nil, err
	}
	callers := map[string][]string{} // functions by one that they call
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					callers[types.ExprString(call.Fun)] = append(callers[types.ExprString(call.Fun)], f.Name.Name)
				}
				return true
			})
		}
	}
	var names []string
	found := []string{"mayBeSlow"}
	for i := 0; i < len(found); i++ {
		for _, f := range callers[found[i]] {
			if slices.Contains(found, f) {
				continue
			}
			found = append(found, f)
			if strings.HasPrefix(f, "Test") {
				names = append(names, f)
			}
		}
	}
	return names, nil
})

// program and labProgram are the paths of tandem, which is tested, and of tandem-lab, which measures it. Both are built once.
var program, labProgram string

func TestMain(m *testing.M) {
	if addr := os.Getenv(natsAddress); addr != "" {
		os.Exit(serveNATS(addr)) // this process is a test's NATS server
	}
	if record := os.Getenv(agentRecord); record != "" {
		os.Exit(actAgent(record)) // this process is what a test launches
	}
	testkit.AtOnce(3) // some wait, for Docker or for a process to end
	flag.Parse()
	if run := flag.Lookup("test.run"); *slow && run.Value.String() == "" {
		names, err := slowTests()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_ = run.Value.Set("^(" + strings.Join(names, "|") + ")$") // "^()$", which is no test, if there is none
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "tandem-test-bin")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program, labProgram = filepath.Join(dir, "tandem"), filepath.Join(dir, "tandem-lab")
		for file, module := range map[string]string{program: "..", labProgram: "../lab"} {
			build := exec.Command("go", "build", "-C", module, "-tags", *tags, "-o", file, "./cmd/"+filepath.Base(file))
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "building %s: %v\n%s", filepath.Base(file), err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// watchSources looks at every source file, once. The tests run a program that the go command does not know
// they depend on; but it repeats a cached result only if the files that a test looked at have not changed.
var watchSources = sync.OnceValue(func() error {
	return filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && d.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		if slices.Contains([]string{".go", ".c", ".h", ".mod", ".sum"}, filepath.Ext(path)) {
			_, err = os.Stat(path)
		}
		return err
	})
})

// world is one test's surroundings: an empty temporary directory, and a mark in the environment by
// which processes that the test started are found.
type world struct {
	t    testing.TB
	tmp  string
	home string // for the sockets and the secret of processes that are told no address, in place of the machine's
	mark string

	program string // in place of the tests' own; "": that
}

// newWorld returns a world that checks at the end of the test that nothing is left in it.
func newWorld(t testing.TB) *world {
	t.Helper()
	if err := watchSources(); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "tw") // t.TempDir would be too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("", "tr")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, tmp: tmp, home: run, mark: "TEST_WORLD=" + filepath.Base(tmp)}
	t.Cleanup(func() {
		w.empty()
		os.RemoveAll(tmp)
		os.RemoveAll(run)
	})
	return w
}

// empty fails the test if a process of this world lives or its temporary directory holds anything.
func (w *world) empty() {
	w.t.Helper()
	for _, pid := range w.processes() {
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		w.t.Errorf("process %d is left behind: %s", pid, bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	entries, err := os.ReadDir(w.tmp)
	if err != nil {
		w.t.Error(err)
	}
	for _, e := range entries {
		w.t.Errorf("%s is left behind in the temporary directory", e.Name())
	}
}

// processes returns the ids of the living processes of this world.
func (w *world) processes() []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err != nil || !bytes.Contains(env, []byte(w.mark+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil && pid != os.Getpid() && !zombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// role returns the ids of the world's processes that run a command of tandem.
func (w *world) role(command string) []int {
	var pids []int
	for _, pid := range w.processes() {
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := bytes.Split(cmd, []byte{0}); len(args) > 1 && string(args[1]) == command {
			pids = append(pids, pid)
		}
	}
	return pids
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "Z")
}

// command returns a command of tandem in this world, not started.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cmp.Or(w.program, program), args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+w.tmp, "XDG_RUNTIME_DIR="+w.home, w.mark)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// lab runs a command of tandem-lab to its end.
func (w *world) lab(args ...string) ended {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := w.command(ctx, args...)
	cmd.Path, cmd.Args[0] = labProgram, labProgram
	return w.wait(cmd)
}

// labOK runs a command of tandem-lab that must succeed.
func (w *world) labOK(args ...string) ended {
	w.t.Helper()
	e := w.lab(args...)
	if e.code != 0 {
		w.t.Fatalf("tandem-lab %s: exit code %d: %s", strings.Join(args, " "), e.code, e.stderr)
	}
	return e
}

// ended is how a command ended.
type ended struct {
	stdout, stderr string
	code           int // 128+n after signal n that it did not handle
}

// run runs a command to its end, at most a minute.
func (w *world) run(args ...string) ended { return w.feed("", args...) }

// feed is run with stdin.
func (w *world) feed(stdin string, args ...string) ended {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := w.command(ctx, args...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	return w.wait(cmd)
}

func (w *world) wait(cmd *exec.Cmd) ended {
	w.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("%v: %v", cmd.Args, err)
	}
	e := ended{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	if st := cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signaled() {
		e.code = 128 + int(st.Signal())
	}
	return e
}

// ok runs a command that must succeed, and returns what it printed.
func (w *world) ok(args ...string) ended {
	w.t.Helper()
	e := w.run(args...)
	if e.code != 0 {
		w.t.Fatalf("tandem %s: exit code %d: %s", strings.Join(args, " "), e.code, e.stderr)
	}
	return e
}

// generation is the part of generate's JSON that tests look at.
type generation struct {
	Text         string  `json:"text"`
	Tokens       []int32 `json:"tokens"`
	PromptTokens int     `json:"prompt_tokens"`
	FinishReason string  `json:"finish_reason"`
	Stats        struct {
		Rounds          int     `json:"rounds"`
		Drafted         int     `json:"drafted"`
		Accepted        int     `json:"accepted"`
		PlainRounds     int     `json:"plain_rounds"`
		Reopened        int     `json:"reopened"`
		TokensPerRound  float64 `json:"tokens_per_round"`
		TokensPerSecond float64 `json:"tokens_per_second"`
		PrefillMS       float64 `json:"prefill_ms"`
		DecodeMS        float64 `json:"decode_ms"`
	} `json:"stats"`
}

// generate runs `tandem generate --json` and checks what holds for every generation.
func (w *world) generate(args ...string) generation {
	w.t.Helper()
	e := w.ok(append([]string{"generate", "--json"}, args...)...)
	return w.decode(e.stdout)
}

func (w *world) decode(out string) generation {
	w.t.Helper()
	var g generation
	if err := json.Unmarshal([]byte(out), &g); err != nil {
		w.t.Fatalf("generate --json printed %q: %v", out, err)
	}
	if s := g.Stats; s.Accepted+s.Rounds != len(g.Tokens) {
		w.t.Errorf("%d accepted and %d rounds, but %d tokens", s.Accepted, s.Rounds, len(g.Tokens))
	}
	return g
}

// prompt is one line of test/testdata/prompts.jsonl.
type prompt struct {
	ID     string `json:"id"`
	Domain string `json:"domain"`
	Prompt string `json:"prompt"`
}

// prompts returns all test prompts.
func prompts(t testing.TB) []prompt {
	t.Helper()
	data, err := os.ReadFile("testdata/prompts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var all []prompt
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var p prompt
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}
