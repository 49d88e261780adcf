package pool

import (
	"cmp"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// maxFile bounds what is read of a file that names a server, in bytes.
const maxFile = 4 << 10

// fileServer is a server named in a file. It is a nats.CustomDialer that reads the file at every attempt,
// and uses the secret that it read with the address.
type fileServer struct {
	path string
	role rpc.Role
	as   string // what it calls itself

	mu   sync.Mutex
	user *url.Userinfo // as last read
}

// Dial implements nats.CustomDialer. It ignores the client's address, which is the file's first one.
func (f *fileServer) Dial(network, _ string) (net.Conn, error) {
	u, err := readURL(f.path)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.user = u.User
	f.mu.Unlock()
	return net.DialTimeout(network, u.Host, dialTime)
}

// token returns the token that the file holds, "" if it holds a name and a password.
func (f *fileServer) token() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, named := f.user.Password(); named {
		return ""
	}
	return f.user.Username()
}

// name returns the name and password that the file holds, else the role that is claimed.
func (f *fileServer) name() (user, password string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if password, named := f.user.Password(); named {
		return renamed(f.user.Username(), f.role, f.as), password
	}
	return f.as, ""
}

// renamed returns the name that a user has to whom the access gives one, where the process calls itself as. A user of NATSConfig has a
// role's name.
func renamed(user string, role rpc.Role, as string) string {
	if user == string(role) {
		return as
	}
	return user
}

// readURL returns the one URL, with a port, in the file at path. Errors: Invalid, wrapping fs.ErrNotExist.
func readURL(path string) (*url.URL, error) {
	r, err := files.Open(path)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "file %s: %w", path, files.Reason(err))
	}
	defer r.Close()
	b := make([]byte, maxFile)
	n, err := r.Read(b)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "file %s cannot be read or is empty", path)
	}
	u, err := url.Parse(strings.TrimSpace(string(b[:n])))
	if err != nil || u.Hostname() == "" || u.Port() == "" || (u.Scheme != "nats" && u.Scheme != "tls") {
		// never what it holds
		return nil, tandem.Errorf(op, tandem.Invalid, "file %s: want nats://TOKEN@host:port in it, as a gateway writes it with --pool-file",
			path)
	}
	return u, nil
}

// FromFile returns the access that the file at path names now, or will name: its server, port and secret may
// change at any time. Errors: Invalid; one that wraps fs.ErrNotExist means that nobody has written the file
// yet, and the access is sound.
func FromFile(path string) (Access, error) {
	a := Access{File: path}
	u, err := readURL(path)
	if err == nil {
		a.URL = u.Scheme + "://" + u.Host
	}
	return a, err
}

// where names the server in messages, without its secret.
func (a Access) where() string {
	if a.File != "" {
		return "of file " + a.File
	}
	return redact(a.URL)
}

// PrefixKey returns the key for summaries of prompts (tandem.PrefixKey). It is derived from the fleet's secret if there is one, else from
// the token or password that opens the pool, which all processes of the fleet have. It is zero if nothing is secret.
func (a Access) PrefixKey(fleet *rpc.Secret) tandem.PrefixKey {
	if key := fleet.PrefixKey(); key != (tandem.PrefixKey{}) {
		return key
	}
	token := ""
	if a.File != "" {
		if u, err := readURL(a.File); err == nil {
			token = userOf(u)
		}
		return rpc.PrefixKey(token)
	}
	for _, raw := range strings.Split(a.URL, ",") {
		if u, err := url.Parse(raw); err == nil && token == "" {
			token = userOf(u)
		}
	}
	if key := a.Secret.PrefixKey(); token == "" && key != (tandem.PrefixKey{}) {
		return key
	}
	return rpc.PrefixKey(cmp.Or(token, a.Token))
}

// userOf returns the token, or the user with its password, in a URL.
func userOf(u *url.URL) string {
	if password, has := u.User.Password(); has {
		return u.User.Username() + ":" + password
	}
	return u.User.Username()
}

// options returns the URL and the options with which the client connects.
func (a Access) options() (server string, opts []nats.Option) {
	server = a.URL
	as := cmp.Or(a.as, string(a.Role))
	if as != "" {
		opts = append(opts, nats.CustomInboxPrefix(inboxPrefix(as)))
	}
	if a.Certificate != nil && strings.Contains(server, "tls://") {
		secure := a.Certificate.Client()
		secure.ServerName = a.ServerName
		opts = append(opts, nats.Secure(secure), func(o *nats.Options) error {
			o.RootCAsCB = func() (*x509.CertPool, error) { return a.Certificate.Client().RootCAs, nil }
			return nil
		})
	}
	switch bare, token := tokenIn(server); {
	case a.File != "":
		if server == "" {
			server = "nats://127.0.0.1:4222" // never dialed
		}
		f := &fileServer{path: a.File, role: a.Role, as: as}
		return server, append(opts, nats.SetCustomDialer(f), nats.TokenHandler(f.token), nats.UserInfoHandler(f.name))
	case a.Token != "":
		return server, append(opts, nats.Token(a.Token), nats.UserInfo(as, ""))
	case token != "":
		return bare, append(opts, nats.Token(token), nats.UserInfo(as, ""))
	case a.Secret != nil && !strings.Contains(server, "@"):
		// Tandem's server reads the token, a server with NATSConfig the password.
		token := func() string { return a.Secret.PoolToken(a.Role) }
		return server, append(opts, nats.TokenHandler(token), nats.UserInfoHandler(func() (string, string) { return as, token() }))
	case !strings.Contains(server, "@"):
		return server, append(opts, nats.UserInfo(as, ""))
	}
	all := strings.Split(server, ",")
	for i, raw := range all {
		if u, err := url.Parse(raw); err == nil && u.User != nil {
			if password, named := u.User.Password(); named {
				u.User = url.UserPassword(renamed(u.User.Username(), a.Role, as), password)
				all[i] = u.String()
			}
		}
	}
	return strings.Join(all, ","), opts
}

// tokenIn returns the token that all of the URLs hold, and the URLs without it; "" if they hold none, several, or names with passwords.
func tokenIn(urls string) (bare, token string) {
	var without []string
	for i, raw := range strings.Split(urls, ",") {
		u, err := url.Parse(raw)
		if err != nil || u.User == nil {
			return urls, ""
		}
		if _, named := u.User.Password(); named || i > 0 && u.User.Username() != token {
			return urls, ""
		}
		token, u.User = u.User.Username(), nil
		without = append(without, u.String())
	}
	return strings.Join(without, ","), token
}
