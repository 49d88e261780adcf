package disk_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier/disk"
)

const (
	tenant = "one"
	pages  = 3 // of the text
)

// run is a keeper without a verifier: a model, its schedule and files.
type run struct {
	t        *testing.T
	m        *engine.Model
	sched    *schedule.Schedule
	keeper   *disk.Keeper
	counters *tandem.Counters
}

func start(t *testing.T, dir string) *run {
	t.Helper()
	m, err := engine.Open("../../models/gopher-draft-all-f16.gguf", engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 256, KVPages: 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	r := &run{t: t, m: m, counters: new(tandem.Counters)}
	r.sched = schedule.New(schedule.Config{Name: "test", Model: m, Counters: r.counters, Chunk: 64, Idle: time.Minute})
	r.sched.Start()
	files, err := prefixes.Open(prefixes.Config{Dir: dir, Limit: 1 << 30, Model: disk.StoredAs(m), Page: engine.PageTokens,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c := disk.KeeperConfig{Files: files, Log: slog.New(slog.DiscardHandler), Least: 1}
	if r.keeper, err = disk.New(c, m, r.sched, r.counters); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.keeper.Close(context.Background(), func() {}), r.sched.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return r
}

// do runs fn between two passes.
func (r *run) do(fn func() error) {
	r.t.Helper()
	if err := r.sched.Do(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

func text() (tokens []tandem.Token) {
	for i := range pages*engine.PageTokens + 5 {
		tokens = append(tokens, tandem.Token(5+i*i%4000))
	}
	return tokens
}

// compute computes a text and hands it to the keeper.
func (r *run) compute(as string, tokens []tandem.Token) {
	r.t.Helper()
	r.do(func() error {
		seq, err := r.m.NewShared(as, tokens, len(tokens)+1, 0)
		if err != nil {
			return err
		}
		defer seq.Close()
		if _, err := r.m.Forward([]engine.Part{{Seq: seq, Extend: tokens[seq.Len():]}}, 1); err != nil {
			return err
		}
		if err := seq.Commit(nil); err != nil {
			return err
		}
		t := disk.Text{Session: 1, Tenant: as, Tokens: tokens}
		want := len(tokens)
		if tandem.Salted(as) {
			want = 0
		}
		if kept := r.keeper.Keep(t, 0, true); kept != want || r.keeper.Keep(t, kept, false) != kept {
			r.t.Errorf("handed %d of %d tokens", kept, len(tokens))
		}
		return nil
	})
}

// restored returns how many tokens of a text a sequence begins with once the keeper has restored it.
func (r *run) restored(check func() error) (n int) {
	r.t.Helper()
	tokens := text()
	found, _ := r.keeper.Restore(r.t.Context(), tandem.Opening{Session: 2, Tenant: tenant, Tokens: append(tokens, 1)}, check)
	defer found.Leave()
	r.do(func() error {
		defer found.Done()
		found.Put()
		seq, err := r.m.NewShared(tenant, tokens, len(tokens)+1, 0)
		if err == nil {
			n = seq.Len()
			seq.Close()
		}
		return err
	})
	return n
}

func fine() error { return nil }

// TestKeeperAlone: what one keeper was handed the next one brings back, as many whole pages as are undamaged; nothing for an opening that
// is refused, of a request with a salt, or of a text that was removed.
func TestKeeperAlone(t *testing.T) {
	dir := t.TempDir()
	files := func() []string {
		all, err := filepath.Glob(filepath.Join(dir, "*", "*.page"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	first := start(t, dir)
	first.compute(tandem.Request{Tenant: tenant, CacheSalt: "salt"}.Sharing(), text())
	first.compute(tenant, text())
	testkit.Eventually(t, "all pages are written", func() bool { return first.counters.Snapshot()["store.written"] == pages })
	if n := len(files()); n != pages {
		t.Fatalf("%d files: want %d", n, pages)
	}
	next := start(t, dir)
	if n := next.restored(func() error { return errors.New("no") }); n != 0 {
		t.Errorf("%d tokens for an opening that was refused", n)
	}
	if n := next.restored(fine); n != pages*engine.PageTokens {
		t.Errorf("%d tokens are back: want %d", n, pages*engine.PageTokens)
	}
	if c := next.counters.Snapshot(); c["store.restored"] != 1 || c["store.restored_tokens"] != pages*engine.PageTokens {
		t.Errorf("counted %v", c)
	}
	for _, file := range files()[:1] {
		if err := os.Truncate(file, 100); err != nil {
			t.Fatal(err)
		}
	}
	if n := start(t, dir).restored(fine); n >= pages*engine.PageTokens {
		t.Errorf("%d tokens are back from damaged files", n)
	}
	next.do(func() error {
		next.keeper.Remove(disk.Text{Session: 1, Tenant: tenant, Tokens: text()})
		return nil
	})
	testkit.Eventually(t, "the text is removed", func() bool { return len(files()) == 0 })
}

// TestNoKeeper keeps and finds nothing.
func TestNoKeeper(t *testing.T) {
	var k *disk.Keeper
	if n := k.Keep(disk.Text{Tokens: text()}, 7, true); n != 7 {
		t.Errorf("it was handed %d tokens", n)
	}
	k.Remove(disk.Text{})
	found, parted := k.Restore(t.Context(), tandem.Opening{Tokens: text()}, fine)
	found.Put()
	found.Done()
	found.Leave()
	if err := k.Close(t.Context(), nil); err != nil || found != nil || parted != 0 {
		t.Errorf("%v, %v, %d", err, found, parted)
	}
}
