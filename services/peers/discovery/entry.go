package discovery

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// askPause is before a process that did not describe itself is asked again.
const askPause = 100 * time.Millisecond

// entry is an address and what the table remembers of the process there.
type entry struct {
	Process
	sequence uint64
	earlier  []uint64  // instances that it has replaced, the latest last
	seen     time.Time // when it was last announced, or the entry was made
	told     time.Time // when it last described itself, by an announcement or an answer
	static   bool
	called   bool // it is up while gRPC reaches it; false: while its announcements are heard
	shown    bool
	// confirmed says that the process at the other end of Conn has told Instance.
	confirmed bool
	ask       func() // has the process describe itself
	cancel    context.CancelFunc
}

// told is the description that a process gave.
type told struct {
	addr string
	what wire.Announcement
}

// close ends an entry's connection.
func (e *entry) close() {
	e.cancel()
	if e.Conn != nil {
		_ = e.Conn.Close()
	}
}

// add makes an entry and watches its connection. Errors: Invalid, Exhausted.
func (t *Table) add(ctx context.Context, id, addr string, static bool) error {
	if t.membership.entries[id] != nil {
		return nil
	}
	if len(t.membership.entries) >= maxProcesses {
		return tandem.Errorf(op, tandem.Exhausted, "%s %s: %d are known already, and no more may be",
			t.cfg.Kind.name, addr, len(t.membership.entries))
	}
	ctx, cancel := context.WithCancel(ctx)
	e := &entry{Process: Process{Addr: addr}, static: static, seen: time.Now(), cancel: cancel}
	if t.cfg.Kind.describe != nil {
		conn, err := t.cfg.Dial(addr)
		if err != nil {
			cancel()
			return err
		}
		e.Conn, e.called = conn, true
		e.ask = func() { t.work.Go(func() { t.ask(ctx, addr, conn) }) }
		t.work.Go(func() { t.watch(ctx, addr, conn, static) })
	}
	t.membership.entries[id] = e
	return nil
}

// watch keeps a connection alive and pokes the owner when its state changes. A configured process is asked
// what it is whenever it came up, and again and again if its load is of interest.
func (t *Table) watch(ctx context.Context, addr string, conn *grpc.ClientConn, static bool) {
	for {
		state, again := conn.GetState(), false
		t.changed()
		switch {
		case state == connectivity.Idle:
			conn.Connect()
		case state == connectivity.Ready && static:
			again = t.ask(ctx, addr, conn) && t.cfg.Kind.again
		}
		until, cancel := ctx, context.CancelFunc(func() {})
		if again {
			until, cancel = context.WithTimeout(ctx, 2*t.cfg.Beat)
		}
		conn.WaitForStateChange(until, state)
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// ask asks the process at the other end of conn for its description, while it can be reached, and passes it to the owner. It reports
// whether the process is one that can be used.
func (t *Table) ask(ctx context.Context, addr string, conn *grpc.ClientConn) bool {
	for conn.GetState() == connectivity.Ready {
		if what, err := t.cfg.Kind.Describe(ctx, addr, conn); err == nil || tandem.Refusal(err) != "" {
			if err != nil {
				t.stranger(err)
			}
			select {
			case t.told <- told{addr, what}:
			case <-ctx.Done():
			}
			return err == nil
		}
		if !pause(ctx, askPause) {
			return false
		}
	}
	return false
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
