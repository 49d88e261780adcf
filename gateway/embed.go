package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/round"
)

const (
	// embedTexts and embedTokens bound the texts that the verifier gets at once, unless one alone is longer: enough to fill its passes, few
	// enough that a call with many texts soon lets others have their turn, and that the answer fits into a message.
	embedTexts  = 64
	embedTokens = 1024
)

// embedding is one Embed under way.
//
// It is admitted like a generation, and has one slot for all of its texts. The verifier gets them in batches, one after the other. Between
// two batches, while a long text is computed, and when the verifier has no memory, it yields its slot to others as a session does. A
// batch that is lost so, or with its verifier, is computed again; all batches come from one identity.
type embedding struct {
	g        *common
	r        tandem.EmbedRequest
	slot     *admit.Slot
	starved  int
	identity tandem.Identity
	losses   round.Losses // of the batch
}

// Embed implements tandem.Embedder.
func (g *Gateway) Embed(ctx context.Context, r tandem.EmbedRequest) (out tandem.Embedded, err error) {
	if err := g.tasks.join(); err != nil {
		return out, err
	}
	defer g.tasks.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.running, func() { cancel(context.Cause(g.running)) })()
	ctx, end := g.cfg.Events.Begin(ctx, tandem.StageEmbed, text("model", g.cfg.ModelName), number("texts", len(r.Inputs)))
	defer func() { end(err, number("tokens_in", out.Tokens)) }()
	if err := g.embeds(r); err != nil {
		return out, err
	}
	g.served.Add(1)
	defer g.served.Add(-1)
	e := &embedding{g: &g.common, r: r}
	if err := e.admit(ctx); err != nil {
		return out, err
	}
	defer g.gate.Leave(e.slot)
	err = peer.Guard(func() error { return e.run(ctx, &out) })
	return out, err
}

// embeds refuses what cannot be embedded.
func (g *Gateway) embeds(r tandem.EmbedRequest) error {
	c := g.cfg.Embedding
	switch {
	case c.Source == nil:
		return tandem.Errorf("embed", tandem.Unsupported, "this gateway makes no vectors")
	case c.Pooling == "":
		return &tandem.Error{Op: "embed", Kind: tandem.Unsupported, Field: "model", Err: errors.New(c.Unknown)}
	case r.Dimensions < 0 || r.Dimensions > c.Width:
		return &tandem.Error{Op: "embed", Kind: tandem.Invalid, Field: "dimensions", Err: fmt.Errorf(
			"dimensions is %d: want 1 to %d, as many as vectors of model %s have", r.Dimensions, c.Width, g.cfg.ModelName)}
	}
	return r.Validate(g.cfg.Limits)
}

// batch returns how many of the texts from first on the verifier gets at once, and for how many tokens they need memory.
func (e *embedding) batch(first int) (n, memory int) {
	tokens := 0
	for ; n < len(e.r.Inputs)-first && n < embedTexts; n++ {
		more := len(e.r.Inputs[first+n])
		if tokens += more; n > 0 && tokens > embedTokens {
			break
		}
		memory += e.g.gate.Whole(more)
	}
	return n, memory
}

// admit waits for a slot with the memory of the largest batch.
func (e *embedding) admit(ctx context.Context) (err error) {
	ctx, end := e.g.cfg.Events.Begin(ctx, tandem.StageAdmit)
	defer func() { end(err) }()
	most := 0
	for first := 0; first < len(e.r.Inputs); {
		n, memory := e.batch(first)
		first, most = first+n, max(most, memory)
	}
	if all := e.g.gate.Longest(most, 0); all < most { // the verifier then takes as many at once as it has memory for
		for i, tokens := range e.r.Inputs {
			if e.g.gate.Whole(len(tokens)) > all {
				return &tandem.Error{Op: "embed", Kind: tandem.Invalid, Field: "input", Err: fmt.Errorf(
					"text %d of input has %d tokens: the context holds %d in the verifier's memory", i, len(tokens), all)}
			}
		}
		most = all
	}
	e.slot, err = e.g.gate.Enter(ctx, admit.Need{Tenant: e.r.Tenant, Tokens: most})
	return err
}

