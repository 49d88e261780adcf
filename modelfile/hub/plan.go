package hub

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Plan is what a name means on a server, and where it will lie. Close ends it.
type Plan struct {
	Name  Name
	Size  int64    // bytes of all of the model's files
	Quant string   // "" if the file's name says none
	Left  []string // files beside it that are left
	Store string   // folder of the store

	s       *session
	wants   []want
	receipt receipt // but for the blobs
	root    string  // below Store: the folder that the paths of receipt begin at; "": Store
	small   []file  // layers that are no model, checked
	last    []file  // what makes it found: a reference or a manifest
}

// want is a file to be fetched. Paths are below the store.
type want struct {
	shown string // name for messages, and of its lent header
	blob  *blob
	at    string // where its bytes lie
	lock  string
	link  string // from here a link leads to at; "": at is its name
	head  *head
}

// file is a small file of a store.
type file struct {
	at string
	b  []byte
}

// Plan asks the name's server which files it means, and how large they are. No byte of weights is fetched. Errors: Unavailable if nothing
// may be asked, Invalid if there is no such model or no such file, Unauthenticated, Exhausted (too many requests), Corrupt, Unsupported.
func (c Config) Plan(ctx context.Context, n Name) (*Plan, error) {
	if c.Offline {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%s is not on this machine, and HF_HUB_OFFLINE forbids to fetch it", n)
	}
	var p *Plan
	var err error
	switch n.Source {
	case Hugging:
		p, err = c.planHugging(ctx, n)
	case Ollama:
		p, err = c.planOllama(ctx, n)
	case Web:
		p, err = c.planWeb(ctx, n)
	default:
		return nil, wrong(n.Path, "it is a path, and is not fetched")
	}
	if err != nil {
		return nil, err
	}
	for i := range p.wants {
		w := &p.wants[i]
		w.head = &head{ctx: ctx, s: p.s, b: w.blob}
		p.Size += w.blob.size
	}
	return p, nil
}

// Digest returns the digest of the model's only or first file, as "sha256:" and hexadecimal digits; "" if its server names none.
func (p *Plan) Digest() string { return p.wants[0].blob.digest }

// Here returns the bytes of the model that are on disk already, those of unfinished files included.
func (p *Plan) Here() (bytes int64) {
	for _, w := range p.wants {
		bytes += taken(filepath.Join(p.Store, w.at))
	}
	return bytes
}

// Close ends the plan's connections.
func (p *Plan) Close() { p.s.close() }

// Headers reads the headers of the model's files, and lends them to gguf.Open at path, with zeros in place of the weights, until back is
// called. Nothing is written. Errors: those of gguf.Header and of the server.
func (p *Plan) Headers(ctx context.Context) (path string, back func(), err error) {
	var backs []func()
	back = func() {
		for _, f := range backs {
			f()
		}
	}
	dir := fmt.Sprintf("header:%x/", rand.Uint64()) // no file's: two plans of one model do not meet
	for _, w := range p.wants {
		w.head.ctx = ctx
		if _, err := gguf.Header(w.head, w.blob.size, w.shown); err != nil {
			back()
			if w.head.err != nil { // the parser's words for it are of a file's
				err = w.head.err
			}
			return "", nil, err
		}
		backs = append(backs, gguf.Lend(dir+w.shown, w.shown, known(w.head.data), w.blob.size))
	}
	return dir + p.wants[0].shown, back, nil
}

// known is the beginning of a file that goes on with zeros.
type known []byte

// ReadAt implements io.ReaderAt.
func (k known) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	if off < int64(len(k)) {
		n = copy(p, k[off:])
	}
	clear(p[n:])
	return len(p), nil
}

// planWeb plans the file at an address.
func (c Config) planWeb(ctx context.Context, n Name) (*Plan, error) {
	s, err := c.newSession(n.URL, "", n.String())
	if err != nil {
		return nil, err
	}
	b, err := s.look(ctx, n.URL)
	if err != nil {
		return nil, err
	}
	at := filepath.Join(n.webFolder(), n.base())
	return &Plan{Name: n, Quant: quantOf(n.base()), Store: c.Own, s: s,
		wants:   []want{{shown: n.base(), blob: b, at: at, lock: at + ".lock"}},
		receipt: receipt{Name: n.String(), Link: at}}, nil
}

// ended returns a file's name with the ending .gguf.
func ended(name string) string { return strings.TrimSuffix(name, ".gguf") + ".gguf" }
