package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter runs this program again, with other arguments, as the first process of namespaces of its own: with it, all boxes end. The error
// wraps ErrNamespaces if there can be none here. code is the program's exit code.
func Enter(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		own := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = own(os.Getuid()), own(os.Getgid())
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNamespaces, err)
	}
	err = cmd.Wait()
	return cmd.ProcessState.ExitCode(), err
}

// ErrNamespaces says that a campaign cannot be had here.
var ErrNamespaces = errors.New("no namespaces of networks, mounts and processes can be made here: " +
	"a campaign needs root, or a kernel that lets users make them")

// Private is what the program does first that Enter has started: its mounts are its own, and /proc shows its processes.
func Private() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}
