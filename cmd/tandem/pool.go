package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
)

const (
	// poolFileTime is how long a process waits for the file of a gateway that starts at the same time.
	poolFileTime = time.Second
	// poolFileLimit is how long it waits if it must know from the file whether the pool is encrypted.
	poolFileLimit = 20 * time.Second
)

// startPool starts the gateway's own NATS server.
func (c *gatewayCmd) startPool(identity *rpc.Identity) (*pool.Server, error) {
	if c.PoolListen == "" {
		return pool.StartServer()
	}
	if err := rpc.Guard(c.PoolListen, identity, c.InsecureListen); err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--pool-listen: %w", err)
	}
	return pool.ServerConfig{Listen: c.PoolListen, TLS: identity.For(c.PoolListen)}.Start()
}

// poolAccess turns --pool into an address with its secret. A file that no gateway has written yet, or that the
// next gateway writes anew, is read whenever there is no connection. Errors: Invalid, Unavailable, Canceled.
func (r *role) poolAccess(ctx context.Context, flag string) (pool.Access, error) {
	if flag == "" {
		return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool is missing: want nats://host:port, or file:PATH as a gateway writes it with --pool-file")
	}
	path, isFile := strings.CutPrefix(flag, "file:")
	if !isFile {
		return pool.Access{URL: flag, TLS: r.identity.Client()}, nil
	}
	if !exists(filepath.Dir(path)) {
		return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool %s: directory %s does not exist", flag, filepath.Dir(path))
	}
	for begun := time.Now(); ; {
		access, err := pool.FromFile(path)
		access.TLS = r.identity.Client()
		waited := time.Since(begun)
		switch {
		case err == nil:
			return access, nil
		case !errors.Is(err, fs.ErrNotExist):
			return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool %s: %w", flag, err)
		case r.identity == nil && waited > poolFileTime:
			r.log.Warn("no gateway has written the pool's file yet: going on without the pool until one has", "file", path)
			return access, nil
		case waited > poolFileLimit:
			return pool.Access{}, tandem.Errorf("", tandem.Unavailable, "--pool %s: no gateway has written it", flag)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return pool.Access{}, tandem.Errorf("", tandem.Canceled, "--pool %s: %w", flag, ctx.Err())
		}
	}
}

// writePoolFile writes the URL of a pool, with its secret, for this user alone, all at once.
func writePoolFile(path string, access pool.Access) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".pool-*")
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "--pool-file %s: %w", path, reason(err))
	}
	defer os.Remove(tmp.Name())
	url := access.URL
	if access.Token != "" {
		url = strings.Replace(url, "://", "://"+access.Token+"@", 1)
	}
	_, err = tmp.WriteString(url + "\n")
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "--pool-file %s: %w", path, reason(err))
	}
	return nil
}
