package cuda

import "github.com/tandem-llm/tandem/kernels"

// inputs is a pass in the form that the kernels read: structures, then numbers, whose pointers are offsets until they are in place.
type inputs struct {
	rows, nwanted, topk, npairs int
	chunks                      []extent // of attention, if its pairs need more room than there is
	heads                       []cPass  // the whole pass, then the chunks
	first                       []int32  // per row: its first pair
	walks                       walks
	bytes                       []byte
}

// set lays out a pass.
func (n *inputs) set(l *placed, a *kernels.Pass) {
	n.rows, n.nwanted, n.topk = a.Rows, len(a.Wanted), min(a.TopK, l.vocabulary)
	var pairs []cPair
	n.first = n.first[:0]
	if len(l.layers) > 0 {
		for row := range a.Rows {
			n.first = append(n.first, int32(len(pairs)))
			for b := range int32(a.Keys(row)-1)/block + 1 {
				pairs = append(pairs, cPair{int32(row), b})
			}
		}
	}
	n.npairs = len(pairs)
	n.split(l, pairs)
	n.walks.set(l, a)
	numbers := [][]byte{view(a.Tokens), view(a.Pos), view(a.Turns()), view(a.Store), view(a.Pages), view(a.Table), view(a.Prefix),
		view(a.Anc), view(a.AncOff), view(a.AncLen), view(a.Cut), view(a.Wanted), view(a.Given), view(pairs), view(n.first),
		view(n.walks.all), view(n.walks.steps)}
	n.bytes = n.bytes[:0]
	at := make([]Pointer, len(numbers))
	size := len(n.heads) * passBytes
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
		for j, p := range h.lists() {
			*p = at[j]
		}
	}
}

func (n *inputs) extent() extent {
	return extent{n.rows, n.nwanted, n.npairs, len(n.walks.all), len(n.walks.steps)}
}

// split divides the pairs into chunks for which there is room, of whole rows.
func (n *inputs) split(l *placed, pairs []cPair) {
	n.chunks = n.chunks[:0]
	n.heads = append(n.heads[:0], cPass{rowTo: int32(n.rows), pairTo: int32(len(pairs))})
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
		n.heads = append(n.heads, cPass{rowFrom: int32(row), rowTo: int32(to), pairFrom: int32(end(row)), pairTo: int32(end(to))})
		n.chunks = append(n.chunks, extent{rows: to - row, pairs: end(to) - end(row)})
		row = to
	}
}

// inputBytes is what a usual pass of the most rows takes. Room for a larger one is made when it comes.
func (l *placed) inputBytes(pages int) int {
	return 1<<14 + 17*4*l.MaxRows + 8*16*l.MaxRows + 8*pages + stepBytes*l.mostSteps() + walkBytes*l.MaxRows
}

// bringPass copies the pass to the GPU.
func (r *runner) bringPass(g Driver, a *kernels.Pass) error {
	n := &r.pass
	need := len(n.heads)*passBytes + len(n.bytes)
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
	for i := range n.heads {
		for _, p := range n.heads[i].lists() {
			*p += r.input.At
		}
	}
	return g.Write(r.input.At, append(append([]byte(nil), view(n.heads)...), n.bytes...))
}
