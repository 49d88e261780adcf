package campaign

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	restartAfter = 100 * time.Millisecond
	diskSize     = "size=160m" // of each of a box's writable folders: a store of prefixes wants 128 MiB to be left
)

// plan is what a box's first process is told on its stdin.
type plan struct {
	Root   string              // an empty folder, for the box's file system
	Folder string              // the box's own files, to be read at /lab/box
	Bin    string              // programs, at /lab/bin
	Models string              // at /lab/models
	Run    map[string][]string // command lines by the names of processes
}

// order is what a box's first process is told later.
type order struct {
	Name    string
	Program string // with which the process is started from now on
}

// news is what a box's first process says on its stdout.
type news struct {
	Name  string
	PID   int    // in the box
	Event string // begun, ready, died
	How   string
}

// Inside is the first process of a box. It reads a plan from in, makes the box's file system, and keeps the processes of the plan running
// until in ends. It says on out what becomes of them.
func Inside(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	var p plan
	if err := readLine(lines, &p); err != nil {
		return fmt.Errorf("plan of the box: %w", err)
	}
	if err := p.mount(); err != nil {
		return err
	}
	b := &inside{out: json.NewEncoder(out), programs: map[string]string{}}
	for name, args := range p.Run {
		go b.keep(name, args)
	}
	for {
		var o order
		switch err := readLine(lines, &o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("order to the box: %w", err)
		}
		b.mu.Lock()
		b.programs[o.Name] = o.Program
		b.mu.Unlock()
	}
}

func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

type inside struct {
	mu       sync.Mutex
	out      *json.Encoder
	programs map[string]string // by process, where not that of the plan
}

func (b *inside) say(n news) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.out.Encode(n) // nobody reads it when the campaign is over
}

// keep starts a process again and again.
func (b *inside) keep(name string, args []string) {
	for {
		how := b.once(name, args)
		b.say(news{Name: name, Event: "died", How: how})
		time.Sleep(restartAfter)
	}
}

// once runs a process to its end, and returns how that was.
func (b *inside) once(name string, args []string) string {
	b.mu.Lock()
	path := b.programs[name]
	b.mu.Unlock()
	if path == "" {
		path = args[0]
	}
	ready, child, err := os.Pipe()
	if err != nil {
		return err.Error()
	}
	defer ready.Close()
	cmd := exec.Command(path, args[1:]...)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{child}
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/root", "XDG_RUNTIME_DIR=/run", "GOTRACEBACK=all"}
	err = cmd.Start()
	child.Close()
	if err != nil {
		return err.Error()
	}
	b.say(news{Name: name, PID: cmd.Process.Pid, Event: "begun"})
	if n, _ := ready.Read(make([]byte, 1)); n > 0 {
		b.say(news{Name: name, PID: cmd.Process.Pid, Event: "ready"})
	}
	if err := cmd.Wait(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}

// mount makes the box's file system from nothing: the system's programs and libraries and the files of the campaign, all read-only, and
// memory of its own for what is written.
func (p plan) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("box", p.Root, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount %s: %w", p.Root, err)
	}
	binds := map[string]string{p.Folder: "/lab/box", p.Bin: "/lab/bin", p.Models: "/lab/models"}
	for _, system := range []string{"/usr", "/lib", "/lib64", "/bin", "/sbin"} {
		if _, err := os.Stat(system); err == nil {
			binds[system] = system
		}
	}
	for from, to := range binds {
		if err := bind(from, p.Root+to); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/tmp", "/run", "/dev", "/dev/shm", "/root", "/proc"} {
		kind, data := "tmpfs", diskSize
		if dir == "/proc" {
			kind, data = "proc", ""
		}
		if err := os.MkdirAll(p.Root+dir, 0o700); err != nil {
			return err
		}
		if err := unix.Mount(kind, p.Root+dir, kind, 0, data); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, device := range []string{"/dev/null", "/dev/zero", "/dev/urandom"} {
		if err := os.WriteFile(p.Root+device, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(device, p.Root+device, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show %s: %w", device, err)
		}
	}
	return enter(p.Root)
}

// bind shows the folder from, read-only, at to.
func bind(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
	if err == nil {
		err = unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	if err != nil {
		return fmt.Errorf("show %s at %s: %w", from, to, err)
	}
	return nil
}

// enter makes root the root of the file system, and forgets what was there before.
func enter(root string) error {
	old := filepath.Join(root, "old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("make %s the root: %w", root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("forget the host's files: %w", err)
	}
	return os.Remove("/old")
}
