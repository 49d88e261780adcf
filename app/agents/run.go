package agents

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
)

// Look returns the path of p's program in PATH. Errors: Unavailable, with how it is installed.
func (p Program) Look() (string, error) {
	path, err := exec.LookPath(p.Binary)
	if err != nil {
		return "", tandem.Errorf("", tandem.Unavailable, "%s is not in PATH: %s installs %s", p.Binary, p.Install, p.Title)
	}
	return path, nil
}

// stopTime is how long a program may take to end after SIGTERM.
const stopTime = 5 * time.Second

// Running is a program that runs with this process's standard input and outputs. Under a terminal it is in the same group of processes as
// this one: it gets Ctrl-C, Ctrl-Z and changes of the terminal's size itself. Without one it leads a group of its own.
type Running struct {
	cmd   *exec.Cmd
	group bool // it leads a group
}

// Start starts p's program at path with p.Args, then args, and with p.Environ(environ). The caller must Wait. Errors: Unavailable.
func (p Program) Start(path string, args []string, environ []string) (*Running, error) {
	r := &Running{cmd: exec.Command(path, append(append([]string{}, p.Args...), args...)...), group: !terminal()}
	r.cmd.Args[0] = p.Binary
	r.cmd.Env = p.Environ(environ)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: r.group}
	if err := r.cmd.Start(); err != nil {
		return nil, tandem.Errorf("", tandem.Unavailable, "starting %s: %w", p.Binary, err)
	}
	return r, nil
}

// terminal reports whether this process has a controlling terminal.
func terminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// Interrupt passes SIGINT on to the program, unless the terminal has sent it to both.
func (r *Running) Interrupt() {
	if r.group {
		r.signal(syscall.SIGINT)
	}
}

func (r *Running) signal(s syscall.Signal) {
	pid := r.cmd.Process.Pid
	if r.group {
		pid = -pid
	}
	_ = syscall.Kill(pid, s)
}

// Wait waits for the program's end and returns its status as a shell gives it: 128+n after signal n. When ctx ends, the program gets
// SIGTERM, and SIGKILL if it is still running after stopTime or when force ends. Call it once. Errors: Unavailable.
func (r *Running) Wait(ctx, force context.Context) (status int, err error) {
	ended := make(chan error, 1)
	go func() { ended <- r.cmd.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = r.stop(ended, force)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, tandem.Errorf("", tandem.Unavailable, "%s: %w", r.cmd.Args[0], err)
	}
	if s, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal()), nil
	}
	return r.cmd.ProcessState.ExitCode(), nil
}

// stop ends the program and, where it leads a group, what it has started.
func (r *Running) stop(ended <-chan error, force context.Context) error {
	r.signal(syscall.SIGTERM)
	late := time.NewTimer(stopTime)
	defer late.Stop()
	select {
	case err := <-ended:
		if r.group {
			r.signal(syscall.SIGKILL)
		}
		return err
	case <-late.C:
	case <-force.Done():
	}
	r.signal(syscall.SIGKILL)
	return <-ended
}
