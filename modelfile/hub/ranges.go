package hub

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem"
)

// blob is a file on a server.
type blob struct {
	url    string
	size   int64
	digest string // "sha256:" or "git:" and hexadecimal digits; "": the server names none
	etag   string // of a file without digest: tells its versions apart; "": the server names none
}

// identity says which bytes these are, for what is kept of an unfinished transfer.
func (b *blob) identity() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%d %s %s %s", b.size, b.digest, b.etag, shortSum(b.url))), " ")
}

func lie(format string, args ...any) error { return tandem.Errorf(op, tandem.Corrupt, format, args...) }

// open asks for the bytes from to to of b, to excluded. ranged is false if the server sends all of it, of which what comes before from has
// been skipped. The caller closes the body, and ends ctx with it. Errors: those of get; Corrupt if the answer contradicts what is known.
func (s *session) open(ctx context.Context, b *blob, from, to int64, beat func()) (body io.ReadCloser, ranged bool, err error) {
	a, err := s.get(ctx, b.url, http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}})
	if err != nil {
		return nil, false, cause(ctx, err)
	}
	if err := s.sound(a, b, from, to); err != nil {
		a.Body.Close()
		return nil, false, err
	}
	if a.StatusCode == http.StatusPartialContent {
		return a.Body, true, nil
	}
	if _, err := io.CopyN(io.Discard, beating{a.Body, beat}, from); err != nil {
		a.Body.Close()
		return nil, false, cause(ctx, err)
	}
	return a.Body, false, nil
}

// sound compares what an answer says of itself with what is known of the file.
func (s *session) sound(a *answer, b *blob, from, to int64) error {
	if linked := tag(a.first.Get("X-Linked-Etag")); linked != "" && b.digest != "" && linked != hexOf(b.digest) {
		return lie("%s: the listing says that the file's digest is %s, the file's own address says %.80q: pull it again", s.what, b.digest,
			linked)
	}
	if size := a.first.Get("X-Linked-Size"); size != "" && size != strconv.FormatInt(b.size, 10) {
		return lie("%s: the listing says that the file has %d bytes, the file's own address says %.40q: pull it again", s.what, b.size,
			size)
	}
	if now := tag(a.Header.Get("Etag")); b.digest == "" && b.etag != "" && now != b.etag {
		return lie("%s: the file has changed on the server while it was fetched: pull it again", s.what)
	}
	if a.StatusCode == http.StatusOK {
		if a.ContentLength >= 0 && a.ContentLength != b.size {
			return lie("%s: %s sends %d bytes for a file of %d", s.what, s.origin.Host, a.ContentLength, b.size)
		}
		return nil
	}
	var first, last, total int64
	got := a.Header.Get("Content-Range")
	n, _ := fmt.Sscanf(got, "bytes %d-%d/%d", &first, &last, &total) // n says how much was read
	if n < 2 || first != from || last != to-1 || n == 3 && total != b.size {
		return lie("%s: %s answers a request for bytes %d to %d of %d with %.80q", s.what, s.origin.Host, from, to-1, b.size, got)
	}
	if a.ContentLength >= 0 && a.ContentLength != to-from {
		return lie("%s: %s answers a request for %d bytes with %d", s.what, s.origin.Host, to-from, a.ContentLength)
	}
	return nil
}

// tag strips what surrounds an entity tag.
func tag(etag string) string { return strings.Trim(strings.TrimPrefix(etag, "W/"), `"`) }

// hexOf returns a digest without its kind.
func hexOf(digest string) string {
	_, sum, _ := strings.Cut(digest, ":")
	return sum
}

// look finds out the size of a file of which only the address is known.
func (s *session) look(ctx context.Context, u string) (*blob, error) {
	r := retries{s: s}
	for {
		b, err := s.lookOnce(ctx, u)
		if err == nil {
			return b, nil
		}
		if err = r.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

func (s *session) lookOnce(ctx context.Context, u string) (*blob, error) {
	ctx, _, end := stalling(ctx, s.stall)
	defer end()
	a, err := s.get(ctx, u, http.Header{"Range": {"bytes=0-0"}})
	if err != nil {
		return nil, cause(ctx, err)
	}
	defer a.Body.Close()
	b := &blob{url: u, size: a.ContentLength, etag: tag(a.Header.Get("Etag"))}
	if a.StatusCode == http.StatusPartialContent {
		_, total, _ := strings.Cut(a.Header.Get("Content-Range"), "/")
		if b.size, err = strconv.ParseInt(total, 10, 64); err != nil {
			b.size = -1
		}
	}
	if b.size <= 0 {
		return nil, lie("%s: %s does not say how large the file is", s.what, s.origin.Host)
	}
	return b, nil
}

// head is the beginning of a file on a server, as far as it was read: an io.ReaderAt for the parser, which reads forward.
type head struct {
	ctx context.Context
	s   *session
	b   *blob

	mu     sync.Mutex
	data   []byte
	ranged bool // the server sends parts of files
	err    error
}

const maxHead = 300 << 20 // bytes: the parser wants a header of at most 256 MiB

// ReadAt implements io.ReaderAt.
func (h *head) ReadAt(p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := min(off+int64(len(p)), h.b.size)
	if end > maxHead {
		return 0, tandem.Errorf(op, tandem.Unsupported, "%s: the header has more than %d bytes", h.s.what, maxHead)
	}
	r := retries{s: h.s}
	for int64(len(h.data)) < end {
		had := len(h.data)
		err := h.more(end)
		if len(h.data) > had {
			r.progress()
		}
		if err != nil {
			if h.err = r.wait(h.ctx, err); h.err != nil {
				return 0, h.err
			}
		}
	}
	if off >= end {
		return 0, io.EOF
	}
	n := copy(p, h.data[off:end])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// more reads on to the byte end.
func (h *head) more(end int64) error {
	ctx, beat, stop := stalling(h.ctx, h.s.stall)
	defer stop()
	from := int64(len(h.data))
	body, ranged, err := h.s.open(ctx, h.b, from, end, beat)
	if err != nil {
		return err
	}
	defer body.Close()
	h.ranged = ranged
	buf := make([]byte, end-from)
	n, err := io.ReadFull(beating{body, beat}, buf)
	h.data = append(h.data, buf[:n]...)
	return cause(ctx, err)
}
