package main

import (
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/settings"
)

// keyFlags hold the key for a gateway that runs elsewhere.
type keyFlags struct{ settings.ClientKeys }

// key returns the client option that sends the key; none without a key.
func (f keyFlags) key() ([]client.Option, error) {
	keys, err := httpFlags{settings.Web{APIKey: f.APIKey, APIKeys: f.APIKeys}}.tokens()
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	return []client.Option{client.WithToken(keys[0])}, nil
}
