package verifier

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
)

// arrival is the beginning of a text that an Open has read from files: in memory, but not yet to be found.
type arrival struct {
	k      *keeper
	tokens []tandem.Token
	names  []prefixes.Name // of its pages on the disk
	tenant *prefixes.Tenant

	in     *kv.Import
	held   int           // pages that the memory had already
	pages  [][]byte      // to be filled in, from page held on
	state  []byte        // to be filled in, behind the last page; nil: none
	pace   time.Duration // that computing a page takes; 0: not known
	good   int           // pages that are filled in, those that the memory had included
	stated bool          // the state is filled in
	over   bool
}

// restore reads the beginning of o's text from files if they have more of it than the memory. It returns nil if there is nothing to put.
// parted is where the text leaves the pages that the files have, if there are no states behind the last of them; else 0.
func (k *keeper) restore(ctx context.Context, o tandem.Opening) (_ *arrival, parted int) {
	if len(o.Tokens) <= k.Least*engine.PageTokens || !k.enter() {
		return nil, 0
	}
	defer k.running.Done()
	a := &arrival{k: k, tokens: o.Tokens[:len(o.Tokens)-1], tenant: k.Files.Tenant(o.Tenant)}
	if a.names, parted = k.there(a.tenant, a.tenant.Names(a.tokens)); len(a.names) < k.Least {
		return nil, parted
	}
	if !k.await(ctx, o, a, k.turn) {
		return nil, parted
	}
	begun := time.Now()
	if err := k.v.sched.Do(ctx, func() error { return a.begin(o) }); err != nil || a.in == nil {
		k.pass()
		return nil, parted
	}
	read := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(k.ctx, stop)()
	go func() { defer close(read); a.read(ctx) }()
	if !k.await(ctx, o, a, read) {
		<-read // it stops soon, and its pages are not to be written to afterwards
	}
	a.tell(time.Since(begun))
	return a, parted
}

// there returns the names of the first pages that are on the disk, up to one that a sequence can begin with. parted is restore's.
func (k *keeper) there(t *prefixes.Tenant, names []prefixes.Name) (_ []prefixes.Name, parted int) {
	n := 0
	for n < len(names) && t.Has(names[n], prefixes.Page) {
		n++
	}
	for k.state > 0 && n > 0 && !t.Has(names[n-1], prefixes.State) {
		parted = max(parted, n*engine.PageTokens)
		n--
	}
	return names[:n], parted
}

// await waits for a value on c, and tells the progress of the reading meanwhile. It returns false if the caller, or the verifier, gives up.
func (k *keeper) await(ctx context.Context, o tandem.Opening, a *arrival, c <-chan struct{}) bool {
	every := time.NewTicker(tandem.ProgressEvery)
	defer every.Stop()
	for {
		select {
		case <-c:
			return true
		case <-ctx.Done():
			return false
		case <-k.ctx.Done():
			return false
		case <-every.C:
		}
		if o.Progress != nil { // what is read now counts as found
			p := k.v.sched.Progress()
			p.Steps, p.Cached = p.Steps+k.read.Load(), len(a.tokens)
			o.Progress(p)
		}
	}
}

// begin takes the memory for what is to be read; a.in stays nil if there is nothing to read, or no memory for all of the text. It runs on
// the schedule's goroutine.
func (a *arrival) begin(o tandem.Opening) error {
	v := a.k.v
	if _, err := v.check(o); err != nil {
		return err
	}
	in := a.k.copies.Begin(o.Tenant, a.tokens)
	n := len(a.names)
	if a.held = in.Held(); in.Usable() >= n {
		in.Close()
		return nil
	}
	spare := engine.PagesFor(1, len(a.tokens)+1, 0) - n + v.sched.Load().Sessions // sessions that run go on meanwhile
	var err error
	if a.pages, a.state, err = in.Room(n, spare, a.k.state > 0); err != nil {
		in.Close()
		v.cfg.Counters.Add("store.no_memory", 1)
		return nil
	}
	a.in, a.good, a.pace = in, min(a.held, n), engine.PageTokens*v.sched.RowTime()
	return nil
}

// read fills in pages, several at a time, until all are there, one is missing or wrong, or computing the rest is as fast.
func (a *arrival) read(ctx context.Context) {
	begun := time.Now()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var all sync.WaitGroup
	next, done, filled := 0, 0, make([]bool, len(a.pages))
	for range min(readers, len(a.pages)) {
		all.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(a.pages) {
					return
				}
				if a.tenant.Read(a.names[a.held+i], prefixes.Page, a.pages[i]) != nil {
					stop()
					return
				}
				a.k.read.Add(1)
				mu.Lock()
				filled[i], done = true, done+1
				if spent := time.Since(begun); a.pace > 0 && done >= readers && spent > time.Duration(done)*a.pace {
					a.k.v.cfg.Counters.Add("store.slow", 1)
					stop()
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for _, ok := range filled {
		if !ok {
			return
		}
		a.good++
	}
	if a.state != nil && ctx.Err() == nil {
		a.stated = a.tenant.Read(a.names[len(a.names)-1], prefixes.State, a.state) == nil
	}
}

// tell counts and logs what was read.
func (a *arrival) tell(spent time.Duration) {
	n, c := a.good-a.held, a.k.v.cfg.Counters
	if n < 1 && !a.stated {
		return
	}
	bytes := n*a.k.page + len(a.state)
	c.Add("store.restored", 1)
	c.Add("store.restored_tokens", int64(max(n, 0)*engine.PageTokens))
	c.Add("store.read_bytes", int64(bytes))
	c.Add("store.read_us", spent.Microseconds())
	a.k.Log.Info("prefix restored from disk", "tokens", a.good*engine.PageTokens, "read", engine.Bytes(int64(bytes)),
		"in", spent.Round(time.Millisecond))
}

// put makes what was read a kept prefix. It runs on the schedule's goroutine, as done does.
func (a *arrival) put() {
	if a != nil {
		a.in.Put(a.good, a.stated)
	}
}

// done ends the arrival, once: what it has put stays as long as the memory is not needed.
func (a *arrival) done() {
	if a == nil || a.over {
		return
	}
	a.over = true
	a.in.Close()
	a.k.pass()
}

// leave ends an arrival whose session was not made.
func (a *arrival) leave() {
	if a == nil {
		return
	}
	if !a.k.v.sched.Post(func() {
		if !a.over {
			a.put()
			a.done()
		}
	}) {
		a.k.pass() // the verifier ends
	}
}
