package shm

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asOther names the variable that makes TestOtherUser the other user's process.
const asOther = "TEST_SHM_SOCKET"

// TestOtherUser: a process of another user is given no descriptor, even by a socket that it may connect to.
func TestOtherUser(t *testing.T) {
	if socket := os.Getenv(asOther); socket != "" {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatalf("cannot connect: %v: the test shows nothing", err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if got, err := io.ReadAll(c); len(got) > 0 {
			t.Errorf("read %q, %v: want nothing", got, err)
		}
		r, err := Attach(context.Background(), socket, Verifier)
		if err == nil {
			_ = r.Close()
			t.Fatal("another user was given the segment")
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	dir, err := os.MkdirTemp("", "shm") // everybody may enter it, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, socket := filepath.Join(dir, "test"), filepath.Join(dir, "s")
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, self, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	o, err := New(SegmentConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	l, err := net.Listen("unix", socket)
	if err == nil {
		err = os.Chmod(socket, 0o666)
	}
	if err == nil {
		err = o.Serve(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(program, "-test.run=^TestOtherUser$", "-test.v")
	other.Env, other.Dir = append(os.Environ(), asOther+"="+socket), dir
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := other.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestOtherUser") {
		t.Errorf("as another user: %v\n%s", err, out)
	}
	attach(t, socket) // while one of the same user is given it
}
