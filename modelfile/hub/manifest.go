package hub

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// manifest says what a model of Ollama's consists of. The format is that of OCI's and Docker's registries.
type manifest struct {
	Layers []layer `json:"layers"`
	Config layer   `json:"config"`
}

// layer is a part of a model: a file that is known by its digest.
type layer struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"` // "sha256:" and 64 hexadecimal digits
	Size      int64  `json:"size"`
}

// The layers that tandem reads, by their media types.
const (
	manifestType   = "application/vnd.docker.distribution.manifest.v2+json"
	modelLayer     = "application/vnd.ollama.image.model"
	templateLayer  = "application/vnd.ollama.image.template"
	paramsLayer    = "application/vnd.ollama.image.params"
	systemLayer    = "application/vnd.ollama.image.system"
	projectorLayer = "application/vnd.ollama.image.projector"
	adapterLayer   = "application/vnd.ollama.image.adapter"
)

const (
	maxManifest = 4 << 20
	maxLayers   = 64
	maxSmall    = 16 << 20 // bytes of a layer that is no model
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// readManifest reads a manifest, and checks that its digests can be names of files. Errors: Corrupt, Unsupported.
func readManifest(b []byte, of string) (m manifest, err error) {
	if err := json.Unmarshal(b, &m); err != nil {
		return m, tandem.Errorf(op, tandem.Corrupt, "the manifest of %s: %w", of, err)
	}
	if len(m.Layers) == 0 || len(m.Layers) > maxLayers {
		return m, tandem.Errorf(op, tandem.Corrupt, "the manifest of %s has %d layers: want 1 to %d", of, len(m.Layers), maxLayers)
	}
	models := 0
	for _, l := range append(m.Layers, m.Config) {
		switch {
		case l == (layer{}): // a manifest may have no configuration
		case !digestForm.MatchString(l.Digest) || l.Size < 0:
			return m, tandem.Errorf(op, tandem.Corrupt, "the manifest of %s has a layer of digest %.80q and %d bytes: want sha256:…", of,
				l.Digest, l.Size)
		case l.MediaType == adapterLayer:
			return m, tandem.Errorf(op, tandem.Unsupported, "%s is a model with an adapter (LoRA), which tandem does not apply: want one "+
				"without", of)
		case l.MediaType == modelLayer:
			models++
		case l.MediaType != projectorLayer && l.Size > maxSmall:
			return m, tandem.Errorf(op, tandem.Unsupported, "%s has a layer of type %.80q and %d bytes, which tandem does not read", of,
				l.MediaType, l.Size)
		}
	}
	if models != 1 {
		return m, tandem.Errorf(op, tandem.Unsupported, "%s consists of %d GGUF files: want one", of, models)
	}
	return m, nil
}

// layer returns the first layer of a type; ok is false if there is none.
func (m manifest) layer(mediaType string) (l layer, ok bool) {
	for _, l := range m.Layers {
		if l.MediaType == mediaType {
			return l, true
		}
	}
	return l, false
}

// blobName returns the name of a layer's file in Ollama's folder blobs.
func blobName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// registry returns the address of the name's registry. A registry on this machine has no certificate.
func (c Config) registry(n Name) string {
	if n.Host == "" {
		return strings.TrimRight(c.Registry, "/")
	}
	scheme := cmp.Or(n.Scheme, "https")
	host, _, _ := strings.Cut(n.Host, ":")
	if n.Scheme == "" && (host == "localhost" || strings.HasPrefix(host, "127.")) {
		scheme = "http"
	}
	return scheme + "://" + n.Host
}

// manifestPath returns the path of the name's manifest below a store.
func (c Config) manifestPath(n Name) string {
	host := n.Host
	if host == "" {
		if u, err := url.Parse(cmp.Or(c.Registry, defaultRegistry)); err == nil {
			host = u.Host
		}
	}
	return filepath.Join("manifests", host, n.Namespace, n.Model, n.Tag)
}

// findManifest finds a model in one of Ollama's stores.
func (c Config) findManifest(n Name) (f Found, ok bool, err error) {
	for _, store := range c.Stores {
		f, err := foundByManifest(store, c.manifestPath(n), n.String())
		switch {
		case err == nil:
			return f, true, nil
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		default:
			return f, false, err
		}
	}
	return f, false, nil
}

// foundByManifest returns the model of a manifest whose model's file is there. Errors: fs.ErrNotExist; those of readManifest.
func foundByManifest(store, link, name string) (f Found, err error) {
	b, err := files.ReadFile(filepath.Join(store, link), maxManifest)
	if err != nil {
		return f, err
	}
	m, err := readManifest(b, name)
	if err != nil {
		return f, err
	}
	at := func(kind string) (path string, size int64) {
		l, ok := m.layer(kind)
		if !ok {
			return "", 0
		}
		path = filepath.Join(store, "blobs", blobName(l.Digest))
		if st, err := os.Stat(path); err != nil || st.Size() != l.Size {
			return "", 0
		}
		return path, l.Size
	}
	f = Found{Name: name, Store: store, root: store, link: link, Ours: hasReceipt(store, link)}
	if f.Path, f.Size = at(modelLayer); f.Path == "" {
		return f, fs.ErrNotExist
	}
	f.Files = []string{f.Path}
	f.Template, _ = at(templateLayer)
	f.Params, _ = at(paramsLayer)
	f.System, _ = at(systemLayer)
	if _, ok := m.layer(projectorLayer); ok {
		f.Left = []string{"mmproj"}
	}
	return f, nil
}
