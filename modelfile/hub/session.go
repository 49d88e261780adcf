package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
)

// session asks one server, and those to which it redirects. Safe for concurrent use.
//
// Redirects are followed here and not by package http, whose rules are weaker: it sends the token on to subdomains and to other ports. The
// check of addresses is made when a connection is dialled, behind the resolution of its name, so that a name cannot mean two addresses.
type session struct {
	origin *url.URL // the endpoint, as the user has configured it
	token  string   // "": none
	what   string   // what is fetched, for messages
	http   http.Client
	near   atomic.Int32 // reach of the origin's own address, once it is known
	proxy  atomic.Pointer[string]

	stall   time.Duration            // without a byte, after which a connection is given up
	pause   time.Duration            // before the first retry; doubled with each
	patient time.Duration            // the longest wait that a server can ask for
	reach   func(a netip.Addr) reach // reachOf; tests have others
	asked   func(r *http.Request)    // sees each request; may be nil
}

const (
	connectTime  = 15 * time.Second
	stallTime    = 20 * time.Second
	firstPause   = 500 * time.Millisecond
	longestPause = 15 * time.Second
	patience     = 2 * time.Minute
	maxRedirects = 8
	maxTries     = 6        // without a byte in between
	maxAnswer    = 32 << 20 // bytes of a listing
)

// newSession returns a session with the server at endpoint.
func (c Config) newSession(endpoint, token, what string) (*session, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, tandem.Errorf(op, tandem.Invalid, "the endpoint %q: want https://HOST", endpoint)
	}
	s := &session{origin: u, token: token, what: what, stall: stallTime, pause: firstPause, patient: patience, reach: reachOf}
	s.http = http.Client{
		Transport: &http.Transport{Proxy: s.proxied, DialContext: s.dial, DisableCompression: true, TLSHandshakeTimeout: connectTime,
			MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if c.tune != nil {
		c.tune(s)
	}
	return s, nil
}

// close ends all connections that are idle.
func (s *session) close() { s.http.CloseIdleConnections() }

// proxied returns the proxy for a request, by the standard variables.
func (s *session) proxied(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if u != nil {
		s.proxy.Store(new(hostPort(u)))
	}
	return u, err
}

// hostPort returns the host and the port of an address, the scheme's if it has none.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// refused is the error of an address to which a redirect may not lead.
type refused struct{ text string }

func (r *refused) Error() string { return r.text }

// notThere returns the error of a redirect to an address that only a user may name.
func notThere(host string, at netip.Addr, r reach) error {
	return &refused{fmt.Sprintf("it redirects to %s, which is %s, %s address: a server may send tandem to public addresses only", host, at,
		r)}
}

// dial connects, unless the address is one that only a user may name. A proxy is one that the user has named.
func (s *session) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	proxy := s.proxy.Load()
	named := addr == hostPort(s.origin)
	free := proxy != nil && *proxy == addr
	d := net.Dialer{Timeout: connectTime, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return &refused{fmt.Sprintf("the address %q cannot be read", address)}
		}
		r := s.reach(at.Addr())
		switch {
		case named:
			s.near.Store(int32(r))
		case !free && r != public && r != reach(s.near.Load()):
			return notThere(addr, at.Addr(), r)
		}
		return nil
	}}
	return d.DialContext(ctx, network, addr)
}

// status is the error of an answer that is neither a file nor a redirect.
type status struct {
	code  int
	after time.Duration // how long the server wants to be left alone; 0: it does not say
}

func (s *status) Error() string {
	return fmt.Sprintf("it answers %d %s", s.code, http.StatusText(s.code))
}

// answer is a response, and the header of the origin's own answer, which may have been a redirect.
type answer struct {
	*http.Response
	first http.Header
}

// get asks once for u and follows redirects. The caller ends the answer. Errors: *status, *refused, those of the network.
func (s *session) get(ctx context.Context, u string, h http.Header) (*answer, error) {
	at, err := url.Parse(u)
	if err != nil {
		return nil, &refused{"the server names an address that cannot be read"}
	}
	var first http.Header
	for range maxRedirects {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			return nil, &refused{"the server names an address that cannot be read"}
		}
		for k, v := range h {
			r.Header[k] = v
		}
		r.Header.Set("User-Agent", "tandem")
		r.Header.Set("Accept-Encoding", "identity")
		if s.token != "" && at.Scheme == s.origin.Scheme && hostPort(at) == hostPort(s.origin) {
			r.Header.Set("Authorization", "Bearer "+s.token)
		}
		if s.asked != nil {
			s.asked(r)
		}
		res, err := s.http.Do(r)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = res.Header
		}
		switch {
		case res.StatusCode == http.StatusOK || res.StatusCode == http.StatusPartialContent:
			return &answer{Response: res, first: first}, nil
		case res.StatusCode < 300 || res.StatusCode >= 400 || res.Header.Get("Location") == "":
			wrong := &status{code: res.StatusCode, after: retryAfter(res.Header.Get("Retry-After"), time.Now())}
			res.Body.Close()
			return nil, wrong
		}
		res.Body.Close()
		if at, err = s.next(at, res.Header.Get("Location")); err != nil {
			return nil, err
		}
	}
	return nil, &refused{fmt.Sprintf("more than %d redirects", maxRedirects)}
}

