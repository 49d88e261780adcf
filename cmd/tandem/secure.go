package main

import (
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/settings"
)

// secureFlags hold this process's certificate, and say whether it may listen without one.
type secureFlags struct{ settings.TLS }

// files returns the paths of the certificate's files.
func (f secureFlags) files() rpc.TLSFiles {
	return rpc.TLSFiles{Cert: f.TLSCert, Key: f.TLSKey, CA: f.TLSCA}
}

// certificate loads the certificate; nil for none.
func (f secureFlags) certificate() (*rpc.Certificate, error) { return f.files().Load() }

// dialing returns the options of a client with this certificate for a gateway at addr.
func (f secureFlags) dialing(addr string) ([]client.Option, error) {
	certificate, err := f.certificate()
	if err != nil || certificate == nil || rpc.Loopback(addr) {
		return nil, err
	}
	return []client.Option{client.WithTLS(certificate.Client())}, nil
}
