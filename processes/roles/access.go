package roles

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// GatewayAddr is the default address of a gateway. The other processes have sockets: see DefaultSocket.
const GatewayAddr = "127.0.0.1:8451"

// QueuePerSession is how many requests may wait for each running one.
const QueuePerSession = 16

// TLSFiles returns the files that a process's settings name.
func TLSFiles(c settings.Certificate) rpc.TLSFiles {
	return rpc.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA}
}

// credentials returns what a process shows the others.
func (r *Process) credentials() (*rpc.Credentials, error) {
	certificate, err := TLSFiles(r.Peer.Certificate).Load()
	if err != nil {
		return nil, err
	}
	out := &rpc.Credentials{Certificate: certificate, Log: r.Log}
	if r.SecretFile != "" {
		if out.Secret, err = rpc.OpenSecret(r.SecretFile, r.Log); err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--secret-file: %w", err)
		}
	}
	return out, nil
}

// access loads the process's credentials, and returns where it serves and who may call it: clients may call a
// gateway, as many as have a place or wait for one; the other processes may call a drafter or verifier.
func (r *Process) access(name rpc.Role) (c rpc.ServerConfig, err error) {
	if r.Credentials, err = r.credentials(); err != nil {
		return c, err
	}
	r.Certificate = r.Credentials.Certificate
	r.Certificate.Report(r.Log, r.Counters)
	r.Credentials.Secret.Count(r.Counters)
	c = rpc.ServerConfig{Listen: cmp.Or(r.Listen, GatewayAddr), TLS: r.Certificate, Insecure: r.InsecureListen,
		Streams: max(128, (1+QueuePerSession)*r.Sessions+16)}
	if name == rpc.Gateway {
		return c, nil
	}
	if err := r.Certificate.Require(name); err != nil {
		return c, err
	}
	if c.Listen = r.Listen; r.Listen == "" {
		if c.Listen, err = DefaultSocket(name); err != nil {
			return c, err
		}
	}
	if err := rpc.Guard(c.Listen, r.Certificate, c.Insecure); err != nil {
		return c, err
	}
	c.Internal, c.Streams = true, max(1024, 32*r.Sessions)
	c.Secret, err = r.Credentials.Listen(c.Listen)
	return c, err
}

// DefaultSocket returns the address at which a process of that role listens by default; the other processes look for it there.
func DefaultSocket(role rpc.Role) (string, error) {
	dir, err := rpc.Folder()
	return "unix://" + filepath.Join(dir, string(role)+".sock"), err
}

// Reachable returns a served address in the form that others dial. For an address of all interfaces that is a name of this process's
// certificate or, without one, this host's name.
func Reachable(addr string, certificate *rpc.Certificate) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || strings.HasPrefix(addr, "unix://") {
		return addr
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return addr
	}
	name := ""
	if certificate != nil {
		name = certificate.Name()
	}
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return addr
		}
	}
	return net.JoinHostPort(name, port)
}

// ReachableURL is Reachable for the host of a URL.
func ReachableURL(raw string, certificate *rpc.Certificate) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	u.Host = Reachable(u.Host, certificate)
	return u.String()
}
