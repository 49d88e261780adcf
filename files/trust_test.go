package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTrusted(t *testing.T) {
	base := t.TempDir()
	folder := func(name string, mode os.FileMode) string {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	private, sticky, open := folder("private", 0o755), folder("sticky", 0o777|os.ModeSticky), folder("open", 0o777)
	link := filepath.Join(private, "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{private, sticky, filepath.Join(private, "not", "there"), folder("sticky/below", 0o700), os.TempDir()} {
		if err := Trusted(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for _, dir := range []string{open, filepath.Join(open, "not", "there"), folder("open/below", 0o700), link} {
		if err := Trusted(dir); err == nil || !strings.Contains(err.Error(), "0777") {
			t.Errorf("%s: %v: want it refused", dir, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give a folder to another user")
	}
	foreign := folder("foreign", 0o755)
	if err := os.Chown(foreign, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{foreign, folder("foreign/below", 0o700)} {
		if err := Trusted(dir); err == nil || !strings.Contains(err.Error(), "65534") {
			t.Errorf("%s: %v: want it refused", dir, err)
		}
	}
}
