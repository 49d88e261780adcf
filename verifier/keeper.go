package verifier

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

// StoreConfig says where long prefixes are kept beside the memory.
type StoreConfig struct {
	Files *prefixes.Store // of pages of the model's size and form
	Log   *slog.Logger    // is told of each restored prefix
	Least int             // pages of a text: shorter ones are neither kept nor looked for; default 8
}

// keeper keeps the long prefixes of sessions in files, and brings them back when a session is opened that begins alike.
//
// Writing: sessions hand their tokens over. One goroutine looks which of their pages are not there, has a few MiB at a time copied between
// two passes, and writes them. A page that was evicted meanwhile is not written.
//
// Reading: Open looks which pages are there before it makes the session. It takes memory for those that the cache lacks, between two
// passes; goroutines of its own read the files into it, beside the passes; and just before the session is made, the pages become kept
// prefixes like any other. One Open at a time does so: who begins alike then finds what the one before has brought.
type keeper struct {
	StoreConfig
	v           *Verifier
	copies      *kv.Copies // the schedule's goroutine's
	page, state int        // sizes in bytes
	ctx         context.Context
	end         context.CancelFunc
	turn        chan struct{} // holds a token while nobody reads
	read        atomic.Uint64 // pages read so far

	running sync.WaitGroup // the goroutine that writes, and Opens that read
	wake    chan struct{}
	mu      sync.Mutex
	ended   bool
	waiting []toKeep // at most one a session
}

// toKeep is a text of which what is missing is to be written, or that is to be removed; or the mark behind all that waits at a time.
type toKeep struct {
	session tandem.SessionID
	tenant  string
	tokens  []tandem.Token
	remove  bool
	mark    chan struct{} // nil, or closed when it is its turn
}

// newKeeper returns a keeper with its goroutine running; stop ends it.
func newKeeper(c StoreConfig, v *Verifier) (*keeper, error) {
	if c.Least == 0 {
		c.Least = leastKept
	}
	copies := v.cfg.Model.Copies()
	if copies == nil {
		return nil, tandem.Errorf("verifier", tandem.Unsupported, "prefixes in files: keys and values are not to be had as bytes, or "+
			"none are kept")
	}
	k := &keeper{StoreConfig: c, v: v, copies: copies, page: copies.PageBytes(), state: copies.StateBytes(),
		turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	k.ctx, k.end = context.WithCancel(context.Background())
	k.pass()
	k.running.Go(k.run)
	return k, nil
}

// flush has what sessions hold written, and waits for this and for all that waits already, for flushFor at most, and no longer than ctx.
func (k *keeper) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushFor)
	defer cancel()
	if k.v.sched.Do(ctx, func() error {
		for x := range k.v.sched.Sessions() {
			if s, ok := x.(*session); ok {
				s.stored(true)
			}
		}
		return nil
	}) != nil {
		return
	}
	job := toKeep{mark: make(chan struct{})}
	k.mu.Lock()
	k.waiting = append(k.waiting, job)
	k.mu.Unlock()
	k.wakeUp()
	select {
	case <-job.mark:
	case <-k.ctx.Done():
	case <-ctx.Done():
	}
}

func (k *keeper) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// stop ends the writing and reading and waits for it, no longer than ctx: a read or a write of the disk has no deadline.
func (k *keeper) stop(ctx context.Context) error {
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

// pass lets the next Open read.
func (k *keeper) pass() {
	select {
	case k.turn <- struct{}{}:
	default: // it may already
	}
}

// enter reports whether an Open may begin to read; then it ends with running.Done.
func (k *keeper) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ended {
		k.running.Add(1)
	}
	return !k.ended
}

// keep has the whole pages of tokens written, or removed, and returns at once. tokens must not change.
func (k *keeper) keep(job toKeep) {
	if len(job.tokens) < k.Least*engine.PageTokens {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.waiting, func(o toKeep) bool { return o.session == job.session })
	switch {
	case i >= 0:
		k.waiting[i] = job
	case len(k.waiting) < mostToKeep:
		k.waiting = append(k.waiting, job)
	default:
		k.v.cfg.Counters.Add("store.skipped", 1)
	}
	k.wakeUp()
}

func (k *keeper) run() {
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
			job := k.waiting[0]
			k.waiting = slices.Delete(k.waiting, 0, 1)
			k.mu.Unlock()
			if job.mark != nil {
				close(job.mark)
				continue
			}
			k.write(job)
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
func (k *keeper) write(job toKeep) {
	t, now := k.Files.Tenant(job.tenant), time.Now()
	names := t.Names(job.tokens)
	if job.remove {
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
	var room []byte
	for from, more := 0, true; more; {
		room = k.room(room)
		var pieces []piece
		if k.v.sched.Do(k.ctx, func() error {
			pieces, from, more = k.copyOut(job, there, from, room)
			return nil
		}) != nil {
			return
		}
		for _, p := range pieces {
			if t.Write(names[p.page], p.kind, p.data, p.page, now) != nil {
				return
			}
			k.v.cfg.Counters.Add("store.written", 1)
			k.v.cfg.Counters.Add("store.written_bytes", int64(len(p.data)))
		}
	}
}

// room returns room for what is copied between two passes: last's, if that is enough.
func (k *keeper) room(last []byte) []byte {
	n := max(mostCopied, k.page, k.state)
	if k.v.sched.Progress().Pass >= longPass {
		n = max(copiedLong, n)
	}
	if n <= cap(last) {
		return last[:0:n]
	}
	return make([]byte, 0, n)
}

// copyOut copies what is not there of a text from page from on, as much as room has capacity for. It returns the page to go on with, and
// whether there may be more. It runs on the schedule's goroutine.
func (k *keeper) copyOut(job toKeep, there map[prefixes.Kind][]bool, from int, room []byte) (out []piece, next int, more bool) {
	next = from
	take := func(page int, kind prefixes.Kind, data []byte) bool {
		if data == nil || there[kind][page] {
			return true
		}
		if len(data) > cap(room)-len(room) {
			return false
		}
		at := len(room)
		room = append(room, data...)
		out = append(out, piece{page, kind, room[at:]})
		there[kind][page] = true
		return true
	}
	k.copies.Visit(job.tenant, job.tokens, func(page int, rows, state []byte) bool {
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

// stored has what is new of the session's text written: at its end all, before only if it is much. Nothing is of a request with a salt.
func (s *session) stored(all bool) {
	k, n := s.v.keeper, s.seq.Len()
	if k == nil || tandem.Salted(s.tenant) {
		return
	}
	job := toKeep{session: s.ID, tenant: s.tenant, tokens: s.tokens[:n:n]}
	switch job.remove = !s.seq.Shares(); {
	case job.remove: // a fault, whose cause may be in what was read
		k.keep(job)
	case n-s.kept >= keptEvery*engine.PageTokens || all && n > s.kept:
		s.kept = n
		k.keep(job)
	}
}

// StoredAs names everything that decides the bytes that m's pages have for tokens: prefixes.Config.Model. m has copies.
func StoredAs(m *engine.Model) string {
	c := m.Copies()
	return fmt.Sprintf("%s %s %d %d", m.Names().Identity, c.Form(), c.PageBytes(), c.StateBytes())
}
