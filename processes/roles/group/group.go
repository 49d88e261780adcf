// Package group runs gateway, drafter and verifier as children of this process.
package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// Config says which processes to start.
type Config struct {
	RunDir string        // directory below which the run directory is made; "": the temporary directory
	Notes  string        // folder in which run directories are noted, so that those of killed owners go; "": none
	Addr   string        // the gateway's address as clients dial it; "": a socket in the run directory
	Grace  time.Duration // for calls in progress when the processes are told to stop
	Stderr io.Writer
	Line   func(name, line string) string // writes a child's line, as supervise.GroupConfig.Line
	// Specs returns the processes' command lines, the gateway's first: it is stopped first. Files that Specs writes into the run
	// directory, as Configured does, are removed with it. It is called again if somebody has removed the directory, and must return
	// the same command lines; what files say may have changed.
	Specs func(dir *supervise.RunDir, addr string) ([]supervise.Spec, error)
	// Dial says how clients reach the gateway at addr.
	Dial    func(addr string) ([]client.Option, error)
	Heard   func(p *Processes, line string) // called with what the gateway tells, its calls one after the other; nil: dropped
	Drafts  bool                            // there is a drafter: wait for it
	HTTPURL string                          // where to wait for the gateway's HTTP server; other than http://…: do not wait
	Weights *os.File                        // that Specs names, closed at the end; nil: none
}

// Processes are gateway, drafter and verifier as children of this process, with a run directory of their own.
type Processes struct {
	Dir   *supervise.RunDir
	Addr  string // the gateway's, as clients dial it
	group *supervise.Group

	weights *os.File
}

// exitTime is how long a process may take to end after its calls: most of it is for its last traces.
const exitTime = 4 * time.Second

// Start starts the processes and returns when all serve but the late ones (supervise.Spec.Late). The caller must Stop them; after an
// error none is left.
func Start(ctx context.Context, c Config) (*Processes, error) {
	debug.FreeOSMemory() // this process has looked into all models, and only waits from now on
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := supervise.NewRunDir(c.RunDir)
	if err != nil {
		return nil, err
	}
	if c.Notes != "" {
		dir.Note(c.Notes)
	}
	p := &Processes{Dir: dir, Addr: c.Addr, weights: c.Weights}
	if p.Addr == "" {
		p.Addr = "unix://" + dir.File("gateway.sock")
	}
	heard := func(name, line string) {
		if c.Heard != nil && name == "gateway" {
			c.Heard(p, line)
		}
	}
	p.group = supervise.New(supervise.GroupConfig{Program: program, Heard: heard, Env: childEnv(os.Environ(), dir.Path),
		Stderr: c.Stderr, Line: c.Line, Grace: c.Grace + exitTime, Before: func() error {
			restored, err := dir.Restore()
			if restored {
				_, err = c.Specs(dir, p.Addr) // for the files
			}
			return err
		}})
	specs, err := c.Specs(dir, p.Addr)
	if err == nil {
		err = p.group.Start(ctx, specs...)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	if options, err := c.Dial(p.Addr); c.Drafts && err == nil {
		awaitDrafters(ctx, p.Addr, options)
	}
	awaitHTTP(ctx, c.HTTPURL)
	return p, nil
}

// Configured writes the settings of a process into a file of the run directory, for this user alone since keys may be among them, and
// returns the command line of the process that reads it.
func Configured(dir *supervise.RunDir, role string, settings []byte) ([]string, error) {
	file := dir.File(role + ".yaml")
	return []string{role, "--config", file, fmt.Sprint("--ready-fd=", supervise.ReadyFD), fmt.Sprint("--pulse-fd=", supervise.PulseFD)},
		os.WriteFile(file, settings, 0o600)
}

// End ends one of the processes for good, by its name. The others go on.
func (p *Processes) End(name string) { p.group.End(name) }

// Add starts a further process: see supervise.Group.Add.
func (p *Processes) Add(s supervise.Spec) { p.group.Add(s) }

// Again starts one of the processes anew, by its name, with what its file of settings says now. The others go on.
func (p *Processes) Again(name string) { p.group.Again(name) }

// Failed receives one error when a process is gone for good.
func (p *Processes) Failed() <-chan error { return p.group.Failed() }

// Pids returns the process ids by name.
func (p *Processes) Pids() map[string]int { return p.group.Pids() }

// Pool returns the address of the pool, without its secret.
func (p *Processes) Pool() string {
	access, _ := pool.FromFile(PoolFile(p.Dir))
	return access.URL
}

// PoolFile is where the gateway writes how to reach the pool.
func PoolFile(dir *supervise.RunDir) string { return dir.File("pool") }

// During calls do, then stops the processes, at once if force ends. do's ctx also ends when a process is gone for good,
// with the reason as its cause. If do fails after its ctx has ended, During returns the cause.
func (p *Processes) During(ctx, force context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case err := <-p.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err := do(ctx)
	if gone := context.Cause(ctx); err != nil && gone != nil {
		err = gone
	}
	cancel(nil)
	<-watched
	return errors.Join(err, p.Stop(force))
}

// settleTime is how long Settle waits: a disk writes the weights of 7 billion parameters in less.
const settleTime = 15 * time.Second

// Settle waits, for settleTime at most, until the processes have kept what a later start will read. It calls say if they have not yet.
func (p *Processes) Settle(ctx context.Context, say func()) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	p.group.Settle(ctx, say)
}

// Stop ends the processes in order, at once if force ends, and removes the run directory.
func (p *Processes) Stop(force context.Context) error {
	p.group.Stop(force)
	if p.weights != nil {
		p.weights.Close()
	}
	return p.Dir.Close()
}

// kill ends the processes at once and removes the run directory.
func (p *Processes) kill() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	return p.Stop(now)
}

// largeDraft is the size of a file, in bytes, from which on a draft model takes all cores. Reading 64 MiB takes one core some 6 ms,
// against which it costs little to divide a pass among threads.
const largeDraft = 64 << 20

// Large reports whether a draft whose file has so many bytes takes all cores.
func Large(draft int64) bool { return draft >= largeDraft }

// Split divides the cores between verifier and drafter; numbers other than 0 stay. draft is the size of the largest file of a draft in
// bytes; 0: there is no drafter. A small draft takes a quarter of the cores, at least one. A large one takes all, as it drafts in turn with
// the verifier: Qwen2.5-Coder 0.5B has a pass of one row in 20 ms on two cores and in 35 ms on one. The verifier takes all cores, unless
// it finds at its start that it is about as quick without a small draft's (--spare-threads): drafting and verifying mostly
// take turns, and drafting ahead is bounded by what it saves (drafter.Config.AheadGain). On 2 cores this brings 1.4 times the tokens per
// second of one core each (docs/guides/tune.md).
func Split(cores int, draft int64, drafter, verifier int) (forDrafter, forVerifier int) {
	switch {
	case draft == 0 || drafter != 0:
	case Large(draft):
		drafter = cores
	default:
		drafter = max(1, cores/4)
	}
	if verifier == 0 {
		verifier = cores
	}
	return drafter, verifier
}

// childEnv returns the environment for the children: their settings come from files alone, and their
// temporary files go to the run directory.
func childEnv(env []string, tmp string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "TANDEM_") && !strings.HasPrefix(kv, "TMPDIR=") {
			out = append(out, kv)
		}
	}
	return append(out, "TMPDIR="+tmp)
}
