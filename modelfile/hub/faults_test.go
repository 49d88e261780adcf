package hub

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
)

const repoFile = "hf:org/repo"

// served returns a server with one model in org/repo.
func served(t testing.TB, size int) (*hubtest.Server, []byte) {
	s, m := hubtest.New(t), aModel(t, size)
	s.Add("org/repo", "m-Q4_K_M.gguf", m)
	return s, m
}

// TestMends: what a server does wrong for a while is waited for or asked for again, and the file is right in the end.
func TestMends(t *testing.T) {
	const size = 12 << 20
	for name, f := range map[string]hubtest.Faults{
		"nothing wrong":        {},
		"trouble":              {Status: []int{500, 502, 503, 504, 408}},
		"too many requests":    {Status: []int{429, 429}, RetryAfter: "0.05"},
		"connections cut":      {Cut: 1<<20 + 5000},
		"connections stall":    {Stall: 1<<20 + 70000, Stalls: 3},
		"no ranges":            {NoRanges: true},
		"no ranges, and cut":   {NoRanges: true, Cut: 7 << 20, Pages: 1},
		"a redirect to itself": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := served(t, size)
			if strings.Contains(name, "no ranges, and cut") { // goes on behind what it has, up to the cut: never whole
				s.Set(f)
				_, err := pull(t.Context(), storesFor(t, s), repoFile)
				if tandem.KindOf(err) != tandem.Unavailable {
					t.Errorf("%v", err)
				}
				return
			}
			if name == "a redirect to itself" {
				cdn, _ := served(t, size)
				f.Redirect = cdn.URL
			}
			s.Set(f)
			got, err := pull(t.Context(), storesFor(t, s), repoFile)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got.Path, m)
		})
	}
}

// TestRefuses: what a server does wrong for good is an error that says so, and nothing is left that looks whole.
func TestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		f    hubtest.Faults
		kind tandem.Kind
		says string
	}{
		"401":                 {hubtest.Faults{Always: 401}, tandem.Unauthenticated, "does not accept the token"},
		"403":                 {hubtest.Faults{Always: 403}, tandem.Unauthenticated, "accept the model's terms"},
		"404":                 {hubtest.Faults{Always: 404}, tandem.Invalid, "no such model"},
		"416":                 {hubtest.Faults{Status: []int{416}}, tandem.Corrupt, "shorter than the server said"},
		"429 for long":        {hubtest.Faults{Always: 429, RetryAfter: "3600"}, tandem.Exhausted, "try again in 1h0m0s"},
		"503 for ever":        {hubtest.Faults{Always: 503}, tandem.Unavailable, "has trouble"},
		"a digest":            {hubtest.Faults{Digest: strings.Repeat("0", 64)}, tandem.Corrupt, "its server had named 000"},
		"a linked digest":     {hubtest.Faults{Linked: strings.Repeat("0", 64)}, tandem.Corrupt, "the file's own address says"},
		"no digest at all":    {hubtest.Faults{Digest: "../../../etc/passwd"}, tandem.Invalid, "no GGUF file"},
		"a byte":              {hubtest.Faults{Flip: 5 << 20}, tandem.Corrupt, "was fetched with the digest"},
		"a range":             {hubtest.Faults{Short: true}, tandem.Corrupt, "answers a request for bytes"},
		"a length":            {hubtest.Faults{Length: 10}, tandem.Corrupt, "answers a request for"},
		"a length, no ranges": {hubtest.Faults{Length: -10, NoRanges: true}, tandem.Corrupt, "for a file of"},
		"a next page": {hubtest.Faults{Pages: 1, Next: "https://elsewhere.example/x"}, tandem.Corrupt,
			"goes on at another address"},
		"a redirect to ftp":   {hubtest.Faults{Redirect: "ftp://elsewhere.example"}, tandem.Unavailable, "want https"},
		"a redirect to files": {hubtest.Faults{Redirect: "file:///etc"}, tandem.Unavailable, "cannot be read"},
		"stalls for ever":     {hubtest.Faults{Stalls: 1000}, tandem.Unavailable, "nothing came for too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := served(t, 8<<20)
			s.Add("org/repo", "more.txt", nil)
			s.Set(c.f)
			stores := storesFor(t, s)
			tune := stores.tune
			stores.tune = func(s *session) { tune(s); s.stall = 100 * time.Millisecond }
			_, err := pull(t.Context(), stores, repoFile)
			if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
				t.Fatalf("%v: want %v, %q", err, c.kind, c.says)
			}
			if _, ok := find(t, stores, repoFile); ok {
				t.Error("it is found")
			}
			for _, path := range filesBelow(t, stores.HubCache) {
				if strings.Contains(path, "blobs") && !strings.Contains(path, ".tandem.") {
					t.Errorf("left: %s", path)
				}
			}
			if tandem.KindOf(err) == tandem.Exhausted && tandem.RetryAfter(err) != time.Hour {
				t.Errorf("try again in %v", tandem.RetryAfter(err))
			}
		})
	}
}

