package translate

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/token"
)

// ownWords is a text of the target as a draft model of another vocabulary reads it: in its own tokens. They are those that its tokenizer
// makes of the whole text; but only the end of the text, which may still become part of other tokens, is tokenised again.
type ownWords struct {
	of, own *token.Vocab   // the target's vocabulary and the draft's
	settled []tandem.Token // of the draft: those that no further text changes
	tail    []byte         // the text behind them
	begun   bool           // something was printed since the last token that steers: an added space is no longer dropped
	first   bool           // no token has come
}

// mostTail is how many bytes of text are tokenised again at most. A longer text without a place to begin anew is cut somewhere, as if it
// ended there.
const mostTail = 1 << 13

func newOwnWords(of, own *token.Vocab) *ownWords {
	return &ownWords{of: of, own: own, settled: slices.Clone(own.Begin()), first: true}
}

// add adds tokens of the target. What they print is text. A token that steers ends a text, so that both tokenizers begin another one; the
// draft reads its own token of the same meaning, or nothing.
func (w *ownWords) add(tokens ...tandem.Token) {
	for _, t := range tokens {
		first := w.first
		w.first = false
		if w.of.Steers(t) {
			w.settled = append(w.settled, w.own.EncodeNext(string(w.tail))...)
			w.tail, w.begun = w.tail[:0], false
			same, ok := w.own.Counterpart(w.of, t)
			if ok && !(first && slices.Equal(w.settled, []tandem.Token{same})) {
				w.settled = append(w.settled, same)
			}
			continue
		}
		before := len(w.tail)
		w.tail = w.of.AppendBytes(w.tail, t)
		if added := w.tail[before:]; !w.begun && len(added) > 0 {
			w.begun = true
			switch lead := added[0] == ' ' && w.of.SpacePrefix(); {
			case lead && !w.own.SpacePrefix():
				w.tail = w.tail[1:]
			case !lead && w.own.SpacePrefix():
				w.tail = append([]byte{' '}, w.tail...)
			}
		}
		if len(w.tail) > mostTail {
			w.settled = append(w.settled, w.own.EncodeNext(string(w.tail))...)
			w.tail = w.tail[:0]
		}
	}
	n := w.own.Settled(string(w.tail))
	if n > 0 {
		w.settled = append(w.settled, w.own.EncodeNext(string(w.tail[:n]))...)
		w.tail = append(w.tail[:0], w.tail[n:]...)
	}
}

// tokens returns the text in the draft's tokens, at least one. settled is how many of them no further text changes.
func (w *ownWords) tokens() (all []tandem.Token, settled int) {
	settled = len(w.settled)
	all = append(w.settled[:settled:settled], w.own.EncodeNext(string(w.tail))...)
	if len(all) == 0 {
		return []tandem.Token{w.own.StandIn()}, 0
	}
	return all, settled
}

// theirs turns a tree in the draft's tokens below the text into one in the target's tokens below root, the text's last: of the text of
// each path, those that no further text changes (token.Firm). Of nodes with the same text one is left. A node's probability is the sum of
// the draft's for the paths that lead to it. It has at most b.Nodes nodes, the likeliest, and depth b.Depth; likelier ones come first.
func (w *ownWords) theirs(t tandem.Tree, root tandem.Token, b tandem.Bounds) tandem.Tree {
	g := glossary{words: w, from: t, nodes: []glossed{{token: root}}}
	inner := make([]bool, t.Len())
	for i := 1; i < t.Len(); i++ {
		inner[t.Parents[i]] = true
	}
	for i := 1; i < t.Len(); i++ {
		if !inner[i] {
			g.path(int32(i), b.Depth)
		}
	}
	return g.tree(b.Nodes)
}

// glossary is a tree of the target's tokens that is being made.
type glossary struct {
	words *ownWords
	from  tandem.Tree // the draft's
	nodes []glossed   // parents first; the root is 0
}

type glossed struct {
	token    tandem.Token
	parent   int32
	children []int32
	chance   float64
	by       []int32 // the draft's nodes whose chances are in it
}

