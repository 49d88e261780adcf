package pool

import (
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem"
)

// startTime is how long an embedded server may take to accept connections; it needs about 10 ms.
const startTime = 5 * time.Second

// Server is a NATS server inside this process, on a port of 127.0.0.1 that the system chose, open to
// those who know its token.
type Server struct {
	nats   *server.Server
	access Access
}

// Access says how to reach a NATS server.
type Access struct {
	URL   string // "nats://host:port", several separated by commas
	Token string // secret; "" for none or one inside URL
}

// StartServer starts an embedded server; it writes no file. Errors: Unavailable.
func StartServer() (*Server, error) {
	return startServer("127.0.0.1", server.RANDOM_PORT, rand.Text())
}

func startServer(host string, port int, token string) (*Server, error) {
	ns, err := server.NewServer(&server.Options{
		ServerName: "tandem", Host: host, Port: port, Authorization: token,
		NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	log := new(complaint)
	ns.SetLoggerV2(log, false, false, false)
	s := &Server{nats: ns}
	ns.Start()
	if why := log.fatal.Load(); why != nil || !ns.ReadyForConnections(startTime) {
		s.Close()
		if why == nil {
			return nil, tandem.Errorf(op, tandem.Unavailable, "nats server is not ready after %v", startTime)
		}
		return nil, tandem.Errorf(op, tandem.Unavailable, "nats server did not start: %s", *why)
	}
	s.access = Access{URL: ns.ClientURL(), Token: token}
	return s, nil
}

// Access returns how other processes reach the server. The token is a secret: pass it by a file or
// the environment, never on a command line.
func (s *Server) Access() Access { return s.access }

// Close stops the server and waits until it has.
func (s *Server) Close() {
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
