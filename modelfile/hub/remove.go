package hub

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Removed is what Remove has removed.
type Removed struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Freed int64  `json:"freed_bytes"`
	Kept  int    `json:"kept,omitempty"` // files that another name still means
}

// Remove removes a model that tandem has fetched, also one of which a pull has fetched a part. Bytes that another name means stay, and so
// does what another program has fetched. What a running tandem uses is removed only with force; it goes on with what it has read. Errors:
// Invalid if tandem has not fetched such a model (ErrAbsent if it is not there), or n means several; Unavailable if another process fetches
// or uses it.
func (c Config) Remove(n Name, force bool) (Removed, error) {
	if n.Source == File {
		return Removed{}, tandem.Errorf(op, tandem.Invalid, "%q is a path: want the name of a model that tandem has pulled", n.Path)
	}
	if several := c.meant(n); len(several) > 1 {
		return Removed{}, tandem.Errorf(op, tandem.Invalid, "%s means %d models on this machine: want one of %s", n, len(several),
			strings.Join(several, ", "))
	}
	f, found, err := c.Find(n)
	if err != nil {
		return Removed{}, err
	}
	for _, root := range c.roots(n) {
		for _, r := range receipts(root) {
			if found && root == f.root && r.Link == f.link || !found && r.Name == n.String() {
				out, err := remove(root, r, force)
				if err == nil {
					out = out.and(removeBeside(root, r, force))
				}
				return out, err
			}
		}
	}
	if found {
		return Removed{}, tandem.Errorf(op, tandem.Invalid, "%s was not pulled by tandem, and is left: it lies at %s", n, f.Path)
	}
	hint := "tandem list names what there is"
	if near := c.near(n); len(near) > 0 {
		hint = "there is " + strings.Join(near, ", ")
	}
	return Removed{}, tandem.Errorf(op, tandem.Invalid, "%s is %w: %s", n, ErrAbsent, hint)
}

// ErrAbsent is in the error of Remove for a model that is not there.
var ErrAbsent = errors.New("not on this machine")

// meant returns the names of all models that tandem has fetched and that n may mean: several of a repository, if n names none of its
// quantisations.
func (c Config) meant(n Name) (all []string) {
	if n.Source != Hugging || n.Quant+n.Path != "" {
		return nil
	}
	for _, f := range c.listRepository(n) {
		if f.Ours {
			all = append(all, f.Name)
		}
	}
	return all
}

// near returns the names of models that are there and are called like n but for the tag or the quantisation.
func (c Config) near(n Name) (all []string) {
	for _, f := range c.List() {
		m, err := Parse(f.Name, c.Endpoint)
		if m.Quant, m.Path, m.Tag, m.Revision = n.Quant, n.Path, n.Tag, n.Revision; err == nil && m == n {
			all = append(all, f.Name)
		}
	}
	return all
}

// and adds what else was removed.
func (r Removed) and(more Removed) Removed {
	r.Files, r.Freed, r.Kept = r.Files+more.Files, r.Freed+more.Freed, r.Kept+more.Kept
	return r
}

// removeBeside removes the drafts beside a model that is gone, which Beside has named, unless another model has them beside it too.
func removeBeside(root string, of receipt, force bool) (out Removed) {
	for _, draft := range of.Drafts {
		link := filepath.Join(filepath.Dir(of.Link), path.Base(draft))
		has := func(r receipt) bool {
			return slices.Contains(r.Drafts, draft) && filepath.Dir(r.Link) == filepath.Dir(of.Link)
		}
		r, err := readReceipt(root, link)
		if err == nil && strings.Contains(r.Name, "@") && !slices.ContainsFunc(receipts(root), has) {
			more, _ := remove(root, r, force) // it can be removed by its name
			out = out.and(more)
		}
	}
	return out
}

// Begun reports whether tandem has fetched a model of that name, or a part of it.
func (c Config) Begun(n Name) bool {
	return slices.ContainsFunc(c.roots(n), func(root string) bool {
		return slices.ContainsFunc(receipts(root), func(r receipt) bool { return r.Name == n.String() })
	})
}

// roots returns the folders that may hold a name's receipt.
func (c Config) roots(n Name) []string {
	switch n.Source {
	case Hugging:
		return []string{filepath.Join(c.HubCache, n.repoFolder())}
	case Ollama:
		return c.Stores
	}
	return []string{c.Own}
}

