package drafter

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/verifying"
)

// states connects drafts that read the target's hidden states with the verifiers, which have them.
type states struct {
	taps map[string][]int // by file of a draft; only of those that read states
	r    *roles.Process
	own  string               // address where a gateway names none
	here tandem.FeatureSource // the verifier at own, if that is in this process; else nil

	mu    sync.Mutex
	known map[string]*source // by address
}

// source is a verifier.
type source struct {
	conn   io.Closer
	client *verifying.Client
	link   *shm.Link // nil: it is on another host
}

// mostSources bounds how many verifiers a drafter is connected with at a time.
const mostSources = 64

// states finds out which drafts read states, and connects to the verifier that it is configured with if one does.
func (c Setup) states(r *roles.Process, undo *roles.Cleanup) (*states, error) {
	out := &states{taps: map[string][]int{}, r: r, here: c.here, known: map[string]*source{}}
	for _, path := range c.Draft {
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
	var err error
	switch len(c.Verifier) {
	case 0:
		out.own, err = roles.DefaultSocket(rpc.Verifier)
	case 1:
		if out.own, err = c.Verifier[0], rpc.CheckAddress(c.Verifier[0]); err != nil {
			err = tandem.Errorf("", tandem.Invalid, "--verifier: %w", err)
		}
	default:
		err = tandem.Errorf("", tandem.Invalid, "--verifier is given %d times: a drafter wants one at most, the one to ask where "+
			"a gateway does not say which", len(c.Verifier))
	}
	if err == nil && !rpc.Loopback(out.own) {
		err = r.Certificate.Require(rpc.Drafter)
	}
	if err == nil && out.here == nil {
		_, err = out.at(out.own)
	}
	undo.Add(out.close)
	return out, err
}

// verifier returns the address of a verifier that a gateway names: "" is the drafter's own. A unix socket that is not there is one of
// another host, so it is the drafter's own as well.
func (s *states) verifier(addr string) string {
	if path, unix := strings.CutPrefix(addr, "unix://"); addr == "" || unix && addr != s.own && !there(path) {
		return s.own
	}
	return addr
}

// at returns the verifier at an address.
func (s *states) at(addr string) (*source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.known[addr]; x != nil {
		return x, nil
	}
	if len(s.known) >= mostSources { // the gateway's fleets have changed often
		for a, x := range s.known {
			if a != s.own {
				delete(s.known, a)
				x.close()
				break
			}
		}
	}
	conn, err := s.r.Credentials.Dialer(rpc.Verifier)(addr)
	if err != nil {
		return nil, err
	}
	x := &source{conn: conn, client: verifying.NewClient(conn)}
	if strings.HasPrefix(addr, "unix://") {
		x.link = shm.NewLink(shm.Drafter, new(shm.Set), func(ctx context.Context) (string, error) {
			d, err := x.client.Describe(ctx)
			return d.SegmentSocket, err
		})
	}
	s.known[addr] = x
	return x, nil
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (x *source) close() {
	if x.link != nil {
		x.link.Close()
	}
	x.conn.Close()
}

func (s *states) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.known {
		x.close()
	}
}

// of returns the source of features for the draft of that name, nil if none reads any.
func (s *states) of(name string) tandem.FeatureSource {
	if len(s.taps) == 0 {
		return nil
	}
	return features{s, name}
}

// features asks the verifier that holds a session, in the name of a draft.
type features struct {
	*states
	draft string
}

// Features implements tandem.FeatureSource.
func (f features) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	addr := f.verifier(q.Addr)
	if f.here != nil && addr == f.own {
		return f.here.Features(ctx, q)
	}
	x, err := f.at(addr)
	if err != nil {
		return tandem.Features{}, err
	}
	return x.client.Mapping(x.link, f.draft).Features(ctx, q)
}

// describe adds to a draft's description what it reads.
func (s *states) describe(path string, told func() tandem.Description) func() tandem.Description {
	return func() tandem.Description {
		d := told()
		d.Taps = s.taps[path]
		return d
	}
}
