package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/tandem-llm/tandem/modelfile/files"
)

// receipt says what tandem has fetched for one name: it alone may be removed again. Receipts lie in the folder .tandem of a store, which
// the store's other users ignore.
type receipt struct {
	Name   string    `json:"name"`
	Link   string    `json:"link"`             // below the store: the manifest, or the model's only or first file
	Links  []string  `json:"links,omitempty"`  // all files in snapshots
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
