package prefixes

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	partPrefix = ".part-" // of a file that is being written; its writer has it locked
	partAge    = time.Second
)

// Use is what a tenant has in a folder of prefixes.
type Use struct {
	Tenant string    `json:"tenant"` // Folder of the tenant's name
	Files  int       `json:"files"`
	Bytes  int64     `json:"bytes"`
	Used   time.Time `json:"used"` // last
}

// kept is a file of a folder.
type kept struct {
	tenant, path string
	bytes        int64
	used         time.Time
}

// list returns all files in dir; those of part that are being written, or were when their process died.
func list(dir string) (all, parts []kept, err error) {
	tenants, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, tandem.Errorf(op, tandem.Unavailable, "folder %s: %w", dir, files.Reason(err))
	}
	for _, t := range tenants {
		if !t.IsDir() {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dir, t.Name()))
		if err != nil {
			continue // just removed
		}
		for _, e := range entries {
			st, err := e.Info()
			if err != nil || !st.Mode().IsRegular() {
				continue
			}
			f := kept{t.Name(), filepath.Join(dir, t.Name(), e.Name()), st.Size(), st.ModTime()}
			switch ext := filepath.Ext(e.Name()); {
			case strings.HasPrefix(e.Name(), partPrefix):
				parts = append(parts, f)
			case ext == "."+string(Page) || ext == "."+string(State):
				all = append(all, f)
			}
		}
	}
	return all, parts, nil
}

// sweep looks at the folder, and removes what is too old, and what is too much with n more bytes. The caller holds s.mu.
func (s *Store) sweep(n int64) error {
	now, move, done := s.look()
	defer done()
	all, parts, err := list(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if now.Sub(p.used) > partAge && abandoned(p.path) {
			_ = os.Remove(p.path)
		}
	}
	s.total = 0
	of := map[string][]kept{}
	sum := map[string]int64{}
	for _, f := range all {
		if move != 0 {
			f.used = f.used.Add(move)
			_ = os.Chtimes(f.path, f.used, f.used)
		}
		if s.cfg.Age > 0 && now.Sub(f.used) > s.cfg.Age {
			_ = os.Remove(f.path)
			continue
		}
		of[f.tenant] = append(of[f.tenant], f)
		sum[f.tenant] += f.bytes
		s.total += f.bytes
	}
	for _, files := range of {
		slices.SortFunc(files, func(a, b kept) int { return a.used.Compare(b.used) })
	}
	most := s.cfg.Limit
	if s.total+n > most {
		most -= most / 16 // so that not every write has to look
	}
	for s.total+n > most && len(of) > 0 {
		t := largest(sum)
		f := of[t][0]
		if of[t] = of[t][1:]; len(of[t]) == 0 {
			delete(of, t)
			delete(sum, t)
		} else {
			sum[t] -= f.bytes
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return tandem.Errorf(op, tandem.Unavailable, "removing %s: %w", f.path, files.Reason(err))
		}
		s.total -= f.bytes
	}
	return nil
}

// abandoned reports whether nobody writes to a part any more. One that has just been made may not be locked yet.
func abandoned(path string) bool {
	f, err := files.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// largest returns the tenant with most bytes.
func largest(sum map[string]int64) (most string) {
	for t, n := range sum {
		if most == "" || n > sum[most] || n == sum[most] && t < most {
			most = t
		}
	}
	return most
}

// Forget removes what is kept of a text from its beginning on.
func (t *Tenant) Forget(names []Name) {
	for _, n := range names {
		_ = os.Remove(t.path(n, Page)) // there may be none
		_ = os.Remove(t.path(n, State))
	}
}

// List returns what tenants have in a folder of prefixes, the last used first.
func List(dir string) ([]Use, error) {
	all, _, err := list(dir)
	if err != nil {
		return nil, err
	}
	of := map[string]Use{}
	for _, f := range all {
		u := of[f.tenant]
		u.Tenant, u.Files, u.Bytes = f.tenant, u.Files+1, u.Bytes+f.bytes
		if f.used.After(u.Used) {
			u.Used = f.used
		}
		of[f.tenant] = u
	}
	var uses []Use
	for _, u := range of {
		uses = append(uses, u)
	}
	slices.SortFunc(uses, func(a, b Use) int { return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.Tenant, b.Tenant)) })
	return uses, nil
}

// Clear removes all that tenants have in a folder of prefixes, or what those of some folders have. A process that uses them goes on.
func Clear(dir string, tenants ...string) (removed []Use, err error) {
	uses, err := List(dir)
	if err != nil {
		return nil, err
	}
	all, parts, err := list(dir)
	if err != nil {
		return nil, err
	}
	chosen := func(t string) bool { return len(tenants) == 0 || slices.Contains(tenants, t) }
	for _, f := range append(all, parts...) {
		if chosen(f.tenant) {
			if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, tandem.Errorf(op, tandem.Unavailable, "removing %s: %w", f.path, files.Reason(err))
			}
		}
	}
	for _, u := range uses {
		if chosen(u.Tenant) {
			removed = append(removed, u)
			_ = os.Remove(filepath.Join(dir, u.Tenant)) // not if a process has just written there
		}
	}
	return removed, nil
}
