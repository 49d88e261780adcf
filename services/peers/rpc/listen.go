package rpc

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// maxSocketPath is what sockaddr_un holds, less its terminating zero.
const maxSocketPath = 107

// ownFiles is how many files a process may have open besides the connections of its clients: those to its peers and the pool, sockets,
// shared memory, models.
const ownFiles = 48

// LeastFiles is the least number of open files with which a process works.
const LeastFiles = ownFiles + 16

// Files returns how many files this process may have open (RLIMIT_NOFILE).
func Files() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// Room returns how many connections a listener may have at once: most, or fewer if so many took more than 1/share of the files that this
// process may have open.
func Room(most, share int) int { return max(1, min(most, (Files()-ownFiles)/share)) }

// Listen opens a listener on "unix:///absolute/path" or "host:port"; an empty host is 127.0.0.1. A
// socket file that nobody serves any more is replaced; a new one is accessible to its owner alone, in a folder where no other user can
// replace it, and removed when the listener closes. Errors name the address and what would be right.
func Listen(addr string) (net.Listener, error) {
	path, isUnix, err := split(addr)
	if err != nil {
		return nil, err
	}
	if !isUnix {
		l, err := net.Listen("tcp", path)
		return l, listenError(addr, err)
	}
	if err := files.Trusted(filepath.Dir(path)); err != nil {
		return nil, tandem.Errorf("listen", tandem.Invalid, "%s: %w", addr, err)
	}
	// The mode is set before the file is there: nobody can connect in between.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); failed != nil {
			err = failed
		}
		return err
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(path) && os.Remove(path) == nil {
		l, err = private.Listen(context.Background(), "unix", path)
	}
	if err != nil {
		return nil, listenError(addr, err)
	}
	if err := os.Chmod(path, 0o600); err != nil { // where the system does not take it from there
		_ = l.Close()
		return nil, listenError(addr, err)
	}
	return l, nil
}

// CheckAddress refuses an address that Listen and Dial could not take. Errors: Invalid.
func CheckAddress(addr string) error {
	_, _, err := split(addr)
	return err
}

// split returns the socket path, or host:port with the default host filled in.
func split(addr string) (rest string, isUnix bool, err error) {
	const op = "address"
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		switch {
		case !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0:
			return "", true, tandem.Errorf(op, tandem.Invalid, "%q: want unix:///absolute/path", addr)
		case len(path) > maxSocketPath:
			return "", true, tandem.Errorf(op, tandem.Invalid, "%s: path has %d bytes: a socket path holds %d: choose a shorter directory",
				addr, len(path), maxSocketPath)
		}
		return path, true, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" || strings.Contains(addr, "/") {
		return "", false, tandem.Errorf(op, tandem.Invalid, "%q: want host:port or unix:///absolute/path", addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), false, nil
}

// abandoned reports whether path is a socket that nobody listens on.
func abandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	c, err := net.DialTimeout("unix", path, 200*time.Millisecond)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func listenError(addr string, err error) error {
	const op = "listen"
	var cause error = err
	var errno syscall.Errno
	if errors.As(err, &errno) {
		cause = errno
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		return tandem.Errorf(op, tandem.Unavailable, "%s: address in use: stop what listens there or choose another", addr)
	case errors.Is(err, syscall.ENOENT):
		return tandem.Errorf(op, tandem.Invalid, "%s: directory does not exist", addr)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return tandem.Errorf(op, tandem.Invalid, "%s: %w: want an address this user may listen on", addr, cause)
	}
	return tandem.Errorf(op, tandem.Unavailable, "%s: %w", addr, cause)
}

// local reports whether only this host can reach l.
func local(l net.Listener) bool {
	tcp, ok := l.Addr().(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// address returns l's address as Listen and Dial take it.
func address(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix://" + l.Addr().String()
	}
	return l.Addr().String()
}