// remove removes what a receipt names: first what gives the model its name, then its bytes, last the receipt.
func remove(root string, r receipt, force bool) (out Removed, err error) {
	out.Name = r.Name
	dir, err := os.OpenRoot(root)
	if err != nil {
		return out, unwritable(err)
	}
	defer dir.Close()
	release, err := r.hold(root, dir, force)
	if err != nil {
		return out, err
	}
	defer release()
	if r.Digest != "" {
		if b, err := files.ReadFile(filepath.Join(root, r.Link), maxManifest); err == nil && sumOf(b) != r.Digest {
			return out, tandem.Errorf(op, tandem.Invalid, "%s is another model now, which tandem did not pull: it is left", r.Name)
		}
	}
	for _, link := range append([]string{r.Link}, r.Links...) {
		if slices.Contains(r.Blobs, link) {
			continue
		}
		if err := removeFile(dir, link); err != nil {
			return out, unwritable(err)
		}
		dropRefs(dir, link)
	}
	named, all := named(root)
	for _, blob := range r.Blobs {
		if named[blob] || !all {
			out.Kept++
			continue
		}
		if st, err := dir.Stat(blob); err == nil {
			out.Files, out.Freed = out.Files+1, out.Freed+st.Size()
		}
		for _, path := range []string{blob, partPath(blob), recordsPath(blob)} {
			if err := removeFile(dir, path); err != nil {
				return out, unwritable(err)
			}
		}
	}
	if err := removeFile(dir, receiptPath(r.Link)); err != nil {
		return out, unwritable(err)
	}
	strays(dir, receiptFolder, "refs", "blobs", filepath.Dir(r.Link))
	emptied(dir, receiptFolder, "blobs", "snapshots", "refs", filepath.Dir(r.Link))
	if strings.HasPrefix(filepath.Base(root), "models--") {
		_ = os.Remove(root) // unless something is left in it
	}
	return out, nil
}

// hold takes the locks of the blobs, so that none is removed while a process fetches it or, without force, uses it.
func (r receipt) hold(root string, dir *os.Root, force bool) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	take := func(f *os.File, err error, why string) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			held = append(held, f)
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			release()
			return tandem.Errorf(op, tandem.Unavailable, why+": %w", r.Name, files.Reason(err))
		}
		return nil
	}
	for _, blob := range r.Blobs {
		f, err := os.OpenFile(lockOf(root, blob), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err := take(f, err, "%s is being pulled by another process"); err != nil {
			return nil, err
		}
		if f, err = dir.Open(blob); force && err == nil {
			held = append(held, f)
			continue
		}
		if err := take(f, err, "%s is used by a tandem that runs: stop it first, or want --force"); err != nil {
			return nil, err
		}
	}
	return release, nil
}

// Use marks a model's file as used until this process ends: Remove removes it with force alone then. What cannot be marked is not.
func Use(path string) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == nil && syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB) != nil {
		_ = syscall.Close(fd) // it was only read
	}
}

// lockOf returns the path of a blob's lock, as the plans have it.
func lockOf(root, blob string) string {
	switch base := filepath.Base(blob); {
	case strings.HasPrefix(filepath.Base(root), "models--"):
		return filepath.Join(filepath.Dir(root), ".locks", filepath.Base(root), base+".lock")
	case filepath.Dir(blob) == "blobs":
		return filepath.Join(root, receiptFolder, "locks", base)
	}
	return filepath.Join(root, blob+".lock")
}

// named returns the blobs that are still named by snapshots or manifests of a store; all is false if one of these cannot be read.
func named(root string) (blobs map[string]bool, all bool) {
	blobs, all = map[string]bool{}, true
	for _, top := range []string{"snapshots", "manifests"} {
		_ = filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist) || err == nil && (d.IsDir() || isStray(path)):
			case err != nil:
				all = false
			case top == "snapshots":
				if to, err := os.Readlink(path); err == nil {
					if !filepath.IsAbs(to) {
						to = filepath.Join(filepath.Dir(path), to)
					}
					if rel, err := filepath.Rel(root, to); err == nil {
						blobs[rel] = true
					}
				}
			default:
				b, err := files.ReadFile(path, maxManifest)
				m, wrong := readManifest(b, path)
				all = all && err == nil && (wrong == nil || tandem.KindOf(wrong) == tandem.Unsupported)
				for _, l := range append(m.Layers, m.Config) {
					blobs[filepath.Join("blobs", blobName(l.Digest))] = true
				}
			}
			return nil
		})
	}
	return blobs, all
}

// removeFile removes a file, which need not be there.
func removeFile(dir *os.Root, path string) error {
	if err := dir.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// dropRefs removes the folder of a snapshot that has become empty, and the references to it.
func dropRefs(dir *os.Root, link string) {
	parts := strings.Split(link, string(filepath.Separator))
	if len(parts) < 3 || parts[0] != "snapshots" {
		return
	}
	for d := filepath.Dir(link); d != "snapshots"; d = filepath.Dir(d) {
		if dir.Remove(d) != nil {
			return // another file lies there
		}
	}
	_ = fs.WalkDir(dir.FS(), "refs", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if b, err := dir.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == parts[1] {
			_ = dir.Remove(path) // a reference to nothing does no harm
		}
		return nil
	})
}

// stray is the pattern of a small file's name while it is written. Where a process was killed, it stays, and means nothing.
const stray = "*.tandem-*.incomplete"

func isStray(path string) bool {
	is, _ := filepath.Match(stray, filepath.Base(path))
	return is
}

// strays removes small files in folders of which a killed process has written a part.
func strays(dir *os.Root, folders ...string) {
	for _, folder := range folders {
		paths, _ := fs.Glob(dir.FS(), filepath.ToSlash(folder)+"/"+stray)
		for _, path := range paths {
			_ = dir.Remove(path) // it does no harm
		}
	}
}

// emptied removes those folders that are empty.
func emptied(dir *os.Root, folders ...string) {
	for _, f := range folders {
		_ = dir.Remove(f)
	}
}
