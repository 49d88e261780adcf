package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem/modelfile/files"
)

// receipt says what tandem has fetched for one name: it alone may be removed again. Receipts lie in the folder .tandem of a store, which
// the store's other users ignore.
type receipt struct {
	Name   string    `json:"name"`
	Link   string    `json:"link"`             // below the store: the manifest, or the model's only or first file
	Links  []string  `json:"links,omitempty"`  // all files in snapshots
	Drafts []string  `json:"drafts,omitempty"` // paths in the repository: files beside the model that draft for it, the likeliest first
	Blobs  []string  `json:"blobs,omitempty"`  // below the store: files with the bytes, of those that tandem has fetched
	Digest string    `json:"digest,omitempty"` // of the manifest: another program may have replaced it
	Pulled time.Time `json:"pulled"`
}

const (
	receiptFolder = ".tandem"
	maxReceipt    = 1 << 20
)

// shortSum returns a name for a text that cannot be a file's name.
func shortSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// base returns the file's name of an address.
func (n Name) base() string {
	u, err := url.Parse(n.URL)
	if err != nil {
		return "model.gguf"
	}
	return path.Base(u.Path)
}

// receiptPath returns the path of a link's receipt below its store.
func receiptPath(link string) string { return filepath.Join(receiptFolder, shortSum(link)+".json") }

func hasReceipt(store, link string) bool {
	_, err := readReceipt(store, link)
	return err == nil
}

// readReceipt returns the receipt of a link. Errors: fs.ErrNotExist, and those of a file that is none.
func readReceipt(store, link string) (r receipt, err error) {
	b, err := files.ReadFile(filepath.Join(store, receiptPath(link)), maxReceipt)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	if r.Link != link {
		return r, os.ErrNotExist
	}
	return r, nil
}

// Taken returns the bytes on disk of all that tandem has fetched, unfinished files included, which other users of the stores may have too.
func (c Config) Taken() (bytes int64) {
	roots, _ := filepath.Glob(filepath.Join(c.HubCache, "models--*--*")) // the pattern is right
	seen := map[string]bool{}
	for _, root := range append(append(roots, c.Stores...), c.Own) {
		for _, r := range receipts(root) {
			for _, blob := range r.Blobs {
				if path := filepath.Join(root, blob); !seen[path] {
					seen[path] = true
					bytes += taken(path)
				}
			}
		}
	}
	return bytes
}

// taken returns the bytes on disk of a file and of what an unfinished transfer has of it, which has holes.
func taken(path string) (bytes int64) {
	const block = 512 // of st_blocks, see stat(2)
	for _, at := range []string{path, partPath(path)} {
		if st, err := os.Stat(at); err == nil {
			if s, ok := st.Sys().(*syscall.Stat_t); ok {
				bytes += s.Blocks * block
			}
		}
	}
	return bytes
}

// receipts returns all receipts of a store; what is none is left out.
func receipts(store string) (all []receipt) {
	paths, _ := filepath.Glob(filepath.Join(store, receiptFolder, "*.json"))
	for _, path := range paths {
		var r receipt
		if b, err := files.ReadFile(path, maxReceipt); err == nil && json.Unmarshal(b, &r) == nil {
			all = append(all, r)
		}
	}
	return all
}
