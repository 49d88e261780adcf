package discovery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	// DefaultLease is how long a process stays in the registry without renewing its key.
	DefaultLease = 3 * time.Second

	renewals     = 3               // of a key in a lease
	registryTime = 2 * time.Second // for one call of the registry
	withdrawTime = time.Second     // at the end of a process
	mostReplicas = 3
)

// registry is a bucket of JetStream's key-value store with a key for each process, whose value is its announcement. A key that is not
// renewed ends with its lease. It is there if the pool's server has JetStream, which is asked again and again, because a server may be
// restarted with or without; announcements go on in either case. It needs no disk: processes renew what is lost.
type registry struct {
	pool  pool.Config
	conn  *pool.Conn
	lease time.Duration
}

// bucket returns the bucket of the fleet's processes. A gateway, or a process that does not say what it is, makes it if it is missing;
// drafters and verifiers may not (pool.Config.NATSConfig), and ask again. It fails where there is no JetStream.
func (r registry) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	js, err := jetstream.New(r.conn.Conn)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, r.pool.Registry())
	if !errors.Is(err, jetstream.ErrBucketNotFound) || r.pool.Role != "" && r.pool.Role != rpc.Gateway {
		return kv, err
	}
	for n := mostReplicas; n > 0; n-- { // a server refuses more than its cluster has servers
		if kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: r.pool.Registry(), TTL: r.lease, Replicas: n,
			Storage: jetstream.MemoryStorage, Description: "processes of a tandem fleet"}); err == nil {
			break
		}
	}
	return kv, err
}

// key returns the key of a process.
func (k Kind) key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return k.subject + "." + hex.EncodeToString(sum[:16])
}

// renew keeps the process's key in the registry until stop is closed, and takes it away then.
func (a *Announcer) renew() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a.work.Go(func() {
		<-a.stop
		cancel()
	})
	var kv jetstream.KeyValue // nil: the registry is to be asked for
	var revision uint64       // of the key
	for {
		if a.conn.Connected() {
			kv, revision = a.put(ctx, kv, revision)
		}
		select {
		case <-ctx.Done():
			a.withdraw(kv, revision)
			return
		case <-a.due:
		case <-time.After(a.registry.lease / renewals):
		}
	}
}

// put puts the next announcement into the registry. It returns the bucket, nil if that must be asked for again, and the key's revision.
func (a *Announcer) put(ctx context.Context, kv jetstream.KeyValue, revision uint64) (jetstream.KeyValue, uint64) {
	if kv == nil {
		var err error
		if kv, err = a.registry.bucket(ctx); err != nil {
			return nil, 0
		}
	}
	data, err := a.next()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, registryTime)
		defer cancel()
		revision, err = kv.Put(ctx, a.key, data)
	}
	if err != nil {
		return nil, 0
	}
	return kv, revision
}

// withdraw takes the key away, unless a successor has put its own.
func (a *Announcer) withdraw(kv jetstream.KeyValue, revision uint64) {
	if kv == nil || !a.conn.Connected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), withdrawTime)
	defer cancel()
	_ = kv.Delete(ctx, a.key, jetstream.LastRevision(revision))
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
	kv, err := t.registry.bucket(ctx)
	if err != nil {
		return false // announcements alone
	}
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
	h := heard{key: e.Key()}
	if e.Operation() == jetstream.KeyValuePut {
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
