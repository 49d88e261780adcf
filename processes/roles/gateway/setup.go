package gateway

import (
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// Setup says how to run a gateway process: its settings, and what the program has made of them.
type Setup struct {
	settings.Gateway // Target is the path of a file; Cache a folder, "" for none; Host and Port are in HTTP
	roles.Program
	Rules       gateway.Rules  // what Strategies say
	Defaults    ask.Defaults   // what Speculation and Answers say, for what a request leaves out
	Keys        *access.Keys   // clients' keys, which Web names; nil: everybody who can connect is served
	MetricsKeys *access.Keys   // the only keys that open the metrics, which Web names; nil: the clients' keys do
	Models      httpapi.Models // fetches and removes models for clients, as Web allows; nil: they may not
	PullKeys    *access.Keys   // the only keys that open Models; nil: everybody may who can connect
}

// meet fills in the verifiers' addresses. If any of the other processes may be on another machine, the certificate must name the
// role gateway.
func (c *Setup) meet(certificate *rpc.Certificate) error {
	if len(c.Verifier) == 0 {
		own, err := roles.DefaultSocket(rpc.Verifier)
		if err != nil {
			return err
		}
		c.Verifier = []string{own}
	}
	outside := func(addr string) bool { return !rpc.Loopback(addr) }
	if slices.ContainsFunc(c.Verifier, outside) || slices.ContainsFunc(c.Drafter, outside) ||
		c.PoolListen != "" && outside(c.PoolListen) || strings.Contains(c.Pool, "tls://") {
		return certificate.Require(rpc.Gateway)
	}
	return nil
}
