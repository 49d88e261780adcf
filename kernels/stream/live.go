package stream

import (
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// live is the feed from the model's own file, where no packed file can be kept: every pass packs what it streams.
type live struct {
	*weights
	src kernels.Source
}

func (l *live) readers() int { return packers }

// blocks returns the number of pieces of a stage's matrices.
func (l *live) blocks(stage int) (n int) {
	for _, e := range l.stages[stage].weights {
		n += l.src.Pieces(e.w)
	}
	return n
}

func (l *live) block(stage, i int, mem []byte, own *scratch) (int64, error) {
	for _, e := range l.stages[stage].weights {
		n := l.src.Pieces(e.w)
		if i >= n {
			i -= n
			continue
		}
		src, err := l.read(e.w, i, own)
		if err != nil {
			return 0, err
		}
		row, _ := l.src.Rows(e.w, i)
		return int64(len(src)), l.cfg.Pack(mem[e.at:e.at+e.size], l.prog.Weights[e.w], row, src)
	}
	return 0, fmt.Errorf("stream: block %d of stage %q", i, l.stages[stage].name)
}

// compare and sums have nothing to do: what is read from a model's file is checked before it is packed.
func (l *live) compare(int, extent, []byte) error { return nil }
func (l *live) sums(int, extent) []uint32         { return nil }

// rows packs the rows of one group.
func (l *live) rows(k *lookup, group int, own *scratch) (int64, error) {
	first := group * k.unit
	return l.packRows(k, first, min(first+k.unit, k.rows), k.bytes(), l.prog.Weights[k.w], 0, own)
}

// expert packs the rows of one expert.
func (l *live) expert(k *lookup, number int, region []byte, own *scratch) (int64, error) {
	alone := l.prog.Weights[k.w]
	alone.Experts = 0
	first := number * k.unit
	return l.packRows(k, first, first+k.unit, region[k.phase(number):][:k.group], alone, first, own)
}

// packRows packs rows [first, end) of a matrix to dst, which begins with row `begin` of it. Whole pieces are read, because a checksum is
// that of all of a piece.
func (l *live) packRows(k *lookup, first, end int, dst []byte, as kernels.Weight, begin int, own *scratch) (n int64, err error) {
	for i := range l.src.Pieces(k.w) {
		from, to := l.src.Rows(k.w, i)
		row, last := max(first, from), min(end, to)
		if row >= last {
			continue
		}
		src, err := l.read(k.w, i, own)
		if err != nil {
			return n, err
		}
		n += int64(len(src))
		perRow := len(src) / (to - from)
		if err := l.cfg.Pack(dst, as, row-begin, src[(row-from)*perRow:(last-from)*perRow]); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (l *live) read(w kernels.W, i int, own *scratch) ([]byte, error) {
	src, err := l.src.Read(w, i, own.raw)
	if err != nil {
		return nil, err
	}
	own.raw = src
	return src, nil
}
