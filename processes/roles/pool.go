package roles

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/pool"
)

const (
	// poolFileTime is how long a process waits for the file of a gateway that starts at the same time.
	poolFileTime = time.Second
	// poolFileLimit is how long it waits if only the file says whether the pool is encrypted.
	poolFileLimit = 20 * time.Second
)

// PoolAccess turns --pool into an address with its secret. A file is read again whenever there is no connection,
// because a gateway may write it later or rewrite it. Errors: Invalid, Unavailable, Canceled.
func (r *Process) PoolAccess(ctx context.Context, flag string) (pool.Access, error) {
	if flag == "" {
		return pool.Access{}, tandem.Errorf("", tandem.Invalid,
			"--pool is missing: want nats://host:port, or file:PATH as a gateway writes it with --pool-file")
	}
	path, isFile := strings.CutPrefix(flag, "file:")
	if !isFile {
		return pool.Access{URL: flag, Certificate: r.Certificate, Role: r.Role, Secret: r.Credentials.PoolSecret(flag)}, nil
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool %s: directory %s does not exist", flag, filepath.Dir(path))
	}
	for begun := time.Now(); ; {
		access, err := pool.FromFile(path)
		access.Certificate, access.Role = r.Certificate, r.Role
		waited := time.Since(begun)
		switch {
		case err == nil:
			return access, nil
		case !errors.Is(err, fs.ErrNotExist):
			return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool %s: %w", flag, err)
		case r.Certificate == nil && waited > poolFileTime:
			r.Log.Warn("no gateway has written the pool's file yet: going on without the pool until one has", "file", path)
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

// Pool returns what this process's publishers and consumers of a pool share. access is PoolAccess's.
func (r *Process) Pool(access pool.Access) pool.Config {
	return pool.Config{Access: access, Counters: r.Counters, Log: r.Log, Now: r.Now}
}

// poolFileBytes is what the size of a pool's file is a multiple of, so that another gateway's fits in its place when the disk is full.
const poolFileBytes = 512

// WritePoolFile writes the URL of a pool, with its secret, readable only for this user; on a full disk in place of what is there. Errors:
// Exhausted on a full disk without such a file; Invalid.
func WritePoolFile(path string, access pool.Access) error {
	url := access.URL
	if access.Token != "" {
		url = strings.Replace(url, "://", "://"+access.Token+"@", 1)
	}
	url += strings.Repeat("\n", poolFileBytes-len(url)%poolFileBytes)
	err := files.Overwrite(path, []byte(url))
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return tandem.Errorf("", tandem.Exhausted, "--pool-file %s: %w", path, files.Reason(err))
	case err != nil:
		return tandem.Errorf("", tandem.Invalid, "--pool-file %s: %w", path, files.Reason(err))
	}
	return nil
}
