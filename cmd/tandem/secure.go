package main

import (
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/rpc"
)

// secureFlags say who this process is on the network, and what it may do there without encryption.
type secureFlags struct {
	TLSCert        string `name:"tls-cert" help:"PEM certificate of this process: with --tls-key and --tls-ca, TCP to and from other machines is mutual TLS. Unix sockets and loopback addresses do without." placeholder:"FILE"`
	TLSKey         string `name:"tls-key" help:"PEM key of --tls-cert." placeholder:"FILE"`
	TLSCA          string `name:"tls-ca" help:"PEM certificate of the authority that signed the certificates of all processes." placeholder:"FILE"`
	InsecureListen bool   `name:"insecure-listen" help:"Allow listening where other machines can connect although nothing protects it."`
}

// identity loads the certificate; nil for none.
func (f secureFlags) identity() (*rpc.Identity, error) {
	return rpc.TLSFiles{Cert: f.TLSCert, Key: f.TLSKey, CA: f.TLSCA}.Load()
}

// dialing is how a client with this certificate reaches a gateway at addr.
func (f secureFlags) dialing(addr string) ([]client.Option, error) {
	identity, err := f.identity()
	if err != nil || identity == nil || rpc.Loopback(addr) {
		return nil, err
	}
	return []client.Option{client.WithTLS(identity.Client())}, nil
}

// args are the flags that say the same to a child.
func (f secureFlags) args() (args []string) {
	for _, x := range []struct{ flag, value string }{{"--tls-cert", f.TLSCert}, {"--tls-key", f.TLSKey}, {"--tls-ca", f.TLSCA}} {
		if x.value != "" {
			args = append(args, x.flag, x.value)
		}
	}
	if f.InsecureListen {
		args = append(args, "--insecure-listen")
	}
	return args
}

// reachable returns a served address as others dial it: with a name of this process's certificate, else this
// host's, where it is served on all of the host's addresses.
func reachable(addr string, identity *rpc.Identity) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || strings.HasPrefix(addr, "unix://") {
		return addr
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return addr
	}
	name := ""
	if identity != nil {
		name = identity.Name()
	}
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return addr
		}
	}
	return net.JoinHostPort(name, port)
}

// reachableURL is reachable for the host of a URL.
func reachableURL(raw string, identity *rpc.Identity) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	u.Host = reachable(u.Host, identity)
	return u.String()
}
