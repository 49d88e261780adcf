package gateway

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/gateway/enlist"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/route"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/text/token"
)

// drafters are the processes of drafters that a gateway works with: those it is configured with, and those that announce themselves.
type drafters struct{ *enlist.Members }

// newDrafters follows the processes of drafters, at addresses static and those that announce themselves, and enlists their drafters with g.
func newDrafters(r *roles.Process, target model, static []string, p pool.Config, g *gateway.Gateway, v *verifiers, own ownDrafters,
	undo *roles.Cleanup) (*drafters, error) {
	config := enlist.MembersConfig{Gateway: g, Vocab: target.vocab, Fingerprint: target.fingerprint, Counters: r.Counters, Log: r.Log,
		Taken: own.names, Tokenizer: func() ([]byte, error) { return token.Extract(target.path) }}
	if r.ReadyFD != 0 {
		config.Compared = static // by whoever started both (package pair)
	}
	members := enlist.NewMembers(config)
	undo.Add(members.Close)
	memory := discovery.NewMemory(shm.Gateway, new(shm.Set))
	table, err := discovery.NewTable(discovery.TableConfig{Pool: p, Dial: r.Credentials.Dialer(rpc.Drafter),
		Vouch: r.Credentials.Vouch, Static: static, Counters: r.Counters, Log: r.Log, Refused: r.Refused,
		Changed: func(processes []discovery.Process) {
			memory.Update(processes)
			members.Update(processesOf(processes, v, memory))
		}})
	if err != nil {
		return nil, err
	}
	undo.Add(table.Close)
	undo.Add(memory.Close)
	return &drafters{members}, nil
}

// describe asks all processes of drafters what they are, one after the other.
func (d *drafters) describe(ctx context.Context) (out []public.Process) {
	for _, x := range d.Processes() {
		v, err := drafting.NewClient(x.Link.(link).conn, "").Describe(ctx)
		if v.Name == "" && len(x.Drafters) > 0 { // away
			v.Name = x.Drafters[0].Name
		}
		if v.Model = x.Models(); v.Model == "" {
			v.Model = v.Name
		}
		out = append(out, public.Process{Role: "drafter", Up: err == nil && x.Used > 0, Description: v})
	}
	return out
}

// link is a connection to a process of drafters; it implements enlist.Link.
type link struct {
	conn      *grpc.ClientConn
	verifiers route.Routers
	memory    *discovery.Memory // shared memory of the processes
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
