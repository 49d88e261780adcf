package files

import (
	"errors"
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
	// A link in a folder of everybody can be pointed elsewhere, wherever it leads now; so can one on the way of another.
	loose, first := filepath.Join(open, "loose"), filepath.Join(private, "first")
	for _, l := range [][2]string{{private, loose}, {loose, first}} {
		if err := os.Symlink(l[0], l[1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{open, filepath.Join(open, "not", "there"), folder("open/below", 0o700), link, loose, first,
		filepath.Join(first, "below"), private + "/link/../private"} {
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
	theirs := filepath.Join(sticky, "theirs")
	if err := os.Symlink(private, theirs); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := Trusted(theirs); err == nil || !errors.Is(err, ErrUntrusted) {
		t.Errorf("another user's link in a sticky folder: %v: want it refused", err)
	}
}

// TestPrivate: a folder is made for this user alone; one that others could read is closed, and one that they could change is refused, as is
// one below it.
func TestPrivate(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	if err := errors.Join(os.Mkdir(at("read"), 0o755), os.Mkdir(at("open"), 0o700), os.Chmod(at("open"), 0o777),
		os.WriteFile(at("file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{at("new/below"), at("read")} {
		if err := Private(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, st, err)
		}
	}
	for _, dir := range []string{at("open"), at("open/below")} {
		if err := Private(dir); !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v: want it refused", dir, err)
		}
	}
	if _, err := os.Stat(at("open/below")); err == nil {
		t.Error("a folder was made below one that others can change")
	}
	if err := Private(at("file")); err == nil {
		t.Error("a file is taken for a folder")
	}
}
