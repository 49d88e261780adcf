package main

import (
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/rpc"
)

// secureFlags hold this process's certificate, and say whether it may listen without one.
type secureFlags struct {
	TLSCert        string `name:"tls-cert" help:"PEM certificate of this process: with --tls-key and --tls-ca, TCP to and from other machines is mutual TLS. Unix sockets and loopback addresses need none." placeholder:"FILE"`
	TLSKey         string `name:"tls-key" help:"PEM key of --tls-cert." placeholder:"FILE"`
	TLSCA          string `name:"tls-ca" help:"PEM certificate of the authority that signed the certificates of all processes." placeholder:"FILE"`
	InsecureListen bool   `name:"insecure-listen" help:"Allow listening without protection where other machines can connect."`
}

// files returns the paths of the certificate's files.
func (f secureFlags) files() rpc.TLSFiles {
	return rpc.TLSFiles{Cert: f.TLSCert, Key: f.TLSKey, CA: f.TLSCA}
}

// certificate loads the certificate; nil for none.
func (f secureFlags) certificate() (*rpc.Certificate, error) { return f.files().Load() }

// secretFlags name the file of the secret that tandem's processes share.
type secretFlags struct {
	SecretFile string `name:"secret-file" help:"File of mode 0600 with a secret that all processes share. They send it on TCP without TLS and to the pool's server. It may be replaced while they run (default: for loopback addresses, one that is made in the folder of the default sockets)." placeholder:"FILE"`
}

// args are the flags that say the same to a child.
func (f secretFlags) args() []string {
	if f.SecretFile == "" {
		return nil
	}
	return []string{"--secret-file", f.SecretFile}
}

// dialing returns the options of a client with this certificate for a gateway at addr.
func (f secureFlags) dialing(addr string) ([]client.Option, error) {
	certificate, err := f.certificate()
	if err != nil || certificate == nil || rpc.Loopback(addr) {
		return nil, err
	}
	return []client.Option{client.WithTLS(certificate.Client())}, nil
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
