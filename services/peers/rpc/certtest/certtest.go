// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// validity is how long certificates may be used: longer than any test, or campaign of faults.
const validity = 24 * time.Hour

// CA is an authority made for one test.
type CA struct {
	File string // its certificate, PEM
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority and writes its certificate to dir/ca.pem.
func NewCA(dir string) (*CA, error) {
	ca := &CA{File: filepath.Join(dir, "ca.pem")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity), KeyUsage: x509.KeyUsageCertSign}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return ca, write(ca.File, "CERTIFICATE", der)
}

// Options say what is in a certificate.
type Options struct {
	Names      []string // host names and IP addresses
	Roles      []string // "gateway", "drafter", "verifier"
	Expired    bool
	ServerOnly bool // not for the calling end of a connection
}

// Issue writes a certificate and its key to dir/cert.pem and dir/key.pem.
func (ca *CA) Issue(dir string, o Options) (cert, key string, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if o.Expired {
		template.NotAfter = time.Now().Add(-time.Minute)
	}
	if o.ServerOnly {
		template.ExtKeyUsage = template.ExtKeyUsage[:1]
	}
	for _, n := range o.Names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	for _, r := range o.Roles {
		template.URIs = append(template.URIs, &url.URL{Scheme: "tandem", Host: "role", Path: "/" + r})
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &k.PublicKey, ca.key)
	if err != nil {
		return "", "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := write(cert, "CERTIFICATE", der); err != nil {
		return "", "", err
	}
	return cert, key, write(key, "PRIVATE KEY", private)
}

func write(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// Outside returns an IPv4 address of this host that other machines may reach, "" if it has none.
func Outside() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}
