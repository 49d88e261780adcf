package gateway

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/enlist"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/route"
	"github.com/tandem-llm/tandem/text/token"
)

// link is a connection to a process of drafters; it implements enlist.Link.
type link struct {
	conn      *grpc.ClientConn
	verifiers route.Routers
	memory    *discovery.Memory // of the processes
}

// Drafter implements enlist.Link.
func (l link) Drafter(name, enlisted string) tandem.Drafter {
	return route.Drafter(enlisted, drafting.NewClient(l.conn, name).Mapping(l.memory.Of(l.conn)), l.verifiers)
}

// Target implements enlist.Link.
func (l link) Target(ctx context.Context, name, fingerprint string, file []byte) error {
	return drafting.NewClient(l.conn, name).Target(ctx, fingerprint, file)
}

// Vocabulary implements enlist.Link.
func (l link) Vocabulary(ctx context.Context, name string, most int) (token.Listing, error) {
	v, err := drafting.NewClient(l.conn, name).Vocabulary(ctx, most)
	if err != nil {
		return token.Listing{}, err
	}
	out := token.Listing{Tokenizer: v.Tokenizer, EOS: v.EOS, Kinds: v.Kinds, Pieces: make([]string, len(v.Pieces))}
	for i, piece := range v.Pieces {
		out.Pieces[i] = string(piece)
	}
	return out, nil
}

// processesOf converts processes for package enlist.
func processesOf(processes []discovery.Process, verifiers route.Routers, memory *discovery.Memory) []enlist.Process {
	out := make([]enlist.Process, len(processes))
	for i, p := range processes {
		out[i] = enlist.Process{Addr: p.Addr, Instance: p.Instance, Link: link{p.Conn, verifiers, memory}, Up: p.Up, Draining: p.Draining}
		for _, d := range p.Drafters {
			out[i].Drafters = append(out[i].Drafters, enlist.Drafter{Name: d.Name, Model: d.Model, Vocab: d.Vocab,
				Fingerprint: d.Fingerprint, Identity: d.Identity, Features: d.Features, Costs: d.Costs, Window: d.Window})
		}
	}
	return out
}
