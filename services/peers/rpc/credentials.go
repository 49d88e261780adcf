package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
)

// Credentials are what a process shows the other processes and expects of them. The address decides which of them
// counts:
//
//	unix socket                      both ends are of one user: its mode says who can connect, and its other end who made it
//	TCP to other machines, with TLS  the certificates of both ends, and the roles in them
//	other TCP, such as loopback      a proof that the caller has the secret, with every call
//
// The secret itself is never sent. A process that announces itself at an address of the last kind, or at a socket if there is a Secret,
// signs the announcement with it (Sign), and others do not call it before they have checked that (Vouch). The secret in Folder would prove
// no more of a socket than its user does, because whoever could read it is that user. The zero value has no certificate, and the secret in
// Folder, which counts on loopback alone. Safe for concurrent use.
type Credentials struct {
	Certificate *Certificate // nil for none
	Secret      *Secret      // nil: that in Folder
	Log         *slog.Logger // nil discards

	once sync.Once
	own  *Secret // that in Folder, nil if there can be none
}

// Dialer returns a function that dials processes of a role; a peer whose certificate lacks the role is refused.
func (c *Credentials) Dialer(role Role) func(addr string) (*grpc.ClientConn, error) {
	return func(addr string) (*grpc.ClientConn, error) {
		return dial(addr, c.encryption(addr, role), c.secretFor(addr))
	}
}

// DialListener dials a process of this host by the address that it listens on, for a health check, which needs no
// secret. A process that listens on all addresses of this host is dialed on loopback, and must
// have a certificate with the same name as this process's.
func (c *Credentials) DialListener(addr string) (*grpc.ClientConn, error) {
	host, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	switch {
	case Loopback(addr):
		return dial(addr, nil, nil)
	case err != nil || ip == nil || !ip.IsUnspecified():
		return dial(addr, c.client(), nil)
	case c.Certificate == nil:
		return dial(net.JoinHostPort("127.0.0.1", port), nil, nil)
	}
	return dial(net.JoinHostPort("127.0.0.1", port), func() *tls.Config {
		secure := c.Certificate.Client()
		secure.ServerName = c.Certificate.Name()
		return secure
	}, nil)
}

// client returns Certificate.Client, nil without a certificate.
func (c *Credentials) client() func() *tls.Config {
	if c.Certificate == nil {
		return nil
	}
	return c.Certificate.Client
}

// encryption returns the TLS configuration for connections to addr, nil for none; the other end must have the role, unless that is "".
func (c *Credentials) encryption(addr string, role Role) func() *tls.Config {
	if c.Certificate == nil || onThisHost(addr) {
		return nil
	}
	if role == "" {
		return c.Certificate.Client
	}
	return func() *tls.Config {
		secure := c.Certificate.Client()
		secure.VerifyConnection = func(s tls.ConnectionState) error { return isRole(s.PeerCertificates[0], role) }
		return secure
	}
}

// isRole returns nil if a server's certificate names the role.
func isRole(cert *x509.Certificate, role Role) error {
	for _, r := range Roles(cert) {
		if r == role {
			return nil
		}
	}
	return tandem.Errorf("access", tandem.Unauthenticated,
		"the %s's certificate (%s) has %s: want URI:%s among its subject alternative names",
		role, cert.Subject, rolesText(Roles(cert), "no role"), role.URI())
}

// onThisHost reports whether addr, as written, is a unix socket or on loopback. No name is looked up: it could
// mean another machine by the time it is dialed.
func onThisHost(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return strings.HasPrefix(addr, "unix://") || err == nil && (host == "" || host == "localhost" || ip != nil && ip.IsLoopback())
}

// Sign returns a proof that what a process at addr announces comes from a process with the secret that counts at addr; "" if none does
// there.
func (c *Credentials) Sign(addr string, message []byte) string {
	return c.announcing(addr).sign(message)
}

// Vouch returns nil if proof is what Sign returns for message at addr, or an announcement from addr need not be proved. Errors:
// Unauthenticated.
func (c *Credentials) Vouch(addr string, message []byte, proof string) error {
	switch s := c.announcing(addr); {
	case s == nil, s.signed(message, proof):
		return nil
	case proof == "":
		return tandem.Errorf("access", tandem.Unauthenticated,
			"%s: the announcement has no proof of the secret: want the same --secret-file at both", addr)
	}
	return tandem.Errorf("access", tandem.Unauthenticated, "%s: the announcement was not signed with this process's secret: "+
		"want the same --secret-file at both", addr)
}

// OnThisHost reports whether addr, as written, is a unix socket or on loopback.
func OnThisHost(addr string) bool { return onThisHost(addr) }

// announcing returns the secret that proves an announcement of a process at addr, nil for none.
func (c *Credentials) announcing(addr string) *Secret {
	if strings.HasPrefix(addr, "unix://") {
		return c.Secret
	}
	return c.secretFor(addr)
}

// secretFor returns the secret to prove at addr, nil for none. The one in Folder is used on this host only.
func (c *Credentials) secretFor(addr string) *Secret {
	switch {
	case strings.HasPrefix(addr, "unix://"):
		return nil
	case c.Certificate != nil && !onThisHost(addr):
		return nil
	case c.Secret != nil:
		return c.Secret
	case !onThisHost(addr):
		return nil
	}
	c.once.Do(func() { c.own, _ = DefaultSecret(false, c.Log) }) // without one, the other end says what is missing
	return c.own
}

// PoolSecret returns the secret whose token opens the pool at a URL, or at several, nil for none.
func (c *Credentials) PoolSecret(urls string) *Secret {
	if c.Secret != nil {
		return c.Secret
	}
	for _, raw := range strings.Split(urls, ",") {
		u, err := url.Parse(raw)
		if err != nil || !onThisHost(u.Host) {
			return nil
		}
	}
	c.once.Do(func() { c.own, _ = DefaultSecret(false, c.Log) })
	return c.own
}

// Listen returns c's secret for a server of internal services at addr, nil if it needs none. On loopback the secret in Folder
// is made if need be; an address that other machines can reach without TLS needs a secret that they share. Errors: Invalid.
func (c *Credentials) Listen(addr string) (*Secret, error) {
	_, isUnix, err := split(addr)
	if err != nil || isUnix || c.Secret != nil {
		return c.Secret, err
	}
	if Loopback(addr) {
		return DefaultSecret(true, c.Log)
	}
	if c.Certificate != nil {
		return nil, nil
	}
	return nil, tandem.Errorf("listen", tandem.Invalid,
		"%s: other machines can reach it, and nothing tells tandem's processes from strangers: "+
			"want --tls-cert, --tls-key and --tls-ca, or --secret-file with the same secret at all of them", addr)
}
