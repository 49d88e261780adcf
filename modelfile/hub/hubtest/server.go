// Package hubtest is a server of models for tests. It speaks the protocols of the Hugging Face hub and of Ollama's registry, and does on
// demand what servers should not do: it throttles, cuts, stalls, lies, redirects and refuses.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Commit is the commit that every revision is.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// Faults is what the server does wrong. Its zero value does nothing wrong.
type Faults struct {
	Rate       int               // bytes per second of all answers together; 0: as fast as it can
	Cut        int               // a connection is cut after so many bytes of a file; 0: never
	Stall      int               // after so many bytes of a file nothing more comes, on the first connections
	Stalls     int               // how many connections stall
	Status     []int             // of the next requests for files, one each
	RetryAfter string            // header of those
	Always     int               // status of all requests
	Redirect   string            // requests for files of the endpoint are redirected there; the path is kept
	NoRanges   bool              // whole files are sent
	Short      bool              // Content-Range speaks of another range
	Length     int               // added to the Content-Length of files
	Digest     string            // in place of the digest in listings
	Linked     string            // X-Linked-Etag in place of the digest
	Pages      int               // files of one page of a listing; 0: all
	Next       string            // address of the listing's next page, in place of the right one
	Flip       int               // this byte of files is another one
	Headers    map[string]string // further headers of files
}

// Request is what a server was asked.
type Request struct {
	Path, Authorization, Range string
}

// Server is one server. Its address is that of the hub and of a registry.
type Server struct {
	URL string

	mu     sync.Mutex
	faults Faults
	asked  []Request
	sent   int64 // bytes of files
	repos  map[string][]file
	tags   map[string][]byte // manifests
	blobs  map[string][]byte // by digest
	due    time.Time         // when the next byte may go out
	gone   chan struct{}
}

type file struct {
	path     string
	b        []byte
	sum, git string // its digests
}

// New starts a server at 127.0.0.1, which ends with the test.
func New(t testing.TB) *Server { return At(t, "127.0.0.1") }

// At starts a server at an address of this machine, such as 127.0.0.2.
func At(t testing.TB, ip string) *Server {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{repos: map[string][]file{}, tags: map[string][]byte{}, blobs: map[string][]byte{}, gone: make(chan struct{})}
	h := &httptest.Server{Listener: l, Config: &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}}
	h.Start()
	s.URL = h.URL
	t.Cleanup(func() {
		close(s.gone)
		h.CloseClientConnections()
		h.Close()
	})
	return s
}

// Set sets what the server does wrong from now on.
func (s *Server) Set(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// Asked returns the requests so far, and forgets them.
func (s *Server) Asked() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.asked
	s.asked = nil
	return all
}

// Sent returns how many bytes of files were sent so far.
func (s *Server) Sent() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// Add puts a file into a repository, such as "org/repo".
func (s *Server) Add(repo, path string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repos[repo] = append(s.repos[repo], file{path, b, Sum(b), gitSum(b)})
}

// Layer is a layer of a model, of the media type application/vnd.ollama.image.KIND.
type Layer struct {
	Kind string
	B    []byte
}

// Tag puts a model into the registry, such as "library/tiny:latest".
func (s *Server) Tag(name string, layers ...Layer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type layer struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int    `json:"size"`
	}
	m := struct {
		SchemaVersion int     `json:"schemaVersion"`
		Config        layer   `json:"config"`
		Layers        []layer `json:"layers"`
	}{SchemaVersion: 2}
	for _, l := range append(layers, Layer{"", []byte(`{"model_format":"gguf"}`)}) {
		d := "sha256:" + Sum(l.B)
		s.blobs[d] = l.B
		if l.Kind == "" {
			m.Config = layer{"application/vnd.docker.container.image.v1+json", d, len(l.B)}
			continue
		}
		m.Layers = append(m.Layers, layer{"application/vnd.ollama.image." + l.Kind, d, len(l.B)})
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers
	}
	s.tags[name] = b
}

