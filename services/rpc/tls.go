package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/files"
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
type Certificate struct {
	files TLSFiles
	roots *x509.CertPool

	mu   sync.Mutex
	role Role             // that it must name, "" for none
	cert *tls.Certificate // as last read
	seen time.Time        // modification time of the file that it was read from
}

// mostPEM is the size limit of a file of certificates or of a key in bytes.
const mostPEM = 1 << 20

// Load reads the files and checks that they belong together. Without any file it returns nil. Errors:
// Invalid, naming the file.
func (f TLSFiles) Load() (*Certificate, error) {
	const op = "tls"
	if f == (TLSFiles{}) {
		return nil, nil
	}
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return nil, tandem.Errorf(op, tandem.Invalid, "certificate %q, key %q and CA %q: want all three, or none", f.Cert, f.Key, f.CA)
	}
	c := &Certificate{files: f, roots: x509.NewCertPool()}
	ca, err := files.ReadFile(f.CA, mostPEM)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "CA %s: %w", f.CA, bare(err))
	}
	if !c.roots.AppendCertsFromPEM(ca) {
		return nil, tandem.Errorf(op, tandem.Invalid, "CA %s: holds no PEM certificate", f.CA)
	}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read reads the own certificate and checks it.
func (c *Certificate) read() error {
	const op = "tls"
	for _, file := range []string{c.files.Cert, c.files.Key} {
		b, err := files.ReadFile(file, mostPEM)
		if err != nil {
			return tandem.Errorf(op, tandem.Invalid, "%s: %w", file, bare(err))
		}
		if block, _ := pem.Decode(b); block == nil {
			return tandem.Errorf(op, tandem.Invalid, "%s: holds no PEM block", file)
		}
	}
	info, err := os.Stat(c.files.Cert)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "%s: %w", c.files.Cert, bare(err))
	}
	cert, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "certificate %s and key %s: %w", c.files.Cert, c.files.Key, err)
	}
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: c.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}})
		if err != nil {
			return tandem.Errorf(op, tandem.Invalid,
				"certificate %s: others will refuse it: %w (want one that is valid now, signed by %s, for serverAuth and clientAuth)",
				c.files.Cert, err, c.files.CA)
		}
	}
	if err := c.names(cert.Leaf); err != nil {
		return err
	}
	c.cert, c.seen = &cert, info.ModTime()
	return nil
}

// Require demands that the certificate names the role of this process, now and whenever it is renewed. A nil c requires
// nothing. Errors: Invalid, with what to add to the certificate.
func (c *Certificate) Require(role Role) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.role = role
	return c.names(c.cert.Leaf)
}

// names checks that a certificate has the role. Called with mu held.
func (c *Certificate) names(leaf *x509.Certificate) error {
	if c.role == "" || slices.Contains(Roles(leaf), c.role) {
		return nil
	}
	return tandem.Errorf("tls", tandem.Invalid, "certificate %s names %s: the other processes will refuse it as a %s's: "+
		"want subjectAltName = …, URI:%s in it (docs/guides/two-boxes.md)", c.files.Cert, rolesText(Roles(leaf), "no role"), c.role,
		c.role.URI())
}

// current returns the own certificate, read again if its file has changed: the next connection uses a
// renewed one. A new one that cannot be used is ignored, and the old one stays.
func (c *Certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if info, err := os.Stat(c.files.Cert); err == nil && !info.ModTime().Equal(c.seen) {
		_ = c.read()
	}
	return c.cert
}

// Server returns the configuration of a listener: a peer must show a certificate of the CA. Nil for a nil
// Certificate.
func (c *Certificate) Server() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.roots,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil }}
}

// Client returns the configuration of a connection: the peer must show a certificate of the CA with the name
// or IP address that was dialed. Nil for a nil Certificate.
func (c *Certificate) Client() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: c.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.current(), nil }}
}

// Name returns a name or IP address that the own certificate is for, "" if it has none.
func (c *Certificate) Name() string {
	leaf := c.current().Leaf
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return ""
}

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

// bare strips an error of the os package of operation and path.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
