// Package embed turns texts into vectors, in the passes of the target that verify trees.
package embed

import (
	"context"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
)

// embedding is a text whose states become a vector. To the schedule it is a session that is over when its prompt is in: its rows are in
// passes with those of other prompts, no more of them than a pass takes of a prompt. Its memory is its own, because states that another
// session has computed are not kept.
type embedding struct {
	schedule.Entry
	seq     *engine.Sequence
	tokens  []tandem.Token
	pooling tandem.Pooling
	sum     []float64 // of the states so far, in the order of the tokens: the same however they were divided among passes
	state   []float32 // of the latest row that counted
}

// Missing implements schedule.Session.
func (e *embedding) Missing() int { return len(e.tokens) - e.seq.Len() }

// Want implements schedule.Session.
func (e *embedding) Want(space schedule.Space) schedule.Part {
	missing := e.tokens[e.seq.Len():]
	return schedule.Part{Part: engine.Part{Seq: e.seq, Extend: missing[:min(len(missing), space.Rows)]}}
}

// Take implements schedule.Session.
func (e *embedding) Take(p schedule.Part, out *engine.Output, _ int, _ schedule.Pass) {
	if e.pooling == tandem.PoolingLast {
		if e.Missing() == 0 {
			out.Final(p.At, len(p.Extend)-1, e.state)
		}
		return
	}
	for row := range p.Extend {
		out.Final(p.At, row, e.state)
		for i, v := range e.state {
			e.sum[i] += float64(v)
		}
	}
}

// vector returns the text's vector once all of its tokens were in passes.
func (e *embedding) vector() []float32 {
	if e.pooling == tandem.PoolingMean {
		for i, v := range e.sum {
			e.state[i] = float32(v / float64(len(e.tokens)))
		}
	}
	return e.state
}

// Texts makes vectors of texts with a model. It has no state: the texts are sessions of the schedule.
type Texts struct {
	Model    *engine.Model
	Schedule *schedule.Schedule // of the model's passes
	Counters *tandem.Counters
}

// Vectors implements tandem.VectorSource, but does not look at the query's fingerprint. Texts that memory allows at once share passes; the
// others follow. Of a recurrent model there is one at a time, because each needs a slot for its states, of which there are few. Errors:
// Unsupported for another pooling; Invalid for a text that is no prompt of the model, or needs more than all of the memory; Exhausted.
func (t Texts) Vectors(ctx context.Context, q tandem.VectorQuery) (tandem.Vectors, error) {
	c := t.Model.Config()
	out := tandem.Vectors{Identity: t.Model.Names().Identity}
	if err := t.check(q); err != nil {
		return out, err
	}
	for done := 0; done < len(q.Inputs); done = len(out.Rows) {
		var made []*embedding
		err := t.Schedule.Once(ctx, q.Progress, func() (all []schedule.Session, err error) {
			for _, tokens := range q.Inputs[done:] {
				if c.Recurrent() && len(made) == 1 {
					break
				}
				e, err := t.embedding(q, tokens)
				if len(made) > 0 && tandem.KindOf(err) == tandem.Exhausted {
					break
				}
				if err != nil {
					return all, err
				}
				made, all = append(made, e), append(all, e)
			}
			return all, nil
		})
		if err != nil {
			return out, err
		}
		for _, e := range made {
			out.Rows = append(out.Rows, e.vector())
		}
		t.Counters.Add("embeddings", int64(len(made)))
	}
	return out, nil
}

// check refuses a query that cannot be answered.
func (t Texts) check(q tandem.VectorQuery) error {
	m, c := t.Model, t.Model.Config()
	if q.Pooling != tandem.PoolingLast && q.Pooling != tandem.PoolingMean {
		return tandem.Errorf("embed", tandem.Unsupported, "pooling %.50q: want %s or %s", string(q.Pooling), tandem.PoolingLast,
			tandem.PoolingMean)
	}
	r := tandem.EmbedRequest{Inputs: q.Inputs}
	if err := r.Validate(tandem.Limits{Context: c.Context, Vocab: c.Vocab}); err != nil {
		return err
	}
	for i, tokens := range q.Inputs {
		if need := engine.PagesFor(1, len(tokens), 0); need > m.Pages() {
			return tandem.Errorf("embed", tandem.Invalid, "text %d has %d tokens: it needs %d pages of %d tokens, all of the memory for "+
				"keys and values holds %d", i, len(tokens), need, engine.PageTokens, m.Pages())
		}
	}
	return nil
}

// embedding begins a text of q. Call it on the schedule's goroutine. Errors: Exhausted.
func (t Texts) embedding(q tandem.VectorQuery, tokens []tandem.Token) (*embedding, error) {
	seq, err := t.Model.NewSequence(len(tokens), 0)
	if err != nil {
		return nil, err
	}
	d := t.Model.Config().Dim
	o := tandem.Opening{Session: tandem.NewSessionID(), Tenant: q.Tenant}
	return &embedding{Entry: schedule.NewEntry(o, schedule.Shared(seq)), seq: seq, tokens: slices.Clone(tokens), pooling: q.Pooling,
		sum: make([]float64, d), state: make([]float32, d)}, nil
}

var _ tandem.VectorSource = Texts{}
