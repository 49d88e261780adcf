package gateway

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// pooled is the gateway's end of the pool.
type pooled struct {
	config    pool.Config
	key       tandem.PrefixKey // hashes what verifiers announce of their prefixes
	publisher *pool.Publisher  // puts tickets into the pool
	socket    string           // on which verifiers of this host get the gateway's shared memory; "": none
}

// joinPool connects the gateway to the pool, whose server it runs itself if none is named.
func (c Setup) joinPool(ctx context.Context, r *roles.Process, undo *roles.Cleanup) (p pooled, err error) {
	access, closePool, err := c.openPool(ctx, r)
	if err != nil {
		return p, err
	}
	undo.Add(closePool)
	p.config, p.key = r.Pool(access), access.PrefixKey(r.Credentials.Secret)
	trees, socket, closeSegment := segment(r, c.Verifier)
	undo.Add(closeSegment)
	p.socket = socket
	if p.publisher, err = pool.NewPublisher(pool.PublisherConfig{Config: p.config, Trees: trees}); err != nil {
		return p, err
	}
	undo.Add(p.publisher.Close)
	return p, nil
}

// openPool returns the access to the pool, and runs a server for it if none is named.
func (c Setup) openPool(ctx context.Context, r *roles.Process) (pool.Access, func(), error) {
	switch {
	case c.Pool != "" && c.PoolListen != "":
		return pool.Access{}, nil, tandem.Errorf("", tandem.Invalid,
			"--pool and --pool-listen together: want one, a pool that is there or one to serve")
	case c.Pool != "" && c.PoolStore != "":
		return pool.Access{}, nil, tandem.Errorf("", tandem.Invalid,
			"--pool and --pool-store together: want --pool-store where the gateway serves the pool itself; "+
				"other NATS servers have their own setting for JetStream")
	case c.Pool != "":
		access, err := r.PoolAccess(ctx, c.Pool)
		return access, func() {}, err
	}
	server, err := c.startPool(r)
	if err != nil {
		return pool.Access{}, nil, err
	}
	undo := server.Close
	if c.PoolFile != "" {
		written := server.Access()
		written.URL = roles.ReachableURL(written.URL, r.Certificate)
		err := roles.WritePoolFile(c.PoolFile, written)
		if err != nil && tandem.KindOf(err) != tandem.Exhausted {
			server.Close()
			return pool.Access{}, nil, err
		}
		if err != nil {
			r.Log.Warn("processes that start now do not find the pool: its file is written once there is room", "error", err)
		}
		stop := keepPoolFile(c.PoolFile, written, err == nil)
		undo = func() {
			stop()
			server.Close()
			os.Remove(c.PoolFile)
		}
	}
	access := server.Access()
	if access.Role, access.Certificate = r.Role, r.Certificate; r.Certificate != nil {
		access.ServerName = r.Certificate.Name() // whatever the address, it is this process
	}
	return access, undo, nil
}

// poolFileTime is how often a gateway looks whether its pool's file is still there.
const poolFileTime = time.Second

// keepPoolFile writes the file again whenever somebody has removed it, or while it could not be written, until stop is called: without it,
// processes that start later find no pool.
func keepPoolFile(path string, access pool.Access, written bool) (stop func()) {
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(poolFileTime)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || !written {
				written = roles.WritePoolFile(path, access) == nil // its folder may be gone too: the next look tries again
			}
		}
	})
	return func() {
		close(done)
		work.Wait()
	}
}

// startPool starts the gateway's own NATS server.
func (c Setup) startPool(r *roles.Process) (*pool.Server, error) {
	server := pool.ServerConfig{Store: c.PoolStore}
	start := func() (*pool.Server, error) {
		s, err := server.Start()
		if tandem.KindOf(err) == tandem.Exhausted {
			r.Log.Warn("the pool has no registry, and processes find each other by announcements alone", "error", err)
			server.Store = ""
			s, err = server.Start()
		}
		return s, err
	}
	if c.PoolFile != "" { // whoever removes that folder after a kill removes the server's too
		if _, err := os.Lstat(filepath.Dir(c.PoolFile)); err == nil {
			server.Folder = filepath.Dir(c.PoolFile)
		}
	}
	if c.PoolListen == "" {
		return start()
	}
	if err := rpc.Guard(c.PoolListen, r.Certificate, c.InsecureListen); err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--pool-listen: %w", err)
	}
	secret, err := c.poolSecret(r.Credentials)
	if err != nil {
		return nil, err
	}
	server.Listen, server.TLS, server.Secret = c.PoolListen, r.Certificate.For(c.PoolListen), secret
	return start()
}

// poolSecret returns the secret that opens this gateway's pool to processes without its file; nil for none.
func (c Setup) poolSecret(own *rpc.Credentials) (*rpc.Secret, error) {
	switch {
	case own.Secret != nil || c.PoolFile != "":
		return own.Secret, nil
	case rpc.Loopback(c.PoolListen):
		return own.Listen(c.PoolListen)
	}
	return nil, tandem.Errorf("", tandem.Invalid,
		"--pool-listen %s: the other processes cannot know the pool's token: want --secret-file with the same secret at all, or "+
			"--pool-file", c.PoolListen)
}
