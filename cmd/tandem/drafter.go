package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
)

// kvPageRows is the number of tokens in a page of the KV cache.
const kvPageRows = kernels.PageRows

type drafterCmd struct {
	Draft       string `help:"GGUF file of the draft model (default: the shipped one)." placeholder:"FILE"`
	InlineLimit int    `help:"Trees of more bytes than this go through shared memory; 0 = all." default:"1024"`
	addressFlags
	kernelFlags
	roleFlags
}

// Run runs a drafter until it is stopped.
func (c *drafterCmd) Run(a *app) (err error) {
	if c.InlineLimit < 0 {
		return tandem.Errorf("", tandem.Invalid, "--inline-limit is %d: want 0 or more bytes", c.InlineLimit)
	}
	path, err := draftPath(c.Draft)
	if err != nil {
		return err
	}
	listen := or(c.Listen, drafterAddr)
	r, err := a.startRole("drafter", listen, c.roleFlags, nil)
	if err != nil {
		return err
	}
	defer r.flush()
	undo, err := c.assemble(a.ctx, r, path)
	defer undo.run()
	if err != nil {
		r.server.Close()
		return err
	}
	return r.serve(a.ctx)
}

// assemble loads the model, puts the drafter together and registers it.
func (c *drafterCmd) assemble(ctx context.Context, r *role, path string) (undo cleanup, err error) {
	m, err := r.loadModel(path, c.kernelFlags, drafter.DefaultTreeRows)
	if err != nil {
		return undo, err
	}
	undo.add(m.Close)
	segment, socket, err := c.openSegment(r.server.Addr())
	if err != nil {
		return undo, err
	}
	undo.add(func() { segment.Close() })
	access, err := poolAccess(ctx, c.Pool)
	if err != nil {
		return undo, err
	}
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: pool.Config{Access: access, Counters: r.counters}, Segment: segment, Inline: c.InlineLimit})
	if err != nil {
		return undo, err
	}
	undo.add(publisher.Close)
	d, err := drafter.New(drafter.Config{Model: m, Name: modelName(path), Pool: publisher, Events: r.events, Counters: r.counters})
	if err != nil {
		return undo, err
	}
	undo.add(func() { shutdown(d.Shutdown) })
	drafting.Register(r.server.Registrar(), drafting.Config{Drafter: d, Segment: segment,
		Describe: r.describe(modelName(path), path, socket, m), Vocabulary: pieces(m.Vocab())})
	return undo, nil
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
