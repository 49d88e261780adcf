package disk

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
)

// Arrival is the beginning of a text that was read from files: in memory, but not yet to be found there. Its owner calls Put and Done just
// before the session is made, on the goroutine of the passes, and Leave in any case, on any goroutine. A nil *Arrival brings nothing.
type Arrival struct {
	k      *Keeper
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

// Restore reads the beginning of o's text from files if they have more of it than the memory, and tells o.Progress meanwhile. It returns
// nil if there is nothing to put: no such files, no memory for all of the text, an o that check refuses, or the end of ctx. It calls check
// on the goroutine of the passes, before it takes memory. parted is the number of tokens after which the text leaves that of the files, if
// these have no states there to go on from; else 0.
func (k *Keeper) Restore(ctx context.Context, o tandem.Opening, check func() error) (_ *Arrival, parted int) {
	if k == nil {
		return nil, 0
	}
	if len(o.Tokens) <= k.Least*engine.PageTokens || !k.enter() {
		return nil, 0
	}
	defer k.running.Done()
	a := &Arrival{k: k, tokens: o.Tokens[:len(o.Tokens)-1], tenant: k.Files.Tenant(o.Tenant)}
	if a.names, parted = k.there(a.tenant, a.tenant.Names(a.tokens)); len(a.names) < k.Least {
		return nil, parted
	}
	if !k.await(ctx, o, a, k.turn) {
		return nil, parted
	}
	begun := time.Now()
	if err := k.passes.Do(ctx, func() error { return a.begin(o, check) }); err != nil || a.in == nil {
		k.yield()
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

// there returns the names of the first pages that are on the disk, up to one that a sequence can begin with. parted is as in Restore.
func (k *Keeper) there(t *prefixes.Tenant, names []prefixes.Name) (_ []prefixes.Name, parted int) {
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
func (k *Keeper) await(ctx context.Context, o tandem.Opening, a *Arrival, c <-chan struct{}) bool {
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
			p := k.passes.Progress()
			p.Steps, p.Cached = p.Steps+k.read.Load(), len(a.tokens)
			o.Progress(p)
		}
	}
}

// begin takes the memory for what is to be read; a.in stays nil if there is nothing to read, or no memory for all of the text. It runs on
// the goroutine of the passes.
func (a *Arrival) begin(o tandem.Opening, check func() error) error {
	if err := check(); err != nil {
		return err
	}
	in := a.k.copies.Begin(o.Tenant, a.tokens)
	n := len(a.names)
	if a.held = in.Held(); in.Usable() >= n {
		in.Close()
		return nil
	}
	spare := engine.PagesFor(1, len(a.tokens)+1, 0) - n + a.k.passes.Load().Sessions // sessions that run go on meanwhile
	var err error
	if a.pages, a.state, err = in.Room(n, spare, a.k.state > 0); err != nil {
		in.Close()
		a.k.counters.Add("store.no_memory", 1)
		return nil
	}
	a.in, a.good, a.pace = in, min(a.held, n), engine.PageTokens*a.k.passes.RowTime()
	return nil
}

// read fills in pages, several at a time, until all are there, one is missing or wrong, or computing the rest is as fast.
func (a *Arrival) read(ctx context.Context) {
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
					a.k.counters.Add("store.slow", 1)
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
func (a *Arrival) tell(spent time.Duration) {
	n, c := a.good-a.held, a.k.counters
	if n < 1 && !a.stated {
		return
	}
	bytes := n*a.k.page + len(a.state)
	c.Add("store.restored", 1)
	c.Add("store.restored_tokens", int64(max(n, 0)*engine.PageTokens))
	c.Add("store.read_bytes", int64(bytes))
	c.Add("store.read_us", spent.Microseconds())
	a.k.Log.Info("prefix restored from disk", "tokens", a.good*engine.PageTokens, "read", memory.Bytes(int64(bytes)),
		"in", spent.Round(time.Millisecond))
}

// Put makes what was read a kept prefix. For the goroutine of the passes, as Done.
func (a *Arrival) Put() {
	if a != nil {
		a.in.Put(a.good, a.stated)
	}
}

// Done ends the arrival, once: what it has put stays as long as the memory is not needed.
func (a *Arrival) Done() {
	if a == nil || a.over {
		return
	}
	a.over = true
	a.in.Close()
	a.k.yield()
}

// Leave ends an arrival whose session was not made. It puts what was read, for another session. Safe for concurrent use.
func (a *Arrival) Leave() {
	if a == nil {
		return
	}
	if !a.k.passes.Post(func() {
		if !a.over {
			a.Put()
			a.Done()
		}
	}) {
		a.k.yield() // the verifier ends
	}
}