// Sum returns the SHA-256 of b in hexadecimal digits.
func Sum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, Request{r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("Range")})
	f := s.faults
	s.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case f.Always != 0:
		w.Header().Set("Retry-After", f.RetryAfter)
		w.WriteHeader(f.Always)
	case len(parts) >= 6 && parts[0] == "api" && parts[4] == "revision":
		s.json(w, map[string]string{"sha": Commit}, s.repos[parts[2]+"/"+parts[3]] != nil)
	case len(parts) == 6 && parts[0] == "api" && parts[4] == "tree":
		s.list(w, r, parts[2]+"/"+parts[3], f)
	case len(parts) >= 5 && parts[2] == "resolve":
		for _, file := range s.repos[parts[0]+"/"+parts[1]] {
			if file.path == strings.Join(parts[4:], "/") {
				s.file(w, r, file, f)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	case len(parts) == 5 && parts[0] == "v2" && parts[3] == "manifests":
		b, ok := s.tags[parts[1]+"/"+parts[2]+":"+parts[4]]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		w.Write(b)
	case len(parts) == 5 && parts[0] == "v2" && parts[3] == "blobs" && s.blobs[parts[4]] != nil:
		s.file(w, r, file{b: s.blobs[parts[4]], sum: strings.TrimPrefix(parts[4], "sha256:")}, f)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *Server) json(w http.ResponseWriter, v any, ok bool) {
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	json.NewEncoder(w).Encode(v)
}

// list answers with a page of a repository's files.
func (s *Server) list(w http.ResponseWriter, r *http.Request, repo string, f Faults) {
	files := s.repos[repo]
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	to := len(files)
	if f.Pages > 0 && from+f.Pages < to {
		to = from + f.Pages
		next := f.Next
		if next == "" {
			next = fmt.Sprintf("%s%s?recursive=true&cursor=%d", s.URL, r.URL.Path, to)
		}
		w.Header().Set("Link", "<"+next+`>; rel="next"`)
	}
	all := []map[string]any{{"type": "directory", "path": "folder", "oid": Commit, "size": 0}}
	for _, file := range files[from:to] {
		sum := file.sum
		if f.Digest != "" {
			sum = f.Digest
		}
		e := map[string]any{"type": "file", "path": file.path, "size": len(file.b), "oid": file.git}
		if strings.HasSuffix(file.path, ".gguf") && !strings.Contains(file.path, "plain") {
			e["lfs"] = map[string]any{"oid": sum, "size": len(file.b), "pointerSize": 135}
		}
		all = append(all, e)
	}
	s.json(w, all, files != nil)
}

// gitSum returns the digest that git has for a file.
func gitSum(b []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// file answers with a file, or a part of it.
func (s *Server) file(w http.ResponseWriter, r *http.Request, of file, f Faults) {
	b := of.b
	s.mu.Lock()
	if len(s.faults.Status) > 0 {
		status := s.faults.Status[0]
		s.faults.Status = s.faults.Status[1:]
		s.mu.Unlock()
		w.Header().Set("Retry-After", f.RetryAfter)
		w.WriteHeader(status)
		return
	}
	stalls := s.faults.Stalls > 0
	if stalls {
		s.faults.Stalls--
	}
	s.mu.Unlock()
	describe(w, r, of, f)
	if f.Redirect != "" {
		to, err := url.Parse(f.Redirect)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Location", to.JoinPath(r.URL.Path).String())
		w.WriteHeader(http.StatusFound)
		return
	}
	from, to := 0, len(b)
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 && !f.NoRanges {
		if from >= len(b) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		to = min(to+1, len(b))
		off := 0
		if f.Short {
			off = 1
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from+off, to-1, len(b)))
		w.Header().Set("Content-Length", strconv.Itoa(to-from+f.Length))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		from, to = 0, len(b)
		w.Header().Set("Content-Length", strconv.Itoa(len(b)+f.Length))
	}
	s.send(w, r, b, from, to, f, stalls)
}

// describe sets the headers that a hub sends with a file.
func describe(w http.ResponseWriter, r *http.Request, of file, f Faults) {
	w.Header().Set("X-Repo-Commit", Commit)
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(of.b)))
	linked := of.sum
	if strings.Contains(r.URL.Path, "plain") {
		linked = of.git
	}
	if f.Digest != "" {
		linked = f.Digest
	}
	if f.Linked != "" {
		linked = f.Linked
	}
	w.Header().Set("X-Linked-Etag", `"`+linked+`"`)
	for k, v := range f.Headers {
		w.Header().Set(k, v)
	}
}

// send sends bytes at the server's rate, and with its faults.
func (s *Server) send(w http.ResponseWriter, r *http.Request, b []byte, from, to int, f Faults, stalls bool) {
	const chunk = 16 << 10
	for sent := 0; from < to; {
		n := min(chunk, to-from)
		if f.Cut > 0 {
			n = min(n, f.Cut-sent)
		}
		if stalls {
			n = min(n, f.Stall-sent)
		}
		if n <= 0 && stalls {
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-s.gone:
			}
		}
		if n <= 0 {
			panic(http.ErrAbortHandler)
		}
		s.throttle(n, f.Rate)
		out := b[from : from+n]
		if f.Flip >= from && f.Flip < from+n && f.Flip > 0 {
			out = append([]byte(nil), out...)
			out[f.Flip-from] ^= 1
		}
		if _, err := w.Write(out); err != nil {
			return
		}
		from, sent = from+n, sent+n
		s.mu.Lock()
		s.sent += int64(n)
		s.mu.Unlock()
	}
}

// throttle waits until n more bytes may go out.
func (s *Server) throttle(n, rate int) {
	if rate <= 0 {
		return
	}
	s.mu.Lock()
	now := time.Now()
	if s.due.Before(now) {
		s.due = now
	}
	at := s.due
	s.due = s.due.Add(time.Duration(n) * time.Second / time.Duration(rate))
	s.mu.Unlock()
	select {
	case <-time.After(time.Until(at)):
	case <-s.gone:
	}
}
