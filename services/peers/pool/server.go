package pool

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

const (
	// startTime is how long an embedded server may take to accept connections; it needs about 10 ms.
	startTime = 5 * time.Second

	// InMemory as ServerConfig.Store keeps nothing on disk.
	InMemory = "memory"

	// storeBytes bounds what the store holds, in memory and on disk each. A registry needs a few kilobytes for each process.
	storeBytes = 64 << 20
)

// Server is a NATS server inside this process, by default on a port of 127.0.0.1 that the system chose. Its
// token lets clients in.
type Server struct {
	nats   *server.Server
	access Access
	done   chan struct{} // is closed at the end
	once   sync.Once
	work   sync.WaitGroup
}

// Access says how to reach a NATS server.
type Access struct {
	URL   string // "nats://host:port" or "tls://host:port", several separated by commas
	Token string // secret; "" for none, or if it is in URL
	// File holds such a URL with the secret. It is read at every attempt to connect, because a restarted
	// gateway has another port and secret. URL is then its first content without the secret, or "".
	File string
	// Certificate is for "tls://": what it is at each attempt to connect. nil: the system's roots, and none to show.
	Certificate *rpc.Certificate
	ServerName  string // that the server's certificate must have; "": the host's in URL
	// Role is what this process is. tandem's server limits it to what the role needs; "" claims none.
	Role rpc.Role
	// Secret makes the token if there is no other; nil for none.
	Secret *rpc.Secret

	as string // what it calls itself, in place of its role
}

// ServerConfig describes an embedded server.
type ServerConfig struct {
	Listen string      // host:port; "": a port of 127.0.0.1 that the system chooses
	Name   string      // of the pool, as Config.Name
	TLS    *tls.Config // clients must also show a certificate that it accepts, with a role in it; nil: the token is enough
	Secret *rpc.Secret // its token lets clients in too, like the server's own; nil for none
	// Store turns JetStream on, for a registry: a folder for its files, or InMemory. "": off, and the server writes no file.
	Store string
	Lease time.Duration // of the keys of the registry: DefaultLease
	// Folder is where InMemory makes the folder that JetStream wants all the same; "": the temporary directory.
	Folder string
}

// StartServer starts an embedded server on loopback, without JetStream. The caller must Close it. Errors: Unavailable.
func StartServer() (*Server, error) { return ServerConfig{}.Start() }

// Start starts an embedded server. The caller must Close it. Errors: Invalid, Unavailable.
func (c ServerConfig) Start() (*Server, error) {
	o := server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT}
	if c.Listen != "" {
		host, port, err := net.SplitHostPort(c.Listen)
		n, errPort := strconv.ParseUint(port, 10, 16)
		if err != nil || errPort != nil {
			return nil, tandem.Errorf(op, tandem.Invalid, "nats server at %q: want host:port", c.Listen)
		}
		if host != "" {
			o.Host = host
		}
		if n != 0 {
			o.Port = int(n)
		}
	}
	if c.TLS != nil {
		o.TLS, o.TLSVerify, o.TLSConfig, o.TLSTimeout = true, true, c.TLS, dialTime.Seconds()
	}
	d := &door{token: rand.Text(), roles: c.TLS != nil, secret: c.Secret, pool: Config{Name: c.Name}, maker: rand.Text()}
	if c.Store != "" {
		d.open = make(chan struct{})
	}
	o.CustomClientAuthentication = d
	undo, err := c.store(&o)
	if err != nil {
		return nil, err
	}
	s, err := startServer(&o, d)
	if err == nil && c.Store != "" {
		err = s.makeRegistry(d, cmp.Or(c.Lease, DefaultLease))
	}
	if c.Store == InMemory {
		undo() // nothing is ever written there, and so nothing is left by a process that is killed
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, err
	}
	s.access.Secret = c.Secret
	return s, nil
}

// store turns JetStream on in o, if c says so. In memory it needs a folder too while it starts, which undo removes. Errors: Invalid.
func (c ServerConfig) store(o *server.Options) (undo func(), err error) {
	undo = func() {}
	switch c.Store {
	case "":
		return undo, nil
	case InMemory:
		if o.StoreDir, err = os.MkdirTemp(c.Folder, "tandem-pool-"); err != nil {
			return undo, tandem.Errorf(op, tandem.Exhausted, "nats server's store: %w", err)
		}
		undo = func() { os.RemoveAll(o.StoreDir) }
	default:
		if err := files.Private(c.Store); err != nil {
			return undo, tandem.Errorf(op, tandem.Invalid, "nats server's store: %w: want a folder that this process may write to, or %s",
				err, InMemory)
		}
		o.StoreDir = c.Store
	}
	o.JetStream, o.JetStreamMaxMemory, o.JetStreamMaxStore = true, storeBytes, storeBytes
	return undo, nil
}

