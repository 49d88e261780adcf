package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// TLSFiles name the PEM files of a Certificate. The certificate must serve for both ends of a connection
// (serverAuth and clientAuth), because every process of tandem calls and is called.
type TLSFiles struct {
	Cert, Key string // this process's own; intermediate certificates follow the own one
	CA        string // whose certificates are trusted
}

// Certificate identifies a process on TCP and says which peers it trusts: mutual TLS 1.3 with processes of other
// machines. Unix sockets and loopback addresses use no TLS, on both sides. A nil Certificate means no
// encryption anywhere. Safe for concurrent use.
//
// Its files may be replaced while the process runs: each new connection uses what they hold then, and connections that are there go on.
// Files that do not belong together, or cannot be used, change nothing. So a fleet moves to another authority in three steps: its
// certificate beside the old one in all files of authorities, new certificates everywhere, the old authority away.
type Certificate struct {
	files TLSFiles
	now   *files.Followed[*identity]

	mu       sync.Mutex
	role     Role             // that it must name, "" for none
	log      *slog.Logger     // may be nil
	counters *tandem.Counters // may be nil
}

// identity is what the files of a Certificate hold.
type identity struct {
	own   *tls.Certificate
	roots *x509.CertPool
}

// mostPEM is the size limit of a file of certificates or of a key in bytes.
const mostPEM = 1 << 20

// Load reads the files and checks that they belong together. Without any file it returns nil. Errors:
// Invalid, naming the file.
func (f TLSFiles) Load() (*Certificate, error) {
	if f == (TLSFiles{}) {
		return nil, nil
	}
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return nil, tandem.Errorf("tls", tandem.Invalid, "certificate %q, key %q and CA %q: want all three, or none", f.Cert, f.Key, f.CA)
	}
	c := &Certificate{files: f}
	var err error
	if c.now, err = files.Follow(c.read, c.refused, f.Cert, f.Key, f.CA); err != nil {
		return nil, err
	}
	return c, nil
}

// Report makes c log and count ("certificates.refused") replaced files that cannot be used. A nil c does nothing.
func (c *Certificate) Report(log *slog.Logger, counters *tandem.Counters) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log, c.counters = log, counters
}

func (c *Certificate) refused(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused(c.log, c.counters, "certificates", why)
}

// refused counts and logs that a replaced secret of a kind cannot be used; log and counters may be nil.
func refused(log *slog.Logger, counters *tandem.Counters, kind string, why error) {
	if counters != nil {
		counters.Add(kind+".refused", 1)
	}
	if log != nil {
		log.Warn("the "+kind+" of this process stay as they were", "error", why)
	}
}

// read reads the files and checks what they hold.
func (c *Certificate) read() (*identity, error) {
	const op = "tls"
	out := &identity{roots: x509.NewCertPool()}
	for _, file := range []string{c.files.CA, c.files.Cert, c.files.Key} {
		b, err := files.ReadFile(file, mostPEM)
		if err != nil {
			return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", file, files.Reason(err))
		}
		if file == c.files.CA && !out.roots.AppendCertsFromPEM(b) {
			return nil, tandem.Errorf(op, tandem.Invalid, "CA %s: holds no PEM certificate", file)
		}
		if block, _ := pem.Decode(b); block == nil {
			return nil, tandem.Errorf(op, tandem.Invalid, "%s: holds no PEM block", file)
		}
	}
	cert, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "certificate %s and key %s: %w", c.files.Cert, c.files.Key, err)
	}
	out.own = &cert
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: out.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}})
		if err != nil {
			return nil, tandem.Errorf(op, tandem.Invalid,
				"certificate %s: others will refuse it: %w (want one that is valid now, signed by %s, for serverAuth and clientAuth)",
				c.files.Cert, err, c.files.CA)
		}
	}
	return out, c.names(cert.Leaf)
}

// Require demands that the certificate names the role of this process, now and whenever it is renewed. A nil c requires
// nothing. Errors: Invalid, with what to add to the certificate.
func (c *Certificate) Require(role Role) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	c.role = role
	c.mu.Unlock()
	return c.names(c.now.Now().own.Leaf)
}

// names checks that a certificate has the role.
func (c *Certificate) names(leaf *x509.Certificate) error {
	c.mu.Lock()
	role := c.role
	c.mu.Unlock()
	if role == "" || slices.Contains(Roles(leaf), role) {
		return nil
	}
	return tandem.Errorf("tls", tandem.Invalid, "certificate %s names %s: the other processes will refuse it as a %s's: "+
		"want subjectAltName = …, URI:%s in it (docs/guides/two-boxes.md)", c.files.Cert, rolesText(Roles(leaf), "no role"), role,
		role.URI())
}

// Server returns the configuration of a listener: a peer must show a certificate of the CA. Nil for a nil
// Certificate.
func (c *Certificate) Server() *tls.Config {
	if c == nil {
		return nil
	}
	now := func() *tls.Config {
		is := c.now.Now()
		// No tickets: with one, a peer whose authority is trusted no longer could go on.
		return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: is.roots,
			Certificates: []tls.Certificate{*is.own}, SessionTicketsDisabled: true}
	}
	out := now()
	out.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now(), nil }
	return out
}

// Client returns the configuration of one connection: the peer must show a certificate of the CA with the name
// or IP address that was dialed. Nil for a nil Certificate.
func (c *Certificate) Client() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: c.now.Now().roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.now.Now().own, nil }}
}

// Name returns a name or IP address that the own certificate is for, "" if it has none.
func (c *Certificate) Name() string {
	leaf := c.now.Now().own.Leaf
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return ""
}

// dialing is the client's side of TLS with what a process's certificate is at each handshake. It implements
// credentials.TransportCredentials.
type dialing func() *tls.Config

// ClientHandshake implements credentials.TransportCredentials.
func (d dialing) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(d()).ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements credentials.TransportCredentials. A connection that was dialed has no such end.
func (d dialing) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, tandem.Errorf("tls", tandem.Internal, "credentials for dialing serve nobody")
}

// Info implements credentials.TransportCredentials.
func (d dialing) Info() credentials.ProtocolInfo { return credentials.NewTLS(d()).Info() }

// Clone implements credentials.TransportCredentials.
func (d dialing) Clone() credentials.TransportCredentials { return d }

// OverrideServerName implements credentials.TransportCredentials; the name is that which was dialed.
func (d dialing) OverrideServerName(string) error { return nil }

// For returns the TLS configuration of a listener at addr: nil if other machines cannot reach it.
func (c *Certificate) For(addr string) *tls.Config {
	if Loopback(addr) {
		return nil
	}
	return c.Server()
}

// Guard refuses an address that other machines can reach, unless there is a certificate or plain
// is set. Errors: Invalid.
func Guard(addr string, c *Certificate, plain bool) error {
	if c != nil || plain || Loopback(addr) {
		return nil
	}
	return tandem.Errorf("listen", tandem.Invalid,
		"%s can be reached from other machines, without encryption: choose 127.0.0.1 or unix:///path, "+
			"give --tls-cert, --tls-key and --tls-ca, or say --insecure-listen", addr)
}

// Loopback reports whether addr, in Listen's form, can be reached only from this host. A name that cannot be
// resolved counts as loopback: Listen will report what is wrong with it.
func Loopback(addr string) bool {
	rest, isUnix, err := split(addr)
	if isUnix || err != nil {
		return true
	}
	tcp, err := net.ResolveTCPAddr("tcp", rest)
	return err != nil || tcp.IP.IsLoopback()
}