// TestHostile: a file whose digest is right and which is no model is refused, and is not there.
func TestHostile(t *testing.T) {
	good := aModel(t, 2<<20)
	for name, b := range map[string][]byte{"no model": []byte("<html>" + strings.Repeat("x", 2<<20)), "cut short": good[:len(good)-1],
		"only the beginning": good[:20]} {
		s := hubtest.New(t)
		s.Add("org/repo", "m-Q4_K_M.gguf", b)
		c := storesFor(t, s)
		n, _ := Parse(repoFile, "")
		p, err := c.Plan(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.Headers(t.Context()); err == nil {
			t.Errorf("%s: the header is taken", name)
		}
		sent := s.Sent()
		if sent > 1<<20 {
			t.Errorf("%s: %d bytes were fetched for a header", name, sent)
		}
		if _, err := c.Fetch(t.Context(), p, func(int64, int64, bool) {}); tandem.KindOf(err) != tandem.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
		if _, ok := find(t, c, repoFile); ok {
			t.Errorf("%s: it is found", name)
		}
		p.Close()
	}
}

// TestTokenStays: neither another host, nor another port of the same host, nor a subdomain gets the token.
func TestTokenStays(t *testing.T) {
	s, m := served(t, 3<<20)
	cdn, _ := served(t, 3<<20)
	s.Set(hubtest.Faults{Redirect: cdn.URL})
	c := storesFor(t, s)
	got, err := pull(t.Context(), c, repoFile)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.Path, m)
	for _, r := range s.Asked() {
		if r.Authorization != "Bearer secret" {
			t.Errorf("the hub was asked for %s without the token", r.Path)
		}
	}
	asked := cdn.Asked()
	for _, r := range asked {
		if r.Authorization != "" {
			t.Errorf("the other host was given the token for %s", r.Path)
		}
	}
	if len(asked) == 0 {
		t.Error("the other host was not asked")
	}
}

// TestPrivateAddresses: a redirect leads to no private address, by number or by name, unless the endpoint is on one of its kind. Here
// 127.0.0.1 stands for an address of the internet, and the rest of this machine's for private ones.
func TestPrivateAddresses(t *testing.T) {
	s, m := served(t, 3<<20)
	inner := hubtest.At(t, "127.0.0.2")
	inner.Add("org/repo", "m-Q4_K_M.gguf", m)
	kind := func(a netip.Addr) reach {
		if a == netip.MustParseAddr("127.0.0.1") {
			return public
		}
		return reachOf(a)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(inner.URL, "http://"), ":")
	for _, to := range []string{inner.URL, "http://127.0.0.3:" + port, "http://[::ffff:127.0.0.2]:" + port, "http://169.254.169.254",
		"http://10.0.0.1",
		"http://[::1]:" + port, "http://0.0.0.0:" + port} {
		s.Set(hubtest.Faults{Redirect: to})
		c := storesFor(t, s)
		tune := c.tune
		c.tune = func(s *session) { tune(s); s.reach = kind }
		_, err := pull(t.Context(), c, repoFile)
		if tandem.KindOf(err) != tandem.Unavailable || !strings.Contains(err.Error(), "public addresses only") {
			t.Errorf("%s: %v", to, err)
		}
	}
	// a name that means a public address at first and a private one when it is dialled: what is dialled counts
	session, err := (Config{}).newSession(s.URL, "", "x")
	if err != nil {
		t.Fatal(err)
	}
	defer session.close()
	session.reach = kind
	if _, err := session.dial(t.Context(), "tcp", "localhost:"+port); err == nil || !strings.Contains(err.Error(),
		"public addresses only") {
		// localhost is ::1 or 127.0.0.1; the latter is public here, and nothing listens there
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("by name: %v", err)
		}
	}
	if _, err := session.dial(t.Context(), "tcp", "127.0.0.2:"+port); err == nil || !strings.Contains(err.Error(),
		"public addresses only") {
		t.Errorf("dialled: %v", err)
	}
	if inner.Asked() != nil {
		t.Error("the inner server was asked")
	}
	// an endpoint of the same kind may send there
	s.Set(hubtest.Faults{Redirect: inner.URL})
	if got, err := pull(t.Context(), storesFor(t, s), repoFile); err != nil {
		t.Error(err)
	} else {
		same(t, got.Path, m)
	}
}

