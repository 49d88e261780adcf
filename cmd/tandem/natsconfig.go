package main

import (
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// natsConfigCmd is for fleets whose NATS server is not a gateway's.
type natsConfigCmd struct {
	SecretFile string `help:"File with the secret of tandem's processes: each shows that it has it. Without, each shows a certificate with its role." placeholder:"FILE"`
}

// Run prints the part of a NATS server's configuration. Errors: Invalid, for the secret's file.
func (c *natsConfigCmd) Run(a *app) error {
	var secret *rpc.Secret
	if c.SecretFile != "" {
		var err error
		if secret, err = rpc.OpenSecret(c.SecretFile, nil); err != nil {
			return err
		}
	}
	return pool.Config{}.NATSConfig(a.stdout, secret)
}
