package drafter

import (
	"context"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/verifying"
)

// states connects drafts that read the target's hidden states with the verifier, which has them.
type states struct {
	taps   map[string][]int  // by file of a draft; only of those that read states
	client *verifying.Client // nil if there are none
	link   *shm.Link         // nil: the verifier is on another host
}

// states connects to the verifier if a draft needs it.
func (c Config) states(r *roles.Process, undo *roles.Cleanup) (states, error) {
	out := states{taps: map[string][]int{}}
	for _, path := range c.Drafts {
		side, err := engine.SideOf(path)
		if err != nil {
			return out, err
		}
		if side.Kind.IsDraft() {
			out.taps[path] = side.Taps
		}
	}
	if len(out.taps) == 0 {
		return out, nil
	}
	addr, err := c.Verifier, error(nil)
	if addr == "" {
		addr, err = roles.DefaultSocket(rpc.Verifier)
	} else if err = rpc.CheckAddress(addr); err != nil {
		err = tandem.Errorf("", tandem.Invalid, "--verifier: %w", err)
	}
	if err == nil && !rpc.Loopback(addr) {
		err = r.Certificate.Require(rpc.Drafter)
	}
	if err != nil {
		return out, err
	}
	conn, err := r.Credentials.Dialer(rpc.Verifier)(addr)
	if err != nil {
		return out, err
	}
	undo.Add(func() { conn.Close() })
	out.client = verifying.NewClient(conn)
	if strings.HasPrefix(addr, "unix://") {
		out.link = shm.NewLink(shm.Drafter, new(shm.Set), func(ctx context.Context) (string, error) {
			d, err := out.client.Describe(ctx)
			return d.SegmentSocket, err
		})
		undo.Add(out.link.Close)
	}
	return out, nil
}

// of returns the source of features for the draft of that name, nil if none reads any.
func (s states) of(name string) tandem.FeatureSource {
	if s.client == nil {
		return nil
	}
	return s.client.Mapping(s.link, name)
}

// describe adds to a draft's description what it reads.
func (s states) describe(path string, told func() tandem.Description) func() tandem.Description {
	return func() tandem.Description {
		d := told()
		d.Taps = s.taps[path]
		return d
	}
}
