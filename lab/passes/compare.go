package passes

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// Compared is what Compare found.
type Compared struct {
	Passes  int
	Rows    int      // with logits
	Numbers int64    // compared
	Differ  []string // passes with another bit, the first of each
}

// compareWidths are the rows of the trees that are compared: each way in which kernels group rows.
var compareWidths = []int{1, 2, 3, 4, 5, 8, 9, 16, 33, 64}

const (
	comparePiece  = 64 // tokens of a prompt in a pass
	compareBeside = 5  // rows of a second sequence
	compareTop    = 8
)

// CompareOptions returns the options with which both models must be opened; the caller adds the device and what it wants of the cache.
func CompareOptions(contexts []int) engine.Options {
	pages := 0
	for _, c := range contexts {
		pages = max(pages, engine.PagesFor(1, c+len(compareWidths)*compareBeside, comparePiece)+
			engine.PagesFor(1, comparePiece, compareBeside))
	}
	return engine.Options{KVPages: pages, MaxRows: 2 * comparePiece, MaxWanted: 2 * comparePiece}
}

// Compare runs the same passes on two models of one file and compares all logits and the best tokens, bit for bit: behind each context a
// prompt in pieces, trees of 1 to 64 rows, a second sequence in the same pass, and accepted paths whose rows move. Errors: those of the
// models, Invalid for a context that they do not have, and ctx's once it has ended; a different bit is no error.
func Compare(ctx context.Context, want, got *engine.Model, contexts []int) (*Compared, error) {
	c := &comparing{want: want, got: got, out: &Compared{}}
	for _, n := range contexts {
		if err := c.behind(ctx, n); err != nil {
			return c.out, err
		}
	}
	return c.out, nil
}

type comparing struct {
	want, got *engine.Model
	out       *Compared
	random    *rand.Rand
}

// both is a sequence of each model.
type both [2]*engine.Sequence

func (b both) close() {
	for _, s := range b {
		if s != nil {
			s.Close()
		}
	}
}

func (c *comparing) sequences(capacity, nodes int) (b both, err error) {
	for i, m := range []*engine.Model{c.want, c.got} {
		if b[i], err = m.NewSequence(capacity, nodes); err != nil {
			b.close()
			return both{}, err
		}
	}
	return b, nil
}

// behind compares passes behind a context of n tokens.
func (c *comparing) behind(ctx context.Context, n int) error {
	c.random = rand.New(rand.NewPCG(17, uint64(n)))
	long, err := c.sequences(n+len(compareWidths)*compareBeside, comparePiece)
	if err != nil {
		return err
	}
	defer long.close()
	short, err := c.sequences(comparePiece, compareBeside)
	if err != nil {
		return err
	}
	defer short.close()
	for at := 0; at < n; at += comparePiece {
		rows := min(comparePiece, n-at)
		part := engine.Part{Extend: c.tokens(rows), Want: engine.WantAll}
		if err := c.pass(ctx, fmt.Sprintf("a prompt's tokens %d to %d", at, at+rows), []both{long}, part); err != nil {
			return err
		}
	}
	for i, rows := range compareWidths {
		tree := c.tree(rows)
		of, parts := []both{long}, []engine.Part{tree}
		if i%3 == 1 {
			of, parts = append(of, short), append(parts, engine.Part{Extend: c.tokens(compareBeside), Want: engine.WantAll})
		}
		if err := c.pass(ctx, fmt.Sprintf("a tree of %d rows behind %d tokens", rows, long[0].Len()), of, parts...); err != nil {
			return err
		}
		path := pathTo(tree.Parents, rows-1)
		path = path[:min(len(path), compareBeside)]
		for _, s := range long {
			if err := s.Commit(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *comparing) tokens(n int) []tandem.Token {
	out := make([]tandem.Token, n)
	for i := range out {
		out[i] = tandem.Token(c.random.IntN(c.want.Config().Vocab))
	}
	return out
}

// tree returns a random tree.
func (c *comparing) tree(rows int) engine.Part {
	p := engine.Part{Nodes: c.tokens(rows), Want: engine.WantTail}
	for i := range rows {
		p.Parents = append(p.Parents, int32(c.random.IntN(i+1)-1))
	}
	return p
}

// pathTo returns the nodes from the prefix to node i.
func pathTo(parents []int32, i int) (path []int32) {
	for at := int32(i); at >= 0; at = parents[at] {
		path = append(path, at)
	}
	slices.Reverse(path)
	return path
}

// pass runs a pass on both models and compares.
func (c *comparing) pass(ctx context.Context, name string, of []both, parts ...engine.Part) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var outs [2]*engine.Output
	for side, m := range []*engine.Model{c.want, c.got} {
		batch := slices.Clone(parts)
		for i := range batch {
			batch[i].Seq = of[i][side]
		}
		if features, _ := m.StateWidth(); features > 0 {
			for i := range batch {
				batch[i].States = make([]engine.State, len(batch[i].Extend)+len(batch[i].Nodes))
			}
		}
		var err error
		if outs[side], err = m.Forward(batch, compareTop); err != nil {
			return err
		}
	}
	c.out.Passes++
	for i := range outs[0].Len() {
		c.out.Rows++
		want, got := outs[0].Logits(i), outs[1].Logits(i)
		c.out.Numbers += int64(len(want))
		if at := otherBit(want, got); at >= 0 {
			c.out.Differ = append(c.out.Differ, fmt.Sprintf("%s: row %d of %d, logit %d", name, i, outs[0].Len(), at))
			return nil
		}
		a, b := outs[0].Top(i), outs[1].Top(i)
		if !slices.Equal(a.IDs, b.IDs) || otherBit(append(a.Logits[:len(a.Logits):len(a.Logits)], a.Max, a.Sum),
			append(b.Logits[:len(b.Logits):len(b.Logits)], b.Max, b.Sum)) >= 0 {
			c.out.Differ = append(c.out.Differ, fmt.Sprintf("%s: row %d of %d, the best tokens", name, i, outs[0].Len()))
			return nil
		}
	}
	return nil
}

// otherBit returns the first place where a and b differ, -1 if they do not.
func otherBit(a, b []float32) int {
	for i := range a {
		if i >= len(b) || math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	if len(b) > len(a) {
		return len(a)
	}
	return -1
}
