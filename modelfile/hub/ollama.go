package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
)

// planOllama plans a model of a registry that speaks Ollama's protocol: GET /v2/NAMESPACE/MODEL/manifests/TAG and …/blobs/DIGEST.
func (c Config) planOllama(ctx context.Context, n Name) (*Plan, error) {
	endpoint := c.registry(n)
	s, err := c.newSession(endpoint, "", n.String())
	if err != nil {
		return nil, err
	}
	base := endpoint + "/v2/" + n.Namespace + "/" + n.Model
	raw, _, err := s.read(ctx, base+"/manifests/"+n.Tag, http.Header{"Accept": {manifestType}}, maxManifest)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(raw, n.String())
	if err != nil {
		return nil, err
	}
	link := c.manifestPath(n)
	p := &Plan{Name: n, Store: c.writableStore(), s: s, last: []file{{link, raw}}}
	p.receipt = receipt{Name: n.String(), Link: link, Digest: sumOf(raw)}
	for _, l := range append(m.Layers, m.Config) {
		at := filepath.Join("blobs", blobName(l.Digest))
		b := &blob{url: base + "/blobs/" + l.Digest, size: l.Size, digest: l.Digest}
		switch {
		case l == (layer{}):
		case l.MediaType == projectorLayer:
			p.Left = append(p.Left, "mmproj")
		case l.MediaType == modelLayer:
			p.wants = append(p.wants, want{shown: ended(n.Model + "-" + n.Tag), blob: b, at: at,
				lock: filepath.Join(receiptFolder, "locks", blobName(l.Digest))})
		default:
			got, _, err := s.read(ctx, b.url, nil, maxSmall)
			if err != nil {
				return nil, err
			}
			if sumOf(got) != l.Digest {
				return nil, lie("%s: the layer %s has another digest: pull it again", n, l.MediaType)
			}
			p.small = append(p.small, file{at, got})
		}
	}
	return p, nil
}

// sumOf returns the digest of bytes as manifests have it.
func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// writableStore returns the first of Ollama's stores that this user can write, or make.
func (c Config) writableStore() string {
	for _, store := range c.Stores {
		const writeAndSearch = 3 // of access(2)
		if err := accessible(store, writeAndSearch); err == nil || os.IsNotExist(err) {
			return store
		}
	}
	return c.Stores[0]
}
