// Package disk keeps the long prefixes of a verifier's sessions in files, and brings them back when a session is opened that begins alike.
package disk

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/schedule"
)

const (
	leastKept  = 8       // pages of a text: shorter ones are not kept in files
	keptEvery  = 16      // pages that a text grows by before more of it is kept
	mostCopied = 4 << 20 // bytes that are copied between two passes, or a single page or state
	longPass   = 200 * time.Millisecond
	copiedLong = 16 << 20    // the same between two passes that take so long, as those of prompts do
	mostToKeep = 64          // texts that wait to be written
	readers    = 4           // files that are read at a time
	flushFor   = time.Second // at the end, for what is not written yet
)

// KeeperConfig says where long prefixes are kept beside the memory.
type KeeperConfig struct {
	Files *prefixes.Store // of pages of the model's size and form, as StoredAs names them
	Log   *slog.Logger    // is told of each restored prefix
	Least int             // pages of a text: shorter ones are neither kept nor looked for; default 8
}

// Keeper keeps the long prefixes of sessions in files, and brings them back when a session is opened that begins alike. It knows texts
// and pages, not sessions. A nil *Keeper keeps nothing.
//
// Writing: Keep is handed the tokens of a session. One goroutine looks which of their pages are not there, has a few MiB at a time copied
// between two passes, and writes them. A page that was evicted meanwhile is not written.
//
// Reading: Restore looks which pages are there before the session is made. It takes memory for those that the cache lacks, between two
// passes; goroutines of its own read the files into it, beside the passes; and just before the session is made, Arrival.Put makes the
// pages kept prefixes like any other. One Restore at a time does so: a text that begins alike then finds what the one before has brought.
//
// State: copies belongs to the goroutine of passes; waiting and ended are under mu; the rest is set by New, or safe for concurrent use.
type Keeper struct {
	KeeperConfig
	passes      *schedule.Schedule // of the model whose pages are kept
	counters    *tandem.Counters
	copies      *kv.Copies
	page, state int // sizes in bytes
	ctx         context.Context
	end         context.CancelFunc
	turn        chan struct{} // holds a token while nobody reads
	read        atomic.Uint64 // pages read so far

	running sync.WaitGroup // the goroutine that writes, and Restores that read
	wake    chan struct{}
	mu      sync.Mutex
	ended   bool
	waiting []job // at most one a session
}

// Text is a session's text as far as it is in the cache.
type Text struct {
	Session tandem.SessionID
	Tenant  string
	Tokens  []tandem.Token // must not change
}

// job is a text whose missing pages are to be written, or whose files are to be removed; or the mark behind all that waits at a time.
type job struct {
	Text
	remove bool
	mark   chan struct{} // nil, or closed when it is its turn
}

// New returns a keeper of m's pages with its goroutine running; Close ends it. Errors: Unsupported for a model whose pages are not to be
// had as bytes.
func New(c KeeperConfig, m *engine.Model, passes *schedule.Schedule, counters *tandem.Counters) (*Keeper, error) {
	if c.Least == 0 {
		c.Least = leastKept
	}
	copies := m.Copies()
	if copies == nil {
		return nil, tandem.Errorf("verifier", tandem.Unsupported, "prefixes in files: keys and values are not to be had as bytes, or "+
			"none are kept")
	}
	k := &Keeper{KeeperConfig: c, passes: passes, counters: counters, copies: copies, page: copies.PageBytes(),
		state: copies.StateBytes(), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	k.ctx, k.end = context.WithCancel(context.Background())
	k.yield()
	k.running.Go(k.run)
	return k, nil
}

// Keep has those pages of t written that are not in files, and returns at once. kept is how many of t's tokens earlier calls have taken;
// Keep returns how many are taken now. Unless last says that nothing will be added soon, it waits for many new tokens. Nothing is kept of a
// request with a salt.
func (k *Keeper) Keep(t Text, kept int, last bool) int {
	n := len(t.Tokens)
	if k == nil || tandem.Salted(t.Tenant) || n-kept < keptEvery*engine.PageTokens && (!last || n <= kept) {
		return kept
	}
	k.put(job{Text: t})
	return n
}

// Remove has the files of t's pages removed, and returns at once: after a fault, whose cause may be in what was read.
func (k *Keeper) Remove(t Text) {
	if k != nil && !tandem.Salted(t.Tenant) {
		k.put(job{Text: t, remove: true})
	}
}

// put has a job done, in place of one of the same session that waits.
func (k *Keeper) put(j job) {
	if len(j.Tokens) < k.Least*engine.PageTokens {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.waiting, func(o job) bool { return o.Session == j.Session })
	switch {
	case i >= 0:
		k.waiting[i] = j
	case len(k.waiting) < mostToKeep:
		k.waiting = append(k.waiting, j)
	default:
		k.counters.Add("store.skipped", 1)
	}
	k.wakeUp()
}

// Close writes what waits, and what collect hands to Keep on the goroutine of the passes, for a second at most. Then it ends the reading
// and writing and waits for it, no longer than ctx: a read or a write of the disk has no deadline.
func (k *Keeper) Close(ctx context.Context, collect func()) error {
	if k == nil {
		return nil
	}
	k.flush(ctx, collect)
	return k.stop(ctx)
}

// flush calls collect and waits until all that waits is written, for flushFor at most, and no longer than ctx.
func (k *Keeper) flush(ctx context.Context, collect func()) {
	ctx, cancel := context.WithTimeout(ctx, flushFor)
	defer cancel()
	if k.passes.Do(ctx, func() error { collect(); return nil }) != nil {
		return
	}
	end := job{mark: make(chan struct{})}
	k.mu.Lock()
	k.waiting = append(k.waiting, end)
	k.mu.Unlock()
	k.wakeUp()
	select {
	case <-end.mark:
	case <-k.ctx.Done():
	case <-ctx.Done():
	}
}

func (k *Keeper) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// stop ends the writing and reading and waits for it, no longer than ctx: a read or a write of the disk has no deadline.
func (k *Keeper) stop(ctx context.Context) error {
	k.mu.Lock()
	k.ended = true
	k.mu.Unlock()
	k.end()
	done := make(chan struct{})
	go func() { k.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return tandem.Errorf("verifier", tandem.KindOf(ctx.Err()), "a prefix is still being read or written: %w", ctx.Err())
	}
}

// yield lets the next Restore read.
func (k *Keeper) yield() {
	select {
	case k.turn <- struct{}{}:
	default: // it may already
	}
}

// enter reports whether a Restore may begin to read; then it ends with running.Done.
func (k *Keeper) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ended {
		k.running.Add(1)
	}
	return !k.ended
}

