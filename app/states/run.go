package states

import (
	"context"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/kernels/half"
)

// job is a text that is run.
type job struct {
	Text
	Arrays
	after  place // where the next job stands
	weight int64
	tokens []tandem.Token
	most   int // tokens: more than there are if the target answers
	seed   uint64
	seq    *engine.Sequence // nil: it waits, or is done
	done   bool
}

// run is a run in progress. Jobs begin and are written in the order of the texts; up to Sessions of them share passes. A job that is done
// waits in queue for those before it, and no more than two for each session are in the queue.
type run struct {
	*Config
	model  *engine.Model
	folder *folder
	feeder feeder
	queue  []*job
	fed    bool // the feeder is at its end

	shard   Shard
	used    int64 // of the shard, as folder.used
	over    bool  // nothing more fits into the bounds
	worked  int64 // weight of the texts that are written
	weight  int64 // of all texts
	before  int
	sampler sample.Sampler
	row     []float32 // features of a row
}

// all runs all texts.
func (r *run) all(ctx context.Context) error {
	defer func() {
		for _, j := range r.queue {
			j.close()
		}
	}()
	r.row = make([]float32, r.model.FeatureWidth())
	for _, s := range r.feeder.texts[:r.folder.next.Text] {
		r.worked += s.weight
	}
	if err := r.space(); err != nil {
		return err
	}
	r.begin()
	r.over = r.left("") == 0
	for !r.over {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.feed(ctx); err != nil {
			return err
		}
		if len(r.queue) == 0 {
			break
		}
		if err := r.pass(); err != nil {
			return err
		}
		if err := r.settle(); err != nil {
			return err
		}
	}
	if len(r.shard.Texts) == 0 {
		r.folder.tooLong += r.shard.TooLong // no shard says so
	}
	return r.end()
}

// space refuses a run whose shards the disk has no room for, as far as that is known before: they are bounded, and so many are to come.
func (r *run) space() error {
	if r.MaxTokens == 0 && r.MaxSize == 0 {
		return nil // each shard is checked
	}
	tokens := int64(0) // a byte has a token at most
	for _, s := range r.feeder.texts[r.folder.next.Text:] {
		if tokens += s.weight; s.path == "" {
			tokens += int64(r.AnswerTokens)
		}
	}
	if r.MaxTokens > 0 {
		tokens = min(tokens, int64(r.MaxTokens-r.before))
	}
	bytes := tokens * r.folder.shape.tokenSize()
	if r.MaxSize > 0 {
		bytes = min(bytes, r.MaxSize-r.folder.used)
	}
	return room(r.folder.path(0), bytes)
}

// feed fills the queue and gives waiting jobs their sequences.
func (r *run) feed(ctx context.Context) error {
	for !r.fed && len(r.queue) < 2*r.Sessions && r.running() < r.Sessions {
		j, err := r.feeder.next(ctx)
		if err != nil {
			return err
		}
		if r.fed = j == nil; r.fed {
			return nil
		}
		r.queue = append(r.queue, j)
		if j.done = len(j.tokens) == 0; j.done {
			continue
		}
		if j.seq, err = r.model.NewSequence(j.most, 0); err != nil {
			return err
		}
	}
	return nil
}

// running returns how many jobs have sequences.
func (r *run) running() (n int) {
	for _, j := range r.queue {
		if j.seq != nil {
			n++
		}
	}
	return n
}

func (j *job) close() {
	if j.seq != nil {
		j.seq.Close()
		j.seq = nil
	}
}

// pass runs one pass. Each job has a row at least; the first have as many as they need.
func (r *run) pass() error {
	rows, rest := r.model.MaxRows(), r.running()
	if rest == 0 {
		return nil
	}
	var jobs []*job
	var batch []engine.Part
	for _, j := range r.queue {
		if j.seq == nil {
			continue
		}
		rest--
		at := j.seq.Len()
		n := min(len(j.tokens)-at, rows-rest)
		rows -= n
		jobs, batch = append(jobs, j), append(batch, engine.Part{Seq: j.seq, Extend: j.tokens[at : at+n], Want: engine.WantAll})
	}
	out, err := r.model.Forward(batch, r.folder.shape.Top)
	if err != nil {
		return err
	}
	for i, j := range jobs {
		if err := r.keep(out, i, j, batch[i].Extend); err != nil {
			return err
		}
		r.advance(out, out.First(i)+len(batch[i].Extend)-1, j)
	}
	return nil
}

