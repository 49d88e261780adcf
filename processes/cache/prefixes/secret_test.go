package prefixes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStoreSecret: who knows a tenant's name and has all files of its folder, but not the store's secret, finds and reads nothing. The
// secret is in a file of mode 0600, and is not logged. Without a secret that can be used, as after an update from a release that had none,
// what is there is removed, and a line says so, once.
func TestStoreSecret(t *testing.T) {
	const tenant = "0123456789abcdef0123456789abcdef"
	c, said := config(filepath.Join(t.TempDir(), "prefixes"))
	s := open(t, c)
	of := s.Tenant(tenant)
	n := of.Names(text(1, 64))[0]
	write(t, of, n, Page, random(1, 1000))
	path := filepath.Join(c.Dir, secretName)
	if st, err := os.Lstat(path); err != nil || st.Mode() != 0o600 || st.Size() != secretBytes {
		t.Fatalf("the secret: %v, %v", st, err)
	}

	other, _ := config(filepath.Join(t.TempDir(), "prefixes"))
	thief := open(t, other).Tenant(tenant)
	if thief.Names(text(1, 64))[0] == n || filepath.Base(thief.dir) == filepath.Base(of.dir) {
		t.Error("another store has the same names: the secret does not count")
	}
	b, err := os.ReadFile(of.path(n, Page))
	if err == nil {
		err = os.MkdirAll(thief.dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(thief.path(n, Page), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if thief.Read(n, Page, make([]byte, 1000)) == nil {
		t.Error("read without the store's secret")
	}

	if got := open(t, c).Tenant(tenant); got.Read(n, Page, make([]byte, 1000)) != nil || said.lines() != 0 {
		t.Errorf("the same store later; said %q", said)
	}
	for i, spoil := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.Truncate(path, 5) },
		func() error { return os.Chmod(path, 0o640) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		again := open(t, c)
		open(t, c)
		of := again.Tenant(tenant)
		uses, err := List(c.Dir)
		if err != nil || len(uses) > 0 || said.lines() != i+1 || strings.Count(said.String(), "new secret") != i+1 {
			t.Errorf("%d: left %v, %v; said %q", i, uses, err, said)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode() != 0o600 || strings.Contains(said.String(), string(again.secret)) {
			t.Errorf("%d: the secret: %v, %v", i, st, err)
		}
		if err := of.Write(n, Page, random(1, 1000), 0, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}
