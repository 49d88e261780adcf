package prefixes

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestDamaged: whatever happened to a file, it is not used, it is removed, and one line says so.
func TestDamaged(t *testing.T) {
	const size = segmentBytes + 1000
	for what, tenant := range tenants {
		for name, spoil := range map[string]func(b []byte) []byte{
			"empty":             func([]byte) []byte { return nil },
			"cut":               func(b []byte) []byte { return b[:len(b)-1] },
			"cut in its header": func(b []byte) []byte { return b[:50] },
			"longer":            func(b []byte) []byte { return append(b, 0) },
			"foreign":           func(b []byte) []byte { return bytes.Repeat([]byte("hello"), len(b)/5) },
			"of the same size":  func(b []byte) []byte { return make([]byte, len(b)) },
			"another version":   func(b []byte) []byte { b[14] = '2'; return b },
			"another kind":      func(b []byte) []byte { copy(b[16:], State); return b },
			"other sealing":     func(b []byte) []byte { b[24] ^= 1; return b },
			"another name":      func(b []byte) []byte { b[40] ^= 1; return b },
			"another salt":      func(b []byte) []byte { b[saltAt] ^= 1; return b },
			"another sum":       func(b []byte) []byte { b[headBytes] ^= 1; return b },
			"a bit":             func(b []byte) []byte { b[len(b)-500] ^= 1; return b },
			"a bit at first":    func(b []byte) []byte { b[headBytes+2*sumBytes] ^= 1; return b },
			"segments swapped": func(b []byte) []byte {
				at := headBytes + 2*sumBytes
				one, two := bytes.Clone(b[at:at+1000]), bytes.Clone(b[len(b)-1000:])
				copy(b[at:], two)
				copy(b[len(b)-1000:], one)
				return b
			},
			"zeros at the end, as after a crash": func(b []byte) []byte { clear(b[len(b)/2:]); return b },
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				c, said := config(t.TempDir())
				of := open(t, c).Tenant(tenant)
				n := of.Names(text(1, 64))[0]
				write(t, of, n, Page, random(1, size))
				path := of.path(n, Page)
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, spoil(b), 0o600); err != nil {
					t.Fatal(err)
				}
				err = of.Read(n, Page, make([]byte, size))
				if !errors.Is(err, tandem.Corrupt) || said.lines() != 1 || of.Has(n, Page) {
					t.Errorf("read with %v, said %q, still there: %v", err, said, of.Has(n, Page))
				}
				if err := of.Read(n, Page, make([]byte, size)); !errors.Is(err, fs.ErrNotExist) || said.lines() != 1 {
					t.Errorf("again: %v", err)
				}
				write(t, of, n, Page, random(1, size))
				if err := of.Read(n, Page, make([]byte, size)); err != nil {
					t.Errorf("written again: %v", err)
				}
			})
		}
	}
}

// TestForeign: a file that was moved to another place, to another tenant's, or to a tenant without a key, is not used there.
func TestForeign(t *testing.T) {
	c, _ := config(t.TempDir())
	s := open(t, c)
	mine, theirs, everyone := s.Tenant("mine"), s.Tenant("theirs"), s.Tenant("")
	names := mine.Names(text(1, 128))
	const size = 1000
	for what, to := range map[string]struct {
		from, to *Tenant
		at       Name
		size     int
	}{
		"another page":               {mine, mine, names[1], size},
		"another tenant":             {mine, theirs, names[0], size},
		"a tenant without a key":     {mine, everyone, names[0], size},
		"from a tenant without keys": {everyone, mine, names[0], size},
		"another size":               {mine, mine, names[0], size - 1},
	} {
		write(t, to.from, names[0], Page, random(1, size))
		write(t, to.to, to.at, Page, random(1, size)) // makes the folder
		if err := os.Rename(to.from.path(names[0], Page), to.to.path(to.at, Page)); err != nil {
			t.Fatal(err)
		}
		if err := to.to.Read(to.at, Page, make([]byte, to.size)); !errors.Is(err, tandem.Corrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	dir := theirs.path(names[0], Page)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Read(names[0], Page, make([]byte, size)); err == nil {
		t.Error("a folder was read")
	}
}

// TestKilled: what a process that was killed while it wrote has left is neither used nor counted, and the next process
// removes it.
func TestKilled(t *testing.T) {
	c, _ := config(t.TempDir())
	of := open(t, c).Tenant("")
	n := of.Names(text(1, 64))[0]
	write(t, of, n, Page, random(1, 1000))
	b, err := os.ReadFile(of.path(n, Page))
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(of.dir, partPrefix+"1")
	if err := errors.Join(os.Remove(of.path(n, Page)), os.WriteFile(part, b[:500], 0o600)); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(part, old, old); err != nil {
		t.Fatal(err)
	}
	writer, err := os.Open(part)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(writer.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	next := open(t, c)
	if next.Tenant("").Has(n, Page) || next.total != 0 {
		t.Errorf("it counts: %d bytes", next.total)
	}
	if _, err := os.Stat(part); err != nil {
		t.Errorf("a file that is being written is gone: %v", err)
	}
	if err := writer.Close(); err != nil { // as the system does for a process that was killed
		t.Fatal(err)
	}
	open(t, c)
	if _, err := os.Stat(part); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// FuzzRead: no file makes a reader crash, and none is believed but the one that was written.
func FuzzRead(f *testing.F) {
	const size = 300
	c, _ := config(f.TempDir())
	s := open(f, c)
	want := random(1, size)
	for _, tenant := range tenants {
		of := s.Tenant(tenant)
		n := of.Names(text(1, 64))[0]
		write(f, of, n, Page, want)
		b, err := os.ReadFile(of.path(n, Page))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, tenant != "")
		f.Add(b[:100], tenant != "")
	}
	f.Fuzz(func(t *testing.T, b []byte, keys bool) {
		of := s.Tenant("")
		if keys {
			of = s.Tenant(tenants["with keys"])
		}
		got := make([]byte, size)
		err := of.check(bytes.NewReader(b), int64(len(b)), of.header(of.Names(text(1, 64))[0], Page, size), got)
		if err == nil && keys && !bytes.Equal(got, want) {
			t.Errorf("read %x", got)
		}
	})
}
