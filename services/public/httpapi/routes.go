package httpapi

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/httpapi/anthropic"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// route is what is served at a path.
type route struct {
	name   string               // for metrics: all paths with a model's name have one
	post   bool                 // POST, else GET and HEAD
	open   bool                 // without a key
	keys   *access.Keys         // the only ones let in; nil: those of all clients
	more   *access.Keys         // let in besides; nil: none
	errors func(*oai.Error) any // the body of an error; nil: OpenAI's
	handle func(s *Server, w http.ResponseWriter, r *call) error

	dialect string // of a route that generates, for metrics: whose API it is
}

// call is one request under way.
type call struct {
	*http.Request
	id      string // X-Request-Id
	tenant  string
	begun   time.Time
	below   string // the rest of the path, for a route of all paths below one
	errors  func(*oai.Error) any
	dialect string

	digest                     string // of path and body, once it was read
	ignored                    names  // fields of the body
	promptTokens, outputTokens int    // of all choices, once they have ended
	repeated                   int    // tokens of the piece that ended one of them
}

// left reports whether the client has closed the connection.
func (c *call) left() bool { return errors.Is(context.Cause(c.Context()), context.Canceled) }

// routes returns the handler of all requests. A path that ends in "/" stands for all paths below it.
func (s *Server) routes() http.Handler {
	all := map[string]route{
		"/v1/chat/completions":      {post: true, dialect: "chat", handle: (*Server).chat},
		"/v1/completions":           {post: true, dialect: "completions", handle: (*Server).completion},
		"/v1/messages":              {post: true, dialect: "messages", errors: anthropic.Error, handle: (*Server).messages},
		"/v1/messages/count_tokens": {post: true, dialect: "messages", errors: anthropic.Error, handle: (*Server).countTokens},
		"/v1/responses":             {post: true, dialect: "responses", handle: (*Server).respond},
		"/v1/embeddings":            {post: true, dialect: "embeddings", handle: (*Server).embeddings},
		"/v1/models":                {handle: (*Server).models},
		"/v1/models/":               {handle: (*Server).model},
		"/props":                    {handle: (*Server).props},
		"/tokenize":                 {post: true, handle: (*Server).tokenize},
		"/detokenize":               {post: true, handle: (*Server).detokenize},
		"/apply-template":           {post: true, handle: (*Server).applyTemplate},
		"/health":                   {open: true, handle: (*Server).health},
		"/v1/health":                {open: true, handle: (*Server).health},
		"/livez":                    {open: true, handle: (*Server).livez},
		"/readyz":                   {open: true, handle: (*Server).readyz},
	}
	maps.Copy(all, ollamaRoutes)
	maps.Copy(all, nativeRoutes)
	slots := all["/slots"]
	slots.more = s.cfg.MetricsKeys
	all["/slots"] = slots
	if s.cfg.Describe != nil {
		all["/tandem/v1/describe"] = route{more: s.cfg.MetricsKeys, handle: (*Server).describe}
	}
	if s.cfg.Metrics != nil {
		all["/metrics"] = route{keys: s.cfg.MetricsKeys, handle: relay(s.cfg.Metrics)}
	}
	if s.cfg.Page != nil {
		page := route{open: true, handle: relay(s.cfg.Page)}
		all["/"], all["/playground"], all["/playground/"] = page, page, page
	}
	for path, r := range all {
		r.name = path
		all[path] = r
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, all) })
	if s.cfg.Wrap != nil {
		h = s.cfg.Wrap(h)
	}
	return h
}

// methods returns what a route answers.
func (r route) methods() string {
	if r.post {
		return "POST"
	}
	return "GET, HEAD"
}

// relay returns the handler of a route that h answers. Its errors get OpenAI's form.
func relay(h http.Handler) func(*Server, http.ResponseWriter, *call) error {
	return func(_ *Server, w http.ResponseWriter, r *call) error {
		out := &relayed{ResponseWriter: w}
		h.ServeHTTP(out, r.Request)
		if out.failed == 0 {
			return nil
		}
		w.Header().Del("Content-Length")
		return oai.Refusal(out.failed, "unknown_url", "%s %.200s: %s", r.Method, r.URL.Path, short(strings.TrimSpace(out.says), 200))
	}
}

// relayed holds an error back.
type relayed struct {
	http.ResponseWriter
	failed int // its status, 0 for none
	says   string
}

// WriteHeader implements http.ResponseWriter.
func (w *relayed) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.failed = status
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *relayed) Write(p []byte) (int, error) {
	if w.failed == 0 {
		return w.ResponseWriter.Write(p)
	}
	if len(w.says) < maxNotice {
		w.says += string(p)
	}
	return len(p), nil
}