// TestReach: which addresses are whose.
func TestReach(t *testing.T) {
	for text, want := range map[string]reach{"8.8.8.8": public, "2606:4700::1": public, "127.0.0.1": loopback, "127.9.9.9": loopback,
		"::1":              loopback,
		"::ffff:127.0.0.1": loopback, "10.1.2.3": private, "172.16.0.1": private, "172.32.0.1": public, "192.168.1.1": private,
		"100.64.0.1":      private,
		"169.254.169.254": local, "fe80::1": local, "fe80::1%eth0": local, "fd00::1": private, "0.0.0.0": nowhere, "::": nowhere,
		"224.0.0.1":       nowhere,
		"255.255.255.255": nowhere, "64:ff9b::a00:1": private, "64:ff9b::808:808": public, "2002:a00:1::": private, "ff02::1": nowhere} {
		if got := reachOf(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %s address, want %s", text, got, want)
		}
	}
	if got := reachOf(netip.Addr{}); got != nowhere {
		t.Errorf("no address: %s", got)
	}
}

// TestFullDisk: a disk that is full is an error that says so; what was fetched stays, and the next pull goes on there.
func TestFullDisk(t *testing.T) {
	s, m := served(t, 16<<20)
	c := storesFor(t, s)
	var left atomic.Int64
	left.Store(9 << 20)
	testWrite = func(f *os.File, b []byte, off int64) (int, error) {
		if left.Add(-int64(len(b))) < 0 {
			return 0, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
		}
		return f.WriteAt(b, off)
	}
	defer func() { testWrite = nil }()
	_, err := pull(t.Context(), c, repoFile)
	if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), "no space left") {
		t.Fatal(err)
	}
	if _, ok := find(t, c, repoFile); ok {
		t.Error("it is found")
	}
	left.Store(1 << 40)
	sent := s.Sent()
	got, err := pull(t.Context(), c, repoFile)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.Path, m)
	if more := s.Sent() - sent; more > int64(len(m))-6<<20 {
		t.Errorf("%d bytes were fetched again", more)
	}
}

