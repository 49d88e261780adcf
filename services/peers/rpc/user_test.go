package rpc

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-llm/tandem"
)

// listenAs listens on a socket as another user, whom this process can become because it is root's.
func listenAs(t *testing.T, uid int, path string) net.Listener {
	t.Helper()
	runtime.LockOSThread() // the user is the thread's
	defer runtime.UnlockOSThread()
	become := func(uid int) {
		if _, _, failed := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); failed != 0 {
			t.Fatal(failed)
		}
	}
	become(uid)
	l, err := net.Listen("unix", path)
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestSocketOfAnotherUser: no byte is sent over a socket that another user has made, wherever its address came from.
func TestSocketOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to listen as another user")
	}
	dir, err := os.MkdirTemp("", "rpc") // everybody may enter it, unlike t.TempDir
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l := listenAs(t, 65534, path)
	got := make(chan int, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := c.Read(make([]byte, 1000))
			got <- n
			_ = c.Close()
		}
	}()
	credentials := new(Credentials)
	dialers := map[string]func(string) (*grpc.ClientConn, error){"dial": Dial, "a role": credentials.Dialer(Drafter),
		"a health check": credentials.DialListener}
	for name, dial := range dialers {
		c, err := dial("unix://" + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = grpc_health_v1.NewHealthClient(c).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if tandem.KindOf(err) != tandem.Unavailable || !strings.Contains(err.Error(), "another user") {
			t.Errorf("%s: %v: want it refused", name, err)
		}
		if n := <-got; n > 0 {
			t.Errorf("%s: another user was sent %d bytes", name, n)
		}
		_ = c.Close()
	}
}

// TestSocketsInOpenFolders: nothing listens on a socket that another user could replace, directly or by a folder above.
func TestSocketsInOpenFolders(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	below := filepath.Join(open, "below")
	if err := errors.Join(os.MkdirAll(below, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, below} {
		l, err := Listen("unix://" + filepath.Join(dir, "s"))
		if err == nil {
			_ = l.Close()
		}
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "0777") {
			t.Errorf("%s: %v: want it refused", dir, err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", open)
	if dir, err := Folder(); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("%s, %v: want it refused", dir, err)
	}
}