// Unwrap lets http.ResponseController find what lies below.
func (w *relayed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

const maxNotice = 1 << 10 // bytes of the text of an error

// find returns the route of a path, and what follows a route of all paths below one. Clients put the path of a call behind a base address
// that users write, so slashes too many and a missing "/v1" are forgiven, as by llama.cpp's server.
func find(all map[string]route, path string) (to route, below string, ok bool) {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if short := strings.TrimSuffix(path, "/"); short != "" {
		path = short
	}
	for _, path := range []string{path, "/v1" + path} {
		if to, ok = all[path]; ok {
			return to, "", true
		}
		for _, over := range []string{"/v1/models/", "/playground/"} {
			if to, ok = all[over]; ok && strings.HasPrefix(path, over) {
				return to, path[len(over):], true
			}
		}
	}
	return route{}, "", false
}

// serve answers one request: it gives it an id, checks whether it is allowed, and turns an error or a panic into an answer.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, all map[string]route) {
	c := &call{Request: r, id: public.RequestID(r.Header.Get("X-Request-Id")), begun: time.Now()}
	seen := &watched{ResponseWriter: w}
	h := w.Header()
	h.Set("X-Request-Id", c.id)
	h.Set("X-Content-Type-Options", "nosniff")
	to, below, known := find(all, r.URL.Path)
	if c.below, c.errors, c.dialect = below, to.errors, to.dialect; !known && strings.HasPrefix(r.URL.Path, "/api/") {
		c.errors = ollama.Error
	}
	if c.dialect == "messages" { // where Anthropic's libraries look for it
		h.Set("Request-Id", c.id)
	}
	r.Pattern = to.name
	s.allow(w, 0) // for handlers that set no other
	defer func() { s.ended(c, to.name, seen, recover()) }()
	err := s.admit(c, h, to, known)
	if err == nil && preflight(r) {
		s.answerPreflight(seen, r, to)
		return
	}
	if err == nil {
		s.countCall(c)
		c.Request = r.WithContext(traceparent.Extract(r.Context(), r.Header))
		err = to.handle(s, seen, c)
	}
	if err != nil {
		s.fail(seen, c, err)
	}
}

// admit checks whether a request is allowed.
func (s *Server) admit(c *call, h http.Header, to route, known bool) error {
	r := c.Request
	if err := s.checkHost(r.Host); err != nil {
		return err
	}
	if err := checkLength(c, h); err != nil {
		return err
	}
	if err := s.checkOrigin(r, h); err != nil {
		return err
	}
	if !known {
		return oai.Refusal(http.StatusNotFound, "unknown_url", "%s %.200s: there is no such path", r.Method, r.URL.Path)
	}
	if preflight(r) {
		return nil
	}
	keys := s.cfg.Keys
	if to.keys != nil {
		keys = to.keys
	}
	var ok bool
	for _, shown := range shownKeys(r.Header) {
		if c.tenant, ok = keys.Tenant(shown); ok {
			break
		}
	}
	if !ok && !to.open && !opened(to.more, r.Header) {
		h.Set("WWW-Authenticate", "Bearer")
		return oai.Refusal(http.StatusUnauthorized, "invalid_api_key",
			"the key is missing or wrong: want \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"")
	}
	want := to.methods()
	if r.Method != "POST" == to.post || !to.post && r.Method != "GET" && r.Method != "HEAD" {
		h.Set("Allow", want)
		return oai.Refusal(http.StatusMethodNotAllowed, "method_not_allowed", "%.20s %s: want %s", r.Method, to.name, want)
	}
	return nil
}

// shownKeys returns what a client shows as its key, as an Authorization header: Anthropic's clients have a header of their own.
func shownKeys(h http.Header) []string {
	shown := []string{h.Get("Authorization")}
	if key := h.Get("X-Api-Key"); key != "" {
		shown = append(shown, "Bearer "+key)
	}
	return shown
}

// opened reports whether a client shows one of the keys; nil keys are none.
func opened(keys *access.Keys, h http.Header) bool {
	return keys != nil && slices.ContainsFunc(shownKeys(h), func(shown string) bool { return keys.Opens([]string{shown}) })
}

// ended counts a request, and answers one that panicked.
func (s *Server) ended(c *call, name string, w *watched, panicked any) {
	if panicked != nil {
		s.cfg.Counters.Add("http.panics", 1)
		s.fail(w, c, tandem.Panicked(op, panicked))
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	s.cfg.Counters.Add("http.requests."+strconv.Itoa(w.status), 1)
	s.logRequest(c, name, w.status)
}

// fail answers a request with err, or only logs it if an answer has begun or no client waits for one.
func (s *Server) fail(w *watched, c *call, err error) {
	e := c.told(err)
	switch {
	case e.Status == http.StatusInternalServerError:
		stack := tandem.StackOf(err) // "" unless it was a panic of this process
		s.cfg.Log.Error("request", "path", c.URL.Path, "request", c.id, "status", e.Status, "error", err, "stack", stack)
	case c.left() && e.Status != http.StatusRequestTimeout || e.Status == oai.StatusClientClosed: // a late body ends the context too
		if w.status == 0 {
			w.WriteHeader(oai.StatusClientClosed) // for the metrics: the connection is gone
		}
		w.status = oai.StatusClientClosed
		return
	}
	if w.status != 0 {
		return
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if c.errors != nil {
		s.reply(w, e.Status, c.errors(e))
		return
	}
	s.reply(w, e.Status, e.Body())
}

// told returns err as the client is told it.
func (c *call) told(err error) *oai.Error {
	e := *oai.FromError(err)
	e.Request = c.id
	return &e
}

// broken ends a stream with err, which send tells the client if it can still be told; nil is no error.
func (s *Server) broken(c *call, events *sse.Writer, err error, send func(*oai.Error) error) error {
	if begun, broken := events.State(); err != nil && begun && broken == nil && !c.left() {
		s.cfg.Counters.Add("http.stream_errors", 1)
		_ = send(c.told(err))
	}
	return err
}

// reply sends an answer as JSON.
func (s *Server) reply(w http.ResponseWriter, status int, v any) {
	body := encode(v)
	s.allow(w, len(body))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// allow sets the write deadline so that the client has time to take an answer of about that many bytes.
func (s *Server) allow(w http.ResponseWriter, bytes int) {
	late := s.cfg.Stall + time.Duration(bytes)*time.Second/slowest
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(late))
}

// slowest is the least rate, in bytes a second, at which a client must take a long answer, after the time of Config.Stall.
const slowest = 64 << 10

// encode returns v, which must consist of plain values, as a line of JSON.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// watched remembers the status of an answer, 0 before it has begun.
type watched struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *watched) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *watched) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what lies below.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = crand.Read(b)
	return hex.EncodeToString(b)
}
