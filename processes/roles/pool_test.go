package roles

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/pool"
)

func TestPoolFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	go func() {
		time.Sleep(20 * time.Millisecond)
		if err := WritePoolFile(path, pool.Access{URL: "nats://127.0.0.1:1234", Token: "secret"}); err != nil {
			t.Error(err)
		}
	}()
	r := &Process{Program: Program{Log: slog.New(slog.DiscardHandler)}}
	access, err := r.PoolAccess(t.Context(), "file:"+path)
	if err != nil || access.URL != "nats://127.0.0.1:1234" || access.File != path {
		t.Errorf("access %+v, %v", access, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: want 0600", st.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".pool-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := r.PoolAccess(t.Context(), ""); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("no pool: %v", err)
	}
	if _, err := r.PoolAccess(t.Context(), "file:/nowhere/pool"); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("no such directory: %v", err)
	}
	if access, err := r.PoolAccess(t.Context(), "file:"+path+".later"); err != nil || access.File != path+".later" || access.URL != "" {
		t.Errorf("file not written yet: %+v, %v: want to go on", access, err)
	}
	if _, err := r.PoolAccess(t.Context(), "file:/"); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("directory: %v", err)
	}
}
