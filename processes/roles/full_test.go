package roles

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/pool"
)

// small mounts a file system of 64 KiB that nobody else sees, and returns its folder and a function that fills it.
func small(t *testing.T) (dir string, fill func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	runtime.LockOSThread() // the thread ends with the test, and its mounts with it
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		t.Skipf("no mounts of its own: %v", err)
	}
	dir = t.TempDir()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Skipf("no mounts of its own: %v", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir, func() {
		f, err := os.Create(filepath.Join(dir, "full"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(bytes.Repeat([]byte{1}, 1024))
		}
	}
}

// TestPoolFileOnAFullDisk: the file of a pool is written in place of an earlier one, whatever the lengths of both, when the disk is full;
// where there is none, the error says that the disk is, and that may be tried again.
func TestPoolFileOnAFullDisk(t *testing.T) {
	dir, fill := small(t)
	path := filepath.Join(dir, "pool")
	if err := WritePoolFile(path, pool.Access{URL: "nats://127.0.0.1:99", Token: strings.Repeat("a", 26)}); err != nil {
		t.Fatal(err)
	}
	fill()
	for _, url := range []string{"nats://127.0.0.1:45678", "nats://127.0.0.1:1", "tls://a-long-name-of-a-box.example:45678"} {
		if err := WritePoolFile(path, pool.Access{URL: url, Token: strings.Repeat("b", 26)}); err != nil {
			t.Fatal(err)
		}
		if got, err := pool.FromFile(path); err != nil || got.URL != url {
			t.Errorf("%+v, %v: want %s", got, err, url)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
	}
	err := WritePoolFile(filepath.Join(dir, "other"), pool.Access{URL: "nats://127.0.0.1:1", Token: "x"})
	if tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("a new file: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
