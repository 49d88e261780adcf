package main

import (
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// certificateFlags hold this process's certificate.
type certificateFlags struct{ settings.Certificate }

// files returns the paths of the certificate's files.
func (f certificateFlags) files() rpc.TLSFiles {
	return rpc.TLSFiles{Cert: f.TLSCert, Key: f.TLSKey, CA: f.TLSCA}
}

// certificate loads the certificate; nil for none.
func (f certificateFlags) certificate() (*rpc.Certificate, error) { return f.files().Load() }

// dialing returns the options of a client with this certificate for a gateway at addr.
func (f certificateFlags) dialing(addr string) ([]client.Option, error) {
	certificate, err := f.certificate()
	if err != nil || certificate == nil || rpc.Loopback(addr) {
		return nil, err
	}
	return []client.Option{client.WithTLS(certificate.Client())}, nil
}