// TestUnwritable: a store that cannot be written is an error that says so.
func TestUnwritable(t *testing.T) {
	s, _ := served(t, 2<<20)
	c := storesFor(t, s)
	c.HubCache = "/proc/tandem-hub" // where root cannot make a folder either
	if _, err := pull(t.Context(), c, repoFile); err == nil || !strings.Contains(err.Error(), "the store cannot be written") {
		t.Error(err)
	}
	// it is named before anything is asked
	for _, name := range []string{repoFile, "tiny:1b", s.URL + "/x.gguf"} {
		c.Stores, c.Own = []string{"/proc/tandem-ollama"}, "/proc/tandem-own"
		n, err := Parse(name, c.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		s.Asked() // those before
		if err, asked := c.Writable(n), s.Asked(); tandem.KindOf(err) != tandem.Unavailable || len(asked) > 0 {
			t.Errorf("%s: %v, %d requests", name, err, len(asked))
		}
		if err := storesFor(t, s).Writable(n); err != nil {
			t.Errorf("%s: in folders that are not there yet: %v", name, err)
		}
	}
	// a link out of the store is not followed
	c = storesFor(t, s)
	outside := t.TempDir()
	if err := os.MkdirAll(filepath.Join(c.HubCache, "models--org--repo"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(c.HubCache, "models--org--repo", "blobs")); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t.Context(), c, repoFile); err == nil || len(filesBelow(t, outside)) > 0 {
		t.Errorf("%v: outside of the store lie %q", err, filesBelow(t, outside))
	}
}

// TestShared: of two that pull the same file, one fetches it, and the other waits and sees how far it is.
func TestShared(t *testing.T) {
	s, m := served(t, 12<<20)
	s.Set(hubtest.Faults{Rate: 12 << 20})
	c := storesFor(t, s)
	var waited atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			n, _ := Parse(repoFile, "")
			p, err := c.Plan(t.Context(), n)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			got, err := c.Fetch(t.Context(), p, func(done, total int64, waits bool) {
				if waits && done > 0 && done <= total {
					waited.Add(1)
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			same(t, got.Path, m)
		})
	}
	all.Wait()
	if s.Sent() > int64(len(m))+1<<20 {
		t.Errorf("%d bytes were fetched of %d", s.Sent(), len(m))
	}
	if waited.Load() == 0 {
		t.Error("the second saw no progress of the first")
	}
}

// TestOffline: what is there is used without a server, and nothing else is asked for.
func TestOffline(t *testing.T) {
	s, _ := served(t, 2<<20)
	c := storesFor(t, s)
	c.Offline = true
	if _, err := pull(t.Context(), c, repoFile); tandem.KindOf(err) != tandem.Unavailable || !strings.Contains(err.Error(),
		"HF_HUB_OFFLINE") {
		t.Error(err)
	}
	if s.Asked() != nil {
		t.Error("the server was asked")
	}
}

// TestRate: several connections take no more together than one: the server's rate is reached.
func TestRate(t *testing.T) {
	s, m := served(t, 10<<20)
	const rate = 10 << 20
	s.Set(hubtest.Faults{Rate: rate})
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := pull(ctx, storesFor(t, s), repoFile)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.Path, m)
	least := time.Duration(len(m)) * time.Second / rate
	t.Logf("%v, of at least %v", time.Since(begun), least)
	if s.Sent() > int64(len(m))+1<<20 {
		t.Errorf("%d bytes were sent for a file of %d: the header was fetched twice", s.Sent(), len(m))
	}
}

// TestRetryAfter: the header of that name holds seconds or a date; what is neither, or is over, counts as nothing.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{"7": 7 * time.Second, " 120 ": 2 * time.Minute,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute,
		"Fri, 02 Jan 2026 03:00:00 GMT": 0, "": 0, "-5": 0, "soon": 0, "1h": 0, "99999999999999999999": 0} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestRedirects: a redirect goes from https to https alone, and to no address with a password.
func TestRedirects(t *testing.T) {
	s, err := (Config{}).newSession("https://hub.example", "secret", "x")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for to, says := range map[string]string{
		"http://cdn.example/x": "want https", "https://u:p@cdn.example/x": "password",
		"ftp://cdn.example/x": "want https", "https://cdn.example/x": "", "/y": "", "//cdn.example/x": ""} {
		at, err := s.next(s.origin, to)
		if err == nil && (says != "" || at.Scheme != "https") || err != nil && (says == "" || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, %v: want %q", to, at, err, says)
		}
	}
}

// TestProxy: the standard variables name a proxy, which is asked for the hub's files, unless NO_PROXY names the hub. A proxy that lies
// about a file's bytes is found out by the digest.
func TestProxy(t *testing.T) {
	const endpoint = "http://hub.invalid" // a name that no server of names knows
	for _, c := range []struct {
		env, says string
		f         hubtest.Faults
	}{
		{env: "NO_PROXY=other.invalid"},
		{env: "NO_PROXY=hub.invalid", says: "cannot be reached"},
		{f: hubtest.Faults{Flip: 2 << 20}, says: "was fetched with the digest"},
		{f: hubtest.Faults{Redirect: "http://10.0.0.1"}, says: "public addresses only"},
	} {
		s, m := served(t, 3<<20)
		s.Set(c.f)
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := puller(ctx, dir, endpoint, repoFile, "HTTP_PROXY="+s.URL, "http_proxy="+s.URL, "NO_PROXY=", "no_proxy=", c.env)
		out, err := cmd.CombinedOutput()
		cancel()
		f, ok := find(t, pullerStores(dir, endpoint), repoFile)
		if c.says != "" {
			if err == nil || ok || !strings.Contains(string(out), c.says) {
				t.Errorf("%+v: %v, found %v: %s: want %q", c.f, err, ok, out, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v: %s", c.env, err, out)
			continue
		}
		same(t, f.Path, m)
	}
}