// door decides which clients get into a server, and as what. It implements server.Authentication.
//
// A client's name at the server is the role that it claims. The token in the pool's file is one for all roles, because who can read the
// file could read all of them: there the claim protects from mistakes alone. A token made of the secret is of one role. With
// certificates, a client has no role that its certificate lacks, whatever else it knows.
//
// A client that claims none, such as one of the release before roles were claimed, has the rights of all roles that it could claim.
//
// A gateway that calls itself readerName is let into the account of the registry, to read it.
type door struct {
	token  string
	roles  bool // they must have a certificate with a role
	secret *rpc.Secret
	pool   Config
	maker  string // token of the connection by which this process makes the registry

	open              chan struct{}   // is closed when the accounts are there; nil without a registry
	account, registry *server.Account // nil without a registry
}

// Check implements server.Authentication.
func (d *door) Check(c server.ClientAuthentication) bool {
	if d.open != nil {
		select {
		case <-d.open:
		case <-time.After(startTime):
			return false
		}
	}
	given, claimed := c.GetOpts().Token, rpc.Role(c.GetOpts().Username)
	if d.registry != nil && subtle.ConstantTimeCompare([]byte(given), []byte(d.maker)) == 1 {
		c.RegisterUser(&server.User{Account: d.registry})
		return true
	}
	reads := claimed == readerName && d.registry != nil
	if reads {
		claimed = rpc.Gateway
	}
	may := everyRole
	if d.roles {
		secure := c.GetTLSConnectionState()
		if secure == nil || len(secure.PeerCertificates) == 0 {
			return false
		}
		named := rpc.Roles(secure.PeerCertificates[0])
		may = slices.DeleteFunc(slices.Clone(everyRole), func(r rpc.Role) bool { return !slices.Contains(named, r) })
	}
	if claimed != "" {
		may = slices.DeleteFunc(slices.Clone(may), func(r rpc.Role) bool { return r != claimed })
	}
	if len(may) == 0 {
		return false
	}
	if subtle.ConstantTimeCompare([]byte(given), []byte(d.token)) != 1 && !d.secret.AcceptsPool(given, claimed) {
		return false
	}
	if reads {
		c.RegisterUser(&server.User{Permissions: d.pool.registryRights(false), Account: d.registry})
		return true
	}
	c.RegisterUser(&server.User{Permissions: d.pool.permissions(may, claimed != ""), Account: d.account})
	return true
}

func startServer(o *server.Options, d *door) (*Server, error) {
	o.ServerName, o.NoLog, o.NoSigs = "tandem", true, true
	o.MaxConn, o.MaxPending, o.MaxClosedClients = rpc.Room(mostConnections, 4), mostPending, 1
	ns, err := server.NewServer(o)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	log := new(complaint)
	ns.SetLoggerV2(log, false, false, false)
	s := &Server{nats: ns, done: make(chan struct{})}
	ns.Start()
	if why := log.fatal.Load(); why != nil || !ns.ReadyForConnections(startTime) {
		s.Close()
		if why == nil {
			return nil, tandem.Errorf(op, tandem.Unavailable, "nats server is not ready after %v", startTime)
		}
		return nil, tandem.Errorf(op, tandem.Unavailable, "nats server did not start: %s", *why)
	}
	s.work.Go(func() { s.dismissSilent(o.MaxConn) })
	s.access = Access{URL: ns.ClientURL(), Token: d.token}
	return s, nil
}

// Access returns how other processes reach the server. The token is a secret: pass it by a file or
// the environment, never on a command line.
func (s *Server) Access() Access { return s.access }

// Traffic is what a server has handled since it started, in both directions: what it got and what it handed on.
type Traffic struct{ Messages, Bytes int64 }

// Since returns what was handled between before and t, both of one server.
func (t Traffic) Since(before Traffic) Traffic {
	return Traffic{t.Messages - before.Messages, t.Bytes - before.Bytes}
}

// Traffic returns what the server has handled.
func (s *Server) Traffic() Traffic {
	v, err := s.nats.Varz(nil)
	if err != nil { // of a server without a system account, which ours has
		return Traffic{}
	}
	return Traffic{v.InMsgs + v.OutMsgs, v.InBytes + v.OutBytes}
}

// Close stops the server and waits until it has.
func (s *Server) Close() {
	s.once.Do(func() { close(s.done) })
	s.work.Wait()
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
}

// complaint keeps why a server could not start, and is silent otherwise.
type complaint struct{ fatal atomic.Pointer[string] }

func (c *complaint) Fatalf(format string, v ...any) {
	s := fmt.Sprintf(format, v...)
	c.fatal.Store(&s)
}

func (c *complaint) Errorf(string, ...any)  {}
func (c *complaint) Noticef(string, ...any) {}
func (c *complaint) Warnf(string, ...any)   {}
func (c *complaint) Debugf(string, ...any)  {}
func (c *complaint) Tracef(string, ...any)  {}
