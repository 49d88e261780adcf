package prefixes

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	secretName  = "secret"
	secretBytes = 32
)

// readSecret returns the secret of the store in dir. Errors: those of a file that is not there; Invalid for one that cannot be used.
func readSecret(dir string) ([]byte, error) {
	path := filepath.Join(dir, secretName)
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	b, err := files.ReadFile(path, secretBytes)
	if err == nil && st.Mode().Perm()&0o077 != 0 {
		err = errors.New("others can read or write it")
	}
	if err == nil && len(b) != secretBytes {
		err = errors.New("it is damaged")
	}
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", path, files.Reason(err))
	}
	return b, nil
}

// makeSecret returns the store's secret. If there is none that can be used, it makes one, and removes what is there: another secret, or
// none as in earlier releases, decided its names and keys, so nothing of it can be found again.
func makeSecret(c Config) ([]byte, error) {
	secret, why := readSecret(c.Dir)
	if why == nil {
		return secret, nil
	}
	path := filepath.Join(c.Dir, secretName)
	removed, err := Clear(c.Dir)
	if err != nil {
		return nil, err
	}
	if len(removed) > 0 || !errors.Is(why, fs.ErrNotExist) {
		c.Log.Warn("the prefix store has a new secret; what was kept without it, such as by an earlier release, is removed",
			"folder", c.Dir, "tenants", len(removed), "why", files.Reason(why))
	}
	secret = make([]byte, secretBytes)
	_, _ = rand.Read(secret)
	if !errors.Is(why, fs.ErrNotExist) {
		err = files.Replace(path, secret)
	} else if err = files.New(path, secret); errors.Is(err, fs.ErrExist) {
		return readSecret(c.Dir) // another process was faster
	}
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%s cannot be written: %w", path, files.Reason(err))
	}
	return secret, nil
}