// keep keeps the rows of part i of a pass.
func (r *run) keep(out *engine.Output, i int, j *job, rows []tandem.Token) error {
	width := len(r.row)
	for k, t := range rows {
		if err := out.Sound(out.First(i) + k); err != nil {
			return err
		}
		top := out.Top(out.First(i) + k)
		sum := top.Max + float32(math.Log(float64(top.Sum)))
		j.IDs, j.LogSum, j.TopIDs = append(j.IDs, int32(t)), append(j.LogSum, sum), append(j.TopIDs, top.IDs...)
		for _, v := range top.Logits {
			j.TopProbs = append(j.TopProbs, half.From(v-sum))
		}
		out.Features(i, k, r.row)
		j.States = slices.Grow(j.States, width)
		n := len(j.States)
		j.States = j.States[:n+width]
		half.Pack(j.States[n:], r.row)
	}
	return nil
}

// advance ends the job if all its tokens have rows, or draws the next token of its answer from wanted row `last`. The end of a turn is a
// token like the others, but none follows it.
func (r *run) advance(out *engine.Output, last int, j *job) {
	n := len(j.tokens)
	if j.seq.Len() < n {
		return
	}
	if n == j.most || n > j.Prompt && r.Vocab.IsEnd(j.tokens[n-1]) {
		j.done = true
		j.close()
		return
	}
	p := r.Sampling
	p.Seed = j.seed
	j.tokens = append(j.tokens, r.sampler.Draw(out.Logits(last), p, tandem.Position(n)))
}

// settle writes the jobs that are done and that nothing unfinished stands before.
func (r *run) settle() error {
	for len(r.queue) > 0 && r.queue[0].done && !r.over {
		j := r.queue[0]
		r.queue = r.queue[1:]
		r.worked += j.weight
		if len(j.tokens) == 0 {
			r.shard.TooLong++
			r.shard.Next = j.after
			continue
		}
		n := min(len(j.IDs), r.left(j.Origin))
		if r.over = n < len(j.IDs) || n == r.left(j.Origin); n == 0 {
			break
		}
		j.cut(&r.folder.shape, n)
		j.Tokens, j.Prompt = n, min(j.Prompt, n)
		r.shard.Texts, r.shard.Tokens, r.shard.Next = append(r.shard.Texts, j.Text), r.shard.Tokens+n, j.after
		r.shard.Arrays.add(&j.Arrays)
		if r.used += textSize(j.Origin) + int64(n)*r.shard.tokenSize(); r.used >= r.ShardSize {
			if err := r.end(); err != nil {
				return err
			}
			r.begin()
		}
		if r.Progress != nil {
			r.Progress(Progress{Tokens: r.folder.tokens + r.shard.Tokens, Before: r.before, Share: r.share()})
		}
	}
	return nil
}

// share returns how much of the work is done, by texts or by the bound of tokens, whichever is nearer to its end.
func (r *run) share() float64 {
	share := float64(r.worked) / float64(max(r.weight, 1))
	if r.MaxTokens > 0 {
		share = max(share, float64(r.folder.tokens+r.shard.Tokens)/float64(r.MaxTokens))
	}
	return min(share, 1)
}

// left returns how many tokens of a text still fit into the bounds.
func (r *run) left(origin string) int {
	return r.Config.left(r.folder, r.folder.tokens+r.shard.Tokens, r.folder.used+r.used, origin)
}

// begin begins a shard behind the last.
func (r *run) begin() {
	shape := r.folder.shape
	r.shard, r.used = Shard{Header: Header{Shape: shape, From: r.folder.next, Next: r.folder.next}}, 0
}

// end writes the shard, unless it is empty.
func (r *run) end() error {
	if len(r.shard.Texts) == 0 {
		return nil
	}
	return r.folder.add(&r.shard)
}
