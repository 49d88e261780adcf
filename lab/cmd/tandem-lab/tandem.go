package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// tandemFlags say which tandem is measured, and how it runs.
type tandemFlags struct {
	Tandem string `help:"The program tandem (default: one beside this program, else one that is built from the checkout)." placeholder:"FILE"`
	Up     string `help:"Flags of 'tandem up', such as '--drafter-threads 1'." placeholder:"FLAGS"`
}

// requestFlags shape the requests.
type requestFlags struct {
	MaxTokens   int     `help:"Largest number of tokens to generate." default:"128"`
	Temperature float64 `help:"0 takes the likeliest token; more is more random." default:"0"`
	Seed        uint64  `help:"Seed of the draws." default:"0"`
	IgnoreEOS   bool    `name:"ignore-eos" help:"Go on beyond the end of the text."`
	Strategy    string  `help:"Who drafts and how much: ${strategies}." default:"planner" placeholder:"NAME"`
	Tree        string  `help:"Bounds of the drafted trees." placeholder:"N/D/W"`
}

// request returns the request for a prompt, validated.
func (f requestFlags) request(prompt string) (r tandem.Request, err error) {
	r = tandem.Request{Prompt: prompt, MaxTokens: f.MaxTokens, IgnoreEOS: f.IgnoreEOS, Strategy: tandem.Strategy(f.Strategy),
		Vote: tandem.VoteAuto, Sampling: tandem.Sampling{Temperature: f.Temperature, TopP: 1, Seed: f.Seed}}
	r.Bounds = tandem.DefaultBounds(r.Strategy)
	if f.Tree != "" {
		if r.Bounds, err = tandem.ParseBounds(f.Tree); err != nil {
			return r, err
		}
	}
	return r, r.Validate(tandem.Limits{Strategies: strategy.Names()})
}

// start starts 'tandem up' with --up and more flags, calls do with its processes, and ends them. do's ctx also ends when they are gone.
func (f tandemFlags) start(ctx context.Context, a *app, flags []string, do func(context.Context, talk.Processes) error) error {
	dir, err := os.MkdirTemp("", "tandem-lab")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := f.program(ctx, dir)
	if err != nil {
		return err
	}
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	args := append([]string{"up", "--json", "--listen", "unix://" + filepath.Join(dir, "gateway.sock"), "--http", "off",
		"--set", "grace=0s"},
		append(strings.Fields(f.Up), flags...)...)
	up := exec.Command(program, args...)
	var said lastLine
	up.Stderr = io.MultiWriter(&said, a.stderr)
	out, err := up.StdoutPipe()
	if err == nil {
		err = up.Start()
	}
	if err != nil {
		return err
	}
	var result struct {
		Gateway string         `json:"gateway"`
		Drafts  []string       `json:"drafts"`
		PIDs    map[string]int `json:"pids"`
	}
	ended := make(chan error, 1)
	stopped := context.AfterFunc(ctx, func() { _ = up.Process.Signal(syscall.SIGTERM) })
	defer stopped()
	wrong := json.NewDecoder(out).Decode(&result)
	go func() {
		_, _ = io.Copy(io.Discard, out)
		err := up.Wait()
		ended <- err
		gone(tandem.Errorf("", tandem.Unavailable, "tandem up has ended: %s", said.text()))
	}()
	if wrong != nil {
		<-ended
		return tandem.Errorf("", tandem.Unavailable, "%s", strings.TrimPrefix(said.text(), "tandem: "))
	}
	err = connect(ctx, result.Gateway, result.PIDs, result.Drafts, do)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	_ = up.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		_ = up.Process.Kill()
		err = errors.Join(err, tandem.Errorf("", tandem.Internal, "tandem up did not stop"))
	}
	return err
}

// connect calls do with the processes behind a gateway.
func connect(ctx context.Context, addr string, pids map[string]int, drafts []string, do func(context.Context, talk.Processes) error) error {
	conn, err := client.Dial(addr)
	if err != nil {
		return talk.Error(err)
	}
	defer conn.Close()
	return do(ctx, talk.Processes{Gateway: conn, Of: func() map[string]int { return pids }, Draft: drafts})
}

// program returns the path of the program to measure; if it must be built, in dir.
func (f tandemFlags) program(ctx context.Context, dir string) (string, error) {
	if f.Tandem != "" {
		return f.Tandem, nil
	}
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "tandem")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	checkout, ok := find.Checkout()
	if !ok {
		return "", tandem.Errorf("", tandem.Invalid, "no tandem to measure: give --tandem FILE, or run inside a checkout")
	}
	program := filepath.Join(dir, "tandem")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/tandem")
	build.Dir = checkout
	if out, err := build.CombinedOutput(); err != nil {
		return "", tandem.Errorf("", tandem.Unavailable, "building tandem: %w: %s", err, out)
	}
	return program, nil
}

// lastLine keeps the last line that was written. It is read after the last write.
type lastLine struct{ line string }

// Write implements io.Writer.
func (l *lastLine) Write(b []byte) (int, error) {
	if lines := strings.Split(strings.TrimSpace(string(b)), "\n"); lines[len(lines)-1] != "" {
		l.line = lines[len(lines)-1]
	}
	return len(b), nil
}

func (l *lastLine) text() string { return l.line }