// next returns where a redirect leads to. An address in digits is checked here already: a proxy would connect to it.
func (s *session) next(at *url.URL, location string) (*url.URL, error) {
	to, err := at.Parse(location)
	if err == nil && hostPort(to) != hostPort(s.origin) {
		ip, digits := netip.ParseAddr(to.Hostname())
		if r := s.reach(ip); digits == nil && r != public && r != reach(s.near.Load()) {
			return nil, notThere(to.Host, ip, r)
		}
	}
	switch {
	case err != nil || to.Host == "":
		return nil, &refused{"a redirect to an address that cannot be read"}
	case to.User != nil:
		return nil, &refused{"a redirect to an address with a password"}
	case to.Scheme != "https" && (to.Scheme != "http" || at.Scheme != "http"):
		return nil, &refused{fmt.Sprintf("a redirect from %s to %s: want https", at.Scheme, to.Scheme)}
	}
	return to, nil
}

// retryAfter reads the header of that name: seconds, or a date. It returns 0 for anything else.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := time.ParseDuration(strings.TrimSpace(text) + "s"); err == nil && seconds > 0 {
		return seconds
	}
	if at, err := http.ParseTime(text); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// retries counts attempts that brought nothing.
type retries struct {
	s     *session
	tries int
}

// progress forgets the attempts so far: a byte has come.
func (r *retries) progress() { r.tries = 0 }

// wait waits before another attempt. It returns err, for a reader, if there is to be none.
func (r *retries) wait(ctx context.Context, err error) error {
	var wrong *status
	var no *refused
	var name *net.DNSError
	if gone := context.Cause(ctx); gone != nil {
		return gone
	}
	r.tries++
	pause := min(r.s.pause<<min(r.tries-1, 10), longestPause)
	switch {
	case errors.As(err, &no):
		return tandem.Errorf(op, tandem.Unavailable, "%s: %w", r.s.what, no)
	case errors.As(err, &wrong):
		again := wrong.code == http.StatusRequestTimeout || wrong.code == http.StatusTooManyRequests || wrong.code >= 500
		if !again || r.tries >= maxTries || wrong.after > r.s.patient {
			return r.s.plainly(wrong)
		}
		pause = max(pause, wrong.after)
	case tandem.KindOf(err) == tandem.Corrupt:
		return err
	case r.tries >= maxTries || errors.As(err, &name) && name.IsNotFound:
		return tandem.Errorf(op, tandem.Unavailable, "%s: %s cannot be reached: %w", r.s.what, r.s.origin.Host, plainCause(err))
	}
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plainCause strips the address, which may be a signed one, from an error of package http.
func plainCause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// plainly says what an answer means, and what would help.
func (s *session) plainly(wrong *status) error {
	kind, why := tandem.Unavailable, ""
	switch wrong.code {
	case http.StatusUnauthorized:
		kind, why = tandem.Unauthenticated, "there is no such model, or it is private: want its name, or a token in HF_TOKEN"
		if s.token != "" {
			why = "it does not accept the token in HF_TOKEN: want one that may read this model"
		}
	case http.StatusForbidden:
		kind, why = tandem.Unauthenticated, "access must be asked for on its page, and then needs a token in HF_TOKEN"
		if s.token != "" {
			why = "the token may not read it: accept the model's terms on its page, or take a token that may"
		}
	case http.StatusNotFound, http.StatusGone:
		kind, why = tandem.Invalid, "there is no such model"
	case http.StatusRequestedRangeNotSatisfiable:
		kind, why = tandem.Corrupt, "the file is shorter than the server said: pull it again"
	case http.StatusTooManyRequests:
		kind, why = tandem.Exhausted, "it has had too many requests from here"
		if wrong.after > 0 {
			why += fmt.Sprintf(": try again in %v", wrong.after.Round(time.Second))
		}
	default:
		if wrong.code >= 500 {
			why = "its server has trouble: try again later"
		}
	}
	if why != "" {
		why = ": " + why
	}
	return &tandem.Error{Op: op, Kind: kind, RetryAfter: wrong.after, Err: fmt.Errorf("%s: %s: %w%s", s.what, s.origin.Host, wrong, why)}
}

// read returns the whole answer to a request, of at most most bytes, and the headers of the origin's answer.
func (s *session) read(ctx context.Context, u string, h http.Header, most int64) (b []byte, first http.Header, err error) {
	r := retries{s: s}
	for {
		b, first, err = s.readOnce(ctx, u, h, most)
		if err == nil {
			return b, first, nil
		}
		if err = r.wait(ctx, err); err != nil {
			return nil, nil, err
		}
	}
}

func (s *session) readOnce(ctx context.Context, u string, h http.Header, most int64) ([]byte, http.Header, error) {
	ctx, beat, end := stalling(ctx, s.stall)
	defer end()
	a, err := s.get(ctx, u, h)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(beating{a.Body, beat}, most+1))
	switch {
	case err != nil:
		return nil, nil, cause(ctx, err)
	case int64(len(b)) > most:
		return nil, nil, tandem.Errorf(op, tandem.Corrupt, "%s: the answer of %s has more than %d bytes", s.what, s.origin.Host, most)
	}
	return b, a.first, nil
}

// errStalled is the cause of a request that was given up.
var errStalled = errors.New("nothing came for too long")

// stalling returns a context that ends if beat is not called for that long.
func stalling(ctx context.Context, d time.Duration) (_ context.Context, beat func(), end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(errStalled) })
	return ctx, func() { timer.Reset(d) }, func() { timer.Stop(); cancel(nil) }
}

// cause returns why a context has ended, err if it has not.
func cause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// beating tells of each read that brings something.
type beating struct {
	io.Reader
	beat func()
}

func (b beating) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if n > 0 {
		b.beat()
	}
	return n, err
}
