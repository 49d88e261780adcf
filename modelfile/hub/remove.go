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
// does what another program has fetched. Errors: Invalid if tandem has not fetched such a model, Unavailable if another process is fetching
// it.
func (c Config) Remove(n Name) (Removed, error) {
	if n.Source == File {
		return Removed{}, tandem.Errorf(op, tandem.Invalid, "%q is a path: want the name of a model that tandem has pulled", n.Path)
	}
	f, found, err := c.Find(n)
	if err != nil {
		return Removed{}, err
	}
	for _, root := range c.roots(n) {
		for _, r := range receipts(root) {
			if found && root == f.root && r.Link == f.link || !found && r.Name == n.String() {
				out, err := remove(root, r)
				return out.and(removeBeside(root, r)), err
			}
		}
	}
	if found {
		return Removed{}, tandem.Errorf(op, tandem.Invalid, "%s was not pulled by tandem, and is left: it lies at %s", n, f.Path)
	}
	return Removed{}, tandem.Errorf(op, tandem.Invalid, "there is no %s on this machine: tandem list names what there is", n)
}

// and adds what else was removed.
func (r Removed) and(more Removed) Removed {
	r.Files, r.Freed, r.Kept = r.Files+more.Files, r.Freed+more.Freed, r.Kept+more.Kept
	return r
}

// removeBeside removes the drafts beside a model that is gone, which Beside has named, unless another model has them beside it too.
func removeBeside(root string, of receipt) (out Removed) {
	for _, draft := range of.Drafts {
		link := filepath.Join(filepath.Dir(of.Link), path.Base(draft))
		has := func(r receipt) bool {
			return slices.Contains(r.Drafts, draft) && filepath.Dir(r.Link) == filepath.Dir(of.Link)
		}
		r, err := readReceipt(root, link)
		if err == nil && strings.Contains(r.Name, "@") && !slices.ContainsFunc(receipts(root), has) {
			more, _ := remove(root, r) // it can be removed by its name
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
func remove(root string, r receipt) (out Removed, err error) {
	out.Name = r.Name
	dir, err := os.OpenRoot(root)
	if err != nil {
		return out, unwritable(err)
	}
	defer dir.Close()
	release, err := r.hold(root, dir)
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

// hold takes the locks of the blobs, so that none is removed while a process fetches it.
func (r receipt) hold(root string, dir *os.Root) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	for _, blob := range r.Blobs {
		path := lockOf(root, blob)
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			held = append(held, f)
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			release()
			return nil, tandem.Errorf(op, tandem.Unavailable, "%s is being pulled by another process: %w", r.Name, files.Reason(err))
		}
	}
	return release, nil
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