// path adds the path to a leaf.
func (g *glossary) path(leaf int32, depth int) {
	var line []int32
	for n := leaf; n > 0; n = g.from.Parents[n] {
		line = append(line, n)
	}
	slices.Reverse(line)
	w, text, ends := g.words, []byte(nil), make([]int, 0, len(line))
	for i, n := range line {
		t := g.from.Tokens[n]
		if w.own.Steers(t) {
			line = line[:i]
			break
		}
		before := len(text)
		if text = w.own.AppendBytes(text, t); !w.begun && before == 0 && len(text) > 0 {
			lead := text[0] == ' ' && w.own.SpacePrefix()
			switch {
			case lead && !w.of.SpacePrefix():
				text = text[1:]
			case !lead && w.of.SpacePrefix():
				text = append([]byte{' '}, text...)
			}
		}
		ends = append(ends, len(text))
	}
	at, end, k := int32(0), 0, 0
	for i, t := range w.of.Firm(string(text)) {
		if i >= depth {
			return
		}
		end += len(w.of.Bytes(t))
		for k < len(ends) && ends[k] < end {
			k++
		}
		if k == len(ends) {
			return
		}
		at = g.child(at, t)
		if n := &g.nodes[at]; !slices.Contains(n.by, line[k]) {
			n.by = append(n.by, line[k])
			n.chance += math.Exp(float64(g.from.LogProbs[line[k]]))
		}
	}
}

// child returns the child of a node with that token, which is made if there is none.
func (g *glossary) child(at int32, t tandem.Token) int32 {
	for _, c := range g.nodes[at].children {
		if g.nodes[c].token == t {
			return c
		}
	}
	c := int32(len(g.nodes))
	g.nodes[at].children = append(g.nodes[at].children, c)
	g.nodes = append(g.nodes, glossed{token: t, parent: at})
	return c
}

// tree returns the likeliest nodes, at most that many, root included.
func (g *glossary) tree(nodes int) tandem.Tree {
	logProbs, order := make([]float32, len(g.nodes)), make([]int32, len(g.nodes))
	for i := range g.nodes {
		order[i] = int32(i)
		if i > 0 {
			logProbs[i] = min(float32(math.Log(g.nodes[i].chance)), logProbs[g.nodes[i].parent])
		}
	}
	slices.SortStableFunc(order[1:], func(a, b int32) int { // parents, which are at least as likely, stay before their children
		switch {
		case logProbs[a] > logProbs[b]:
			return -1
		case logProbs[a] < logProbs[b]:
			return 1
		}
		return 0
	})
	order = order[:max(1, min(nodes, len(order)))]
	var out tandem.Tree
	place := make([]int32, len(g.nodes))
	for i, n := range order {
		if math.IsInf(float64(logProbs[n]), -1) {
			break
		}
		place[n] = int32(i)
		out.Tokens, out.LogProbs = append(out.Tokens, g.nodes[n].token), append(out.LogProbs, logProbs[n])
		parent := int32(-1)
		if n > 0 {
			parent = place[g.nodes[n].parent]
		}
		out.Parents = append(out.Parents, parent)
	}
	return out
}

// hindsight turns what a draft says of the end of the text in its own tokens into what it says of the target's: one of those is foreseen if
// all of the draft's that share a byte with it are. It ends at a token without text.
func hindsight(h tandem.Hindsight, own *token.Vocab, mine []tandem.Token, of *token.Vocab, theirs []tandem.Token) (out tandem.Hindsight) {
	end, covered, i := 0, 0, 0 // bytes before the end of the text: of the target's tokens, and of the draft's, of which i are
	hit := true                // the draft's token that begins last was foreseen
	for out.Tokens < min(tandem.MaxHindsight, len(theirs)) {
		size := len(of.Bytes(theirs[len(theirs)-1-out.Tokens]))
		if size == 0 {
			break
		}
		all := covered <= end || hit
		for covered < end+size {
			if i >= min(h.Tokens, len(mine)) {
				return out
			}
			n := len(own.Bytes(mine[len(mine)-1-i]))
			if n == 0 {
				return out
			}
			hit = h.Hits>>i&1 == 1
			all = all && hit
			covered += n
			i++
		}
		end += size
		if all {
			out.Hits |= 1 << out.Tokens
		}
		out.Tokens++
	}
	return out
}
