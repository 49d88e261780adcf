package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
)

// TLSFiles name the PEM files of an Identity. The certificate must serve for both ends of a connection
// (serverAuth and clientAuth), because every process of tandem calls and is called.
type TLSFiles struct {
	Cert, Key string // this process's own; intermediate certificates follow the own one
	CA        string // whose certificates are trusted
}

// Identity is who a process is on TCP, and whom it trusts: mutual TLS 1.3 wherever other machines are at the
// other end. Unix sockets and loopback addresses do without, on both sides. A nil Identity speaks without
// encryption everywhere. Safe for concurrent use.
type Identity struct {
	files TLSFiles
	roots *x509.CertPool

	mu   sync.Mutex
	cert *tls.Certificate // as last read
	seen time.Time        // modification time of the file that it was read from
}

// Load reads the files and checks that they belong together. Without any file it returns nil. Errors:
// Invalid, naming the file.
func (f TLSFiles) Load() (*Identity, error) {
	const op = "tls"
	if f == (TLSFiles{}) {
		return nil, nil
	}
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return nil, tandem.Errorf(op, tandem.Invalid, "certificate %q, key %q and CA %q: want all three, or none", f.Cert, f.Key, f.CA)
	}
	i := &Identity{files: f, roots: x509.NewCertPool()}
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "CA %s: %w", f.CA, bare(err))
	}
	if !i.roots.AppendCertsFromPEM(ca) {
		return nil, tandem.Errorf(op, tandem.Invalid, "CA %s: holds no PEM certificate", f.CA)
	}
	if err := i.read(); err != nil {
		return nil, err
	}
	return i, nil
}

// read reads the own certificate and checks it.
func (i *Identity) read() error {
	const op = "tls"
	for _, file := range []string{i.files.Cert, i.files.Key} {
		b, err := os.ReadFile(file)
		if err != nil {
			return tandem.Errorf(op, tandem.Invalid, "%s: %w", file, bare(err))
		}
		if block, _ := pem.Decode(b); block == nil {
			return tandem.Errorf(op, tandem.Invalid, "%s: holds no PEM block", file)
		}
	}
	info, err := os.Stat(i.files.Cert)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "%s: %w", i.files.Cert, bare(err))
	}
	cert, err := tls.LoadX509KeyPair(i.files.Cert, i.files.Key)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "certificate %s and key %s: %w", i.files.Cert, i.files.Key, err)
	}
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: i.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}})
		if err != nil {
			return tandem.Errorf(op, tandem.Invalid, "certificate %s: others will refuse it: %w (want one that is valid now, signed by %s, for serverAuth and clientAuth)",
				i.files.Cert, err, i.files.CA)
		}
	}
	i.cert, i.seen = &cert, info.ModTime()
	return nil
}

// certificate returns the own certificate, read again if its file has changed: one that was renewed
// is used by the next connection. One that cannot be used is left aside, and the old one stays.
func (i *Identity) certificate() *tls.Certificate {
	i.mu.Lock()
	defer i.mu.Unlock()
	if info, err := os.Stat(i.files.Cert); err == nil && !info.ModTime().Equal(i.seen) {
		_ = i.read()
	}
	return i.cert
}

// Server returns the configuration of a listener: a peer must show a certificate of the CA. Nil for a nil
// Identity.
func (i *Identity) Server() *tls.Config {
	if i == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: i.roots,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.certificate(), nil }}
}

// Client returns the configuration of a connection: the peer must show a certificate of the CA with the name
// or IP address that was dialed. Nil for a nil Identity.
func (i *Identity) Client() *tls.Config {
	if i == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: i.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.certificate(), nil }}
}

// Name returns a name or IP address that the own certificate is for, "" if it has none.
func (i *Identity) Name() string {
	leaf := i.certificate().Leaf
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return ""
}

// Dial is Dial with mutual TLS, unless addr is a unix socket or a loopback address, where servers do
// without. A nil Identity dials without it everywhere.
func (i *Identity) Dial(addr string) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || host == "localhost" || ip != nil && ip.IsLoopback()) {
		return dial(addr, nil)
	}
	return dial(addr, i.Client())
}

// DialListener is Dial for the address that a server was told to listen on. One that listens on all addresses of
// this host is dialed on loopback, and must have i's own name.
func (i *Identity) DialListener(addr string) (*grpc.ClientConn, error) {
	host, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	switch {
	case Loopback(addr):
		return dial(addr, nil)
	case err != nil || ip == nil || !ip.IsUnspecified():
		return dial(addr, i.Client())
	}
	secure := i.Client()
	if secure != nil {
		secure.ServerName = i.Name()
	}
	return dial(net.JoinHostPort("127.0.0.1", port), secure)
}

// For returns what a listener at addr needs of i: nothing where other machines cannot reach it.
func (i *Identity) For(addr string) *tls.Config {
	if Loopback(addr) {
		return nil
	}
	return i.Server()
}

// Guard refuses an address that other machines can reach, unless who listens there has an identity or
// plain is said on purpose. Errors: Invalid.
func Guard(addr string, i *Identity, plain bool) error {
	if i != nil || plain || Loopback(addr) {
		return nil
	}
	return tandem.Errorf("listen", tandem.Invalid, "%s can be reached from other machines, without encryption: choose 127.0.0.1 or unix:///path, "+
		"give --tls-cert, --tls-key and --tls-ca, or say --insecure-listen", addr)
}

// Loopback reports whether addr, as Listen takes it, can be reached from this host alone. A name that cannot be
// resolved cannot be listened on either: it counts as loopback, and Listen says what is wrong with it.
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
