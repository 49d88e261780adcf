package main

import "github.com/tandem-llm/tandem/client"

// keyFlags hold the key for a gateway that runs elsewhere.
type keyFlags struct {
	APIKey  []string `name:"api-key" help:"Key for the gateway at --addr, if it wants one; the first of several is used. Others on this machine can read flags, but not TANDEM_API_KEY or --api-keys." placeholder:"KEY" sep:"none" secret:"x"`
	APIKeys string   `name:"api-keys" help:"File with the key, in the gateway's format: one a line; the first of several is used." placeholder:"FILE"`
}

// key returns the client option that sends the key; none without a key.
func (f keyFlags) key() ([]client.Option, error) {
	keys, err := httpFlags{APIKey: f.APIKey, APIKeys: f.APIKeys}.tokens()
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	return []client.Option{client.WithToken(keys[0])}, nil
}
