package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// gatewayFlags say which gateway a command asks, and by what it lets the command in.
type gatewayFlags struct {
	Addr string `help:"Address of the gateway." default:"127.0.0.1:8451" placeholder:"ADDR"`
	settings.ClientKeys
	settings.Certificate
}

// dial returns a client of the gateway.
func (f gatewayFlags) dial() (*client.Client, error) {
	return dial(f.Addr, f.ClientKeys, f.Certificate)
}

// dial returns a client of the gateway at addr, which the caller must close. Errors: Invalid, among others for a key that would travel in
// clear text.
func dial(addr string, of settings.ClientKeys, by settings.Certificate) (*client.Client, error) {
	options, err := start.Dialing(by, addr)
	if err != nil {
		return nil, err
	}
	keys, err := start.Tokens(settings.Web{APIKey: of.APIKey, APIKeys: of.APIKeys})
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		if len(options) == 0 && rpc.CheckAddress(addr) == nil && !rpc.Loopback(addr) {
			return nil, tandem.Errorf("", tandem.Invalid,
				"the key for %s would travel in clear text: want --tls-cert, --tls-key and --tls-ca", addr)
		}
		options = append(options, client.WithToken(keys[0]))
	}
	conn, err := client.Dial(addr, options...)
	return conn, talk.Error(err)
}
