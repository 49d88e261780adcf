package verifier

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// Watch knows what a verifier and the drafters beside it announce, for who measures while they have nothing to do. Safe for concurrent use.
type Watch struct {
	verifiers, drafters *discovery.Table
	addr                string
}

// NewWatch returns a Watch of the verifier at addr, whose pool is p. It hears what gateways hear. The caller must Close it. Errors:
// those of reaching the pool.
func NewWatch(r *roles.Process, p pool.Config, addr string) (*Watch, error) {
	w := &Watch{addr: addr}
	p.Access.Role = rpc.Gateway
	c := discovery.TableConfig{Pool: p, Kind: discovery.Verifiers, Dial: r.Credentials.Dialer(rpc.Verifier), Vouch: r.Credentials.Vouch,
		Counters: r.Counters, Log: r.Log}
	var err error
	if w.verifiers, err = discovery.NewTable(c); err != nil {
		return nil, err
	}
	c.Kind, c.Dial = discovery.Drafters, r.Credentials.Dialer(rpc.Drafter)
	if w.drafters, err = discovery.NewTable(c); err != nil {
		w.verifiers.Close()
		return nil, err
	}
	return w, nil
}

// Close ends it.
func (w *Watch) Close() {
	w.verifiers.Close()
	w.drafters.Close()
}

// Idle reports whether the verifier is there and has no session, as it said half a second ago at most.
func (w *Watch) Idle() bool {
	for _, p := range w.verifiers.Processes() {
		if p.Addr == w.addr && p.Verifier != nil {
			return p.Verifier.Load.Sessions == 0 && p.Verifier.Load.Waiting == 0
		}
	}
	return false
}

// Target returns what the verifier's passes cost; nil: it has not said it yet.
func (w *Watch) Target() []tandem.Cost {
	for _, p := range w.verifiers.Processes() {
		if p.Addr == w.addr && p.Verifier != nil {
			return p.Verifier.Costs
		}
	}
	return nil
}

// Draft returns what passes of a draft cost, by its name; nil: nobody has said it yet.
func (w *Watch) Draft(name string) []tandem.Cost {
	for _, p := range w.drafters.Processes() {
		for _, d := range p.Drafters {
			if d.Name == name && len(d.Costs) > 0 {
				return d.Costs
			}
		}
	}
	return nil
}