// run computes all vectors.
func (e *embedding) run(ctx context.Context, out *tandem.Embedded) error {
	for first := 0; first < len(e.r.Inputs); {
		if first > 0 && e.g.gate.Asked(e.slot).Err() != nil {
			if err := e.yield(ctx, steppedAside, admit.Want{}); err != nil {
				return err
			}
		}
		n, _ := e.batch(first)
		got, err := e.vectors(ctx, e.r.Inputs[first:first+n])
		if err != nil {
			return err
		}
		for i := range got {
			if n := e.r.Dimensions; n > 0 && n < len(got[i]) {
				got[i] = slices.Clone(got[i][:n])
			}
			if err := tandem.Unit(got[i]); err != nil {
				return tandem.Errorf("embed", tandem.KindOf(err), "text %d of input: %w", first+i, err)
			}
			out.Tokens += len(e.r.Inputs[first+i])
		}
		out.Vectors, out.Identity = append(out.Vectors, got...), e.identity
		first += n
		e.g.gate.Opened(e.slot)
	}
	return nil
}

// vectors computes those of a batch. It waits for a verifier that is down, and for memory as long as others hold it.
func (e *embedding) vectors(ctx context.Context, inputs [][]tandem.Token) ([][]float32, error) {
	e.losses = round.Losses{}
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		came := e.g.verifier.Next()
		got, begun, err := e.ask(ctx, inputs)
		switch kind := tandem.KindOf(err); {
		case err == nil:
			return got.Rows, nil
		case ctx.Err() != nil:
			return nil, ended(ctx, "while its texts were embedded")
		case errors.Is(err, errClaimed):
			if err := e.yield(ctx, steppedAside, admit.Want{}); err != nil {
				return nil, err
			}
			continue
		case kind == tandem.Exhausted && e.g.gate.Starved(e.slot):
			e.starved++
			if err := e.yield(ctx, "sessions.starved", admit.Want{Memory: true, Alone: e.starved > mostStarved}); err != nil {
				return nil, err
			}
			continue
		case tandem.Refusal(err) != "":
			return nil, err
		case kind != tandem.Exhausted && kind != tandem.Unavailable && kind != tandem.Deadline && kind != tandem.Canceled &&
			kind != tandem.Unauthenticated: // the last while a secret is replaced
			return nil, err
		}
		e.losses.Suspect(time.Now())
		again := begun && e.losses.Repair() // a batch that is broken off again and again, though it advances, must end as well
		if waited := time.Since(e.losses.Since); waited > e.g.cfg.Timeouts.VerifierWait || again {
			kind := tandem.Unavailable
			if tandem.KindOf(err) == tandem.Exhausted {
				kind = tandem.Exhausted
			}
			return nil, tandem.Errorf("embed", kind, "verifier made no vectors in %v, and broke off %d times: %w",
				waited.Round(time.Millisecond), e.losses.Repairs, err)
		}
		select {
		case <-came:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// ask has the verifier compute a batch, as long as it advances. begun reports whether it had begun to.
func (e *embedding) ask(ctx context.Context, inputs [][]tandem.Token) (got tandem.Vectors, begun bool, err error) {
	limited, watch := peer.Watch(ctx, "verifier", e.g.cfg.Timeouts.Stall)
	defer watch.Stop()
	if len(inputs[0]) > embedTokens { // another batch ends soon
		defer context.AfterFunc(e.g.gate.Asked(e.slot), func() { watch.Cancel(errClaimed) })()
	}
	got, err = e.g.cfg.Embedding.Source.Vectors(limited, tandem.VectorQuery{Tenant: e.r.Tenant, Inputs: inputs,
		Pooling: e.g.cfg.Embedding.Pooling, Fingerprint: e.g.cfg.Fingerprint, Progress: func(p tandem.Progress) {
			if watch.Report(p) {
				e.losses.Since = time.Time{}
			}
		}})
	if err == nil {
		err = got.Validate(len(inputs))
	}
	switch cause := context.Cause(limited); {
	case err != nil && cause != nil && ctx.Err() == nil:
		return got, watch.Begun(), cause
	case err != nil:
		return got, watch.Begun(), err
	case e.identity != "" && got.Identity != e.identity:
		return got, false, tandem.Errorf(tandem.OpIdentity, tandem.Unavailable, "the first texts were embedded by %s, but the verifier "+
			"is now %s: ask again", e.identity, got.Identity)
	}
	e.identity = got.Identity
	return got, true, nil
}

// yield lets others have the slot, and comes back as soon as it is its turn.
func (e *embedding) yield(ctx context.Context, counter string, w admit.Want) error {
	e.g.cfg.Counters.Add(counter, 1)
	return e.g.gate.Yield(ctx, e.slot, w)
}

var _ tandem.Embedder = (*Gateway)(nil)
