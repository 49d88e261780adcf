package discovery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// DefaultLease is how long a process stays in the registry without renewing its key.
const DefaultLease = pool.DefaultLease

const (
	renewals     = 3               // of a key in a lease
	registryTime = 2 * time.Second // for one call of the registry
	withdrawTime = time.Second     // at the end of a process

	// operation is the header of a message that takes a key away, as JetStream's key-value store has it.
	operation, remove = "KV-Operation", "DEL"
)

// registry is a bucket of JetStream's key-value store with a key for each process, whose value is its announcement. A key that is not
// renewed ends with its lease. Processes send their keys, without an answer, whether there is a registry or not; gateways read it. It is
// there if the pool's server has JetStream, which is asked again and again, because a server may be restarted with or without;
// announcements go on in either case. It needs no disk: processes renew what is lost.
type registry struct {
	pool  pool.Config
	conn  *pool.Conn
	lease time.Duration
}

// open returns the bucket of the fleet's processes, and what ends its use. It makes the bucket where the server has not. It fails where
// there is no JetStream, and for drafters and verifiers, which hear announcements alone: JetStream would do for them what they may not do
// themselves (pool.Config.NATSConfig).
func (r registry) open(ctx context.Context) (kv jetstream.KeyValue, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	if !r.pool.HasRegistry(ctx, r.conn) {
		return nil, nil, errNoRegistry
	}
	nc, end := r.conn.Conn, func() {}
	switch own, err := r.pool.ConnectRegistry(); {
	case err == nil:
		nc, end = own, own.Close
	case !errors.Is(err, nats.ErrAuthorization): // else it is in the pool's account, as with the configuration of the release before
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err == nil {
		kv, err = js.KeyValue(ctx, r.pool.Registry())
	}
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if err = r.pool.MakeRegistry(ctx, nc, r.lease); err == nil {
			kv, err = js.KeyValue(ctx, r.pool.Registry())
		}
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return kv, end, nil
}

var errNoRegistry = errors.New("the pool's server has no registry")

// key returns the key of a process.
func (k Kind) key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return k.subject + "." + hex.EncodeToString(sum[:16])
}

// renew keeps the process's key in the registry until stop is closed, and takes it away then.
func (a *Announcer) renew() {
	for {
		a.put("")
		select {
		case <-a.stop:
			if a.put(remove) {
				_ = a.conn.FlushTimeout(withdrawTime)
			}
			return
		case <-a.due:
		case <-time.After(a.registry.lease / renewals):
		}
	}
}

// put sends the next announcement to the registry, to take the key away if that is the operation, and reports whether it did.
func (a *Announcer) put(operated string) bool {
	if !a.conn.Connected() {
		return false
	}
	data, err := a.next()
	m := &nats.Msg{Subject: a.registry.pool.RegistryKey(a.key), Data: data}
	if operated != "" {
		m.Header = nats.Header{operation: []string{operated}}
	}
	return err == nil && a.conn.PublishMsg(m) == nil
}

// follow passes what the registry holds to the owner, while there is one.
func (t *Table) follow(ctx context.Context) {
	for ctx.Err() == nil {
		wait := t.registry.lease
		if t.conn.Connected() {
			if t.members(ctx) {
				wait = askPause
			} else {
				t.leased.Store(false)
			}
		}
		select {
		case <-ctx.Done():
		case <-t.came:
		case <-time.After(wait):
		}
	}
}

// members watches the registry until it fails, is silent for a lease, or NATS was away: then it may be another one. It reports whether
// there was one.
func (t *Table) members(ctx context.Context) bool {
	kv, end, err := t.registry.open(ctx)
	if err != nil {
		return false // announcements alone
	}
	defer end()
	watcher, err := kv.Watch(ctx, t.cfg.Kind.subject+".>")
	if err != nil {
		return false
	}
	defer func() {
		_ = watcher.Stop()
		for range watcher.Updates() { // until it is closed: else it may wait for a reader for ever
		}
	}()
	t.leased.Store(true)
	t.cfg.Counters.Add("registry.watches", 1)
	for {
		select {
		case e, open := <-watcher.Updates():
			if !open {
				return true
			}
			if e != nil { // nil: all that were there have come
				t.member(ctx, e)
			}
		case <-ctx.Done():
			return true
		case <-t.came:
			return true
		case <-time.After(t.registry.lease):
			return true
		}
	}
}

// member passes one entry of the registry to the owner.
func (t *Table) member(ctx context.Context, e jetstream.KeyValueEntry) {
	h := heard{key: e.Key(), gone: e.Operation() != jetstream.KeyValuePut}
	if !h.gone || len(e.Value()) > 0 { // a process of an earlier release does not say which was there
		a, err := wire.UnmarshalAnnouncement(e.Value())
		if err != nil || !t.cfg.Kind.is(a) || t.cfg.Kind.key(t.cfg.Kind.id(a)) != e.Key() {
			t.cfg.Counters.Add("announcements.garbage", 1)
			return
		}
		h.what = a
	}
	select {
	case t.heard <- h:
	case <-ctx.Done():
	}
}
