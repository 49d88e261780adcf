package cuda

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// inputs is a pass in the form that the kernels read: structures, then numbers, whose pointers are offsets until they are in place.
type inputs struct {
	rows, nwanted, topk, npairs int
	blocks                      int      // the most that a row sees
	chunks                      []extent // of attention, if its pairs need more room than there is
	heads                       []cPass  // the whole pass, then the chunks
	first                       []int32  // per row: its first pair
	walks                       walks
	gives                       []cSpan // rows that come with the pass, of gifts
	gifts                       []float32
	after                       []int32 // of a step of a chain: kernels.ChainStep
	result                      int     // of a step of a chain: its first wanted row, counted through all
	bytes                       []byte
}

// set lays out a pass for a GPU of so many multiprocessors.
func (n *inputs) set(l *placed, a *kernels.Pass, processors int) {
	n.rows, n.nwanted, n.topk = a.Rows, len(a.Wanted), min(a.TopK, l.vocabulary)
	var pairs []cPair
	n.first, n.blocks = n.first[:0], 0
	if len(l.layers) > 0 {
		for row := range a.Rows {
			n.first = append(n.first, int32(len(pairs)))
			blocks := (a.Keys(row)-1)/block + 1
			n.blocks = max(n.blocks, blocks)
			for b := range int32(blocks) {
				pairs = append(pairs, cPair{int32(row), b})
			}
		}
	}
	n.npairs = len(pairs)
	n.split(l, pairs, processors)
	n.walks.set(l, a)
	numbers := [][]byte{view(a.Tokens), view(a.Pos), view(a.Turns()), view(a.Store), view(a.Pages), view(a.Table), view(a.Prefix),
		view(a.Anc), view(a.AncOff), view(a.AncLen), view(a.Cut), view(a.Wanted), view(a.Given), view(pairs), view(n.first),
		view(n.walks.all), view(n.walks.steps), view(n.gifts), view(n.gives), view(n.after)}
	n.bytes = n.bytes[:0]
	at := make([]Pointer, len(numbers))
	size := len(n.heads) * passBytes // places count as if these structures stood right before the numbers
	for i, b := range numbers {
		at[i] = Pointer(size)
		n.bytes = append(n.bytes, b...)
		n.bytes = append(n.bytes, make([]byte, round(len(b), 16)-len(b))...)
		size += round(len(b), 16)
	}
	for i := range n.heads {
		h := &n.heads[i]
		h.rows, h.nwanted, h.topk, h.left = int32(n.rows), int32(n.nwanted), int32(n.topk), a.Left
		h.nwalks, h.nsteps, h.held = int32(len(n.walks.all)), int32(len(n.walks.steps)), n.walks.held
		h.blocks, h.ngives, h.nafter, h.result = int32(n.blocks), int32(len(n.gives)), int32(len(n.after)), int32(n.result)
		for j, p := range h.lists() {
			*p = at[j]
		}
	}
}

func (n *inputs) extent() extent {
	return extent{n.rows, n.nwanted, n.npairs, len(n.walks.all), len(n.walks.steps), int(n.heads[0].each), len(n.gives) + len(n.after)}
}

// each returns how many pairs a block takes: the more of the same keys, the less is read, but some blocks for each multiprocessor.
func each(pairs, processors int) int { return max(1, min(8, roundPairs(pairs)/(4*processors))) }

// split divides the pairs into chunks for which there is room, of whole rows, and orders those of each by block.
func (n *inputs) split(l *placed, pairs []cPair, processors int) {
	n.chunks = n.chunks[:0]
	n.heads = append(n.heads[:0], cPass{rowTo: int32(n.rows), pairTo: int32(len(pairs)), each: int32(each(len(pairs), processors))})
	defer func() {
		for _, h := range n.heads[min(1, len(n.chunks)):] {
			slices.SortStableFunc(pairs[h.pairFrom:h.pairTo], func(a, b cPair) int { return cmp.Compare(a.block, b.block) })
		}
	}()
	if l.heads == 0 || len(pairs) <= l.pairs {
		return
	}
	end := func(row int) int {
		if row < n.rows {
			return int(n.first[row])
		}
		return len(pairs)
	}
	for row := 0; row < n.rows; {
		to := row + 1
		for to < n.rows && end(to+1)-end(row) <= l.pairs {
			to++
		}
		e := extent{rows: to - row, pairs: end(to) - end(row), each: each(end(to)-end(row), processors)}
		n.heads = append(n.heads, cPass{rowFrom: int32(row), rowTo: int32(to), pairFrom: int32(end(row)), pairTo: int32(end(to)),
			each: int32(e.each)})
		n.chunks = append(n.chunks, e)
		row = to
	}
}

// inputBytes is what a usual pass of the most rows takes. Room for a larger one is made when it comes.
func (l *placed) inputBytes(pages int) int {
	return 1<<14 + 17*4*l.MaxRows + 8*16*l.MaxRows + 8*pages + stepBytes*l.mostSteps() + walkBytes*l.MaxRows
}

// bringPasses copies the pass, and the further steps of a chain, to the GPU: all structures, and then the numbers.
func (r *runner) bringPasses(g Driver) error {
	steps := append([]*inputs{&r.pass}, r.further...)
	heads, need := 0, 0
	for _, n := range steps {
		heads += len(n.heads) * passBytes
		need += len(n.heads)*passBytes + len(n.bytes)
	}
	if need > r.input.Size {
		r.dropGraphs() // they hold its address
		if r.input.Size > 0 {
			if err := g.Release(r.input); err != nil {
				return err
			}
			r.input = Memory{}
		}
		m, err := g.Alloc(2 * need)
		if err != nil {
			return err
		}
		r.input = m
	}
	all, numbers := make([]byte, 0, need), Pointer(heads)
	for _, n := range steps {
		for i := range n.heads {
			for _, p := range n.heads[i].lists() {
				*p += r.input.At + numbers - Pointer(len(n.heads)*passBytes)
			}
		}
		all, numbers = append(all, view(n.heads)...), numbers+Pointer(len(n.bytes))
	}
	for _, n := range steps {
		all = append(all, n.bytes...)
	}
	return g.Write(r.input.At, all)
}
