package files

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file, pipe, socket, link := filepath.Join(dir, "f"), filepath.Join(dir, "p"), filepath.Join(dir, "s"), filepath.Join(dir, "l")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{pipe: "a pipe", link: "a pipe", dir: "a directory", "/dev/zero": "a device"} {
		done := make(chan error, 1)
		go func() {
			_, err := Open(path)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.As(err, new(*Irregular)) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v: want %q", path, err, says)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: waits", path)
		}
	}
	if _, err := Open(socket); err == nil { // the kernel refuses it
		t.Error("a socket is opened")
	}
	if b, err := ReadFile(file, 4); err != nil || string(b) != "text" {
		t.Errorf("a file: %q, %v", b, err)
	}
	if _, err := ReadFile(file, 3); err == nil || !strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("a file that is too long: %v", err)
	}
	if b, err := ReadFile(os.DevNull, 4); err != nil || len(b) != 0 {
		t.Errorf("the null device: %q, %v", b, err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
