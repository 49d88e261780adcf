package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/services/discovery"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

// kvPageRows is the number of tokens in a page of the KV cache.
const kvPageRows = kernels.PageRows

type drafterCmd struct {
	Draft       []string `help:"GGUF file of a draft model, or lookup for drafts from the text itself; may be repeated (default: the shipped one)." placeholder:"FILE" sep:"none"`
	InlineLimit int      `help:"Trees of more bytes than this go through shared memory; 0 = all." default:"1024"`
	Advertise   string   `help:"Address under which the other processes reach this drafter (default: where it listens)." placeholder:"ADDR"`
	aheadFlags
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
}

// Run runs a drafter process until it is stopped.
func (c *drafterCmd) Run(a *app) (err error) {
	if c.InlineLimit < 0 {
		return tandem.Errorf("", tandem.Invalid, "--inline-limit is %d: want 0 or more bytes", c.InlineLimit)
	}
	if c.Advertise != "" {
		if err := rpc.CheckAddress(c.Advertise); err != nil {
			return tandem.Errorf("", tandem.Invalid, "--advertise: %w", err)
		}
	}
	paths, err := draftPaths(c.Draft)
	if err != nil {
		return err
	}
	var announcer *discovery.Announcer // set before the address is served
	r, err := a.startRole("drafter", or(c.Listen, drafterAddr), c.roleFlags, func() { announcer.Drain() })
	if err != nil {
		return err
	}
	defer r.flush()
	announcer, undo, err := c.assemble(a.ctx, r, paths)
	defer undo.run()
	if err != nil {
		r.server.Close()
		return err
	}
	return r.serve(a.ctx)
}

// assemble loads the models, puts the drafters together, registers and announces them.
func (c *drafterCmd) assemble(ctx context.Context, r *role, paths []string) (announcer *discovery.Announcer, undo cleanup, err error) {
	files := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == lookupDraft })
	prefixes, err := c.prefixFlags.pages()
	if err != nil {
		return nil, undo, err
	}
	models, err := r.loadModels(files, c.kernelFlags, drafter.DefaultTreeRows)
	if err != nil {
		return nil, undo, err
	}
	for _, m := range models {
		undo.add(m.Close)
	}
	segment, socket, err := c.openSegment(r.server.Addr())
	if err != nil {
		return nil, undo, err
	}
	undo.add(func() { segment.Close() })
	r.gauge("shm.leased", func() int64 { return int64(segment.Leased()) })
	r.gauge("shm.slots", func() int64 { return int64(segment.Slots()) })
	access, err := r.poolAccess(ctx, c.Pool)
	if err != nil {
		return nil, undo, err
	}
	poolConfig := pool.Config{Access: access, Counters: r.counters}
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: poolConfig, Segment: segment, Inline: c.InlineLimit})
	if err != nil {
		return nil, undo, err
	}
	undo.add(publisher.Close)
	served := drafting.Config{Segment: segment}
	var closers []func(ctx context.Context, owner uint64) error
	what := wire.Announcement{Addr: or(c.Advertise, reachable(r.server.Addr(), r.identity)), Segment: segment.Segment()}
	for _, path := range paths {
		name := modelName(path)
		if path == lookupDraft {
			l, err := drafter.NewLookup(drafter.LookupConfig{Name: name, Vocab: tandem.DefaultLimits.Vocab, Pool: publisher, Events: r.events, Counters: r.counters,
				Sessions: r.flags.sessionsOr(defaultSessions) + spareSessions})
			if err != nil {
				return nil, undo, err
			}
			undo.add(func() { shutdown(l.Shutdown) })
			closers = append(closers, l.CloseOwned)
			served.Drafters = append(served.Drafters, drafting.Named{Name: name, Drafter: l, Describe: r.describeProcess(name, socket)})
			what.Drafters = append(what.Drafters, wire.Drafter{Name: name})
			continue
		}
		m := models[0]
		models = models[1:]
		d, err := drafter.New(drafter.Config{Model: m, Name: name, Pool: publisher, Events: r.events, Counters: r.counters, AheadGain: c.AheadGain,
			PrefixCache: prefixes})
		if err != nil {
			return nil, undo, err
		}
		undo.add(func() { shutdown(d.Shutdown) })
		closers = append(closers, d.CloseOwned)
		describe := r.describe(name, path, socket, m)
		served.Drafters = append(served.Drafters, drafting.Named{Name: name, Drafter: d, Describe: describe, Vocabulary: pieces(m.Vocab())})
		told := describe()
		what.Drafters = append(what.Drafters, wire.Drafter{Name: name, Model: told.Model, Vocab: told.Vocab, Fingerprint: told.Fingerprint})
	}
	drafting.Register(r.server.Registrar(), served)
	r.server.WhenGone(func(process uint64) {
		for _, end := range closers {
			_ = end(context.Background(), process)
		}
	})
	if announcer, err = discovery.Announce(poolConfig, what, 0); err != nil {
		return nil, undo, err
	}
	undo.add(announcer.Close)
	return announcer, undo, nil
}

// openSegment makes the shared memory for larger trees and serves its descriptor beside the drafter's
// own socket. A drafter on TCP shares none by a socket of its own; payloads then go through gRPC.
func (c *drafterCmd) openSegment(addr string) (*shm.Owner, string, error) {
	segment, err := shm.New(shm.Config{})
	if err != nil {
		return nil, "", err
	}
	path, isUnix := strings.CutPrefix(addr, "unix://")
	if !isUnix {
		return segment, "", nil
	}
	socket := strings.TrimSuffix(path, ".sock") + "-shm.sock"
	l, err := rpc.Listen("unix://" + socket)
	if err == nil {
		err = segment.Serve(l)
	}
	if err != nil {
		return nil, "", errors.Join(err, segment.Close())
	}
	return segment, socket, nil
}

// pieces serves a vocabulary in parts.
func pieces(v *token.Vocab) func(offset, limit int) [][]byte {
	return func(offset, limit int) [][]byte {
		var out [][]byte
		for t := max(0, offset); t < v.Size() && len(out) < limit; t++ {
			out = append(out, []byte(v.Piece(tandem.Token(t))))
		}
		return out
	}
}

func fingerprint(f uint64) string { return fmt.Sprintf("%016x", f) }