func (k *Keeper) run() {
	for {
		select {
		case <-k.wake:
		case <-k.ctx.Done():
			return
		}
		for {
			k.mu.Lock()
			if len(k.waiting) == 0 || k.ended {
				k.mu.Unlock()
				break
			}
			j := k.waiting[0]
			k.waiting = slices.Delete(k.waiting, 0, 1)
			k.mu.Unlock()
			if j.mark != nil {
				close(j.mark)
				continue
			}
			k.write(j)
		}
	}
}

// piece is what is to be written of a page.
type piece struct {
	page int
	kind prefixes.Kind
	data []byte
}

// write writes what is missing of a text.
func (k *Keeper) write(j job) {
	t, now := k.Files.Tenant(j.Tenant), time.Now()
	names := t.Names(j.Tokens)
	if j.remove {
		t.Forget(names)
		return
	}
	names = names[:min(len(names), k.Files.Holds(k.page))]
	there := map[prefixes.Kind][]bool{prefixes.Page: make([]bool, len(names)), prefixes.State: make([]bool, len(names))}
	for i, n := range names {
		there[prefixes.Page][i] = t.Has(n, prefixes.Page)
		there[prefixes.State][i] = k.state == 0 || t.Has(n, prefixes.State)
		t.Used(n, i, now)
	}
	var buffer []byte
	for from, more := 0, true; more; {
		buffer = k.buffer(buffer)
		var pieces []piece
		if k.passes.Do(k.ctx, func() error {
			pieces, from, more = k.copyOut(j.Text, there, from, buffer)
			return nil
		}) != nil {
			return
		}
		for _, p := range pieces {
			if t.Write(names[p.page], p.kind, p.data, p.page, now) != nil {
				return
			}
			k.counters.Add("store.written", 1)
			k.counters.Add("store.written_bytes", int64(len(p.data)))
		}
	}
}

// buffer returns an empty buffer for what is copied between two passes: last, if that is large enough.
func (k *Keeper) buffer(last []byte) []byte {
	n := max(mostCopied, k.page, k.state)
	if k.passes.Progress().Pass >= longPass {
		n = max(copiedLong, n)
	}
	if n <= cap(last) {
		return last[:0:n]
	}
	return make([]byte, 0, n)
}

// copyOut copies what is not there of a text from page from on, as much as buffer has capacity for. It returns the page to go on with, and
// whether there may be more. It runs on the goroutine of the passes.
func (k *Keeper) copyOut(t Text, there map[prefixes.Kind][]bool, from int, buffer []byte) (out []piece, next int, more bool) {
	next = from
	take := func(page int, kind prefixes.Kind, data []byte) bool {
		if data == nil || there[kind][page] {
			return true
		}
		if len(data) > cap(buffer)-len(buffer) {
			return false
		}
		at := len(buffer)
		buffer = append(buffer, data...)
		out = append(out, piece{page, kind, buffer[at:]})
		there[kind][page] = true
		return true
	}
	k.copies.Visit(t.Tenant, t.Tokens, func(page int, rows, state []byte) bool {
		if page < from {
			return true
		}
		if page >= len(there[prefixes.Page]) {
			return false
		}
		if more = !take(page, prefixes.Page, rows) || !take(page, prefixes.State, state); more {
			return false
		}
		next = page + 1
		return true
	})
	return out, next, more
}

// StoredAs names all that decides the bytes of m's pages of given tokens: use it as prefixes.Config.Model. m must have copies
// (engine.Model.Copies).
func StoredAs(m *engine.Model) string {
	c := m.Copies()
	return fmt.Sprintf("%s %s %d %d", m.Names().Identity, c.Form(), c.PageBytes(), c.StateBytes())
}
