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

// rows packs the rows of one group: the whole piece is read, because its checksum is that of all of it.
func (l *live) rows(k *lookup, group int, own *scratch) (int64, error) {
	row := group * kernels.GroupRows
	for i := range l.src.Pieces(k.w) {
		from, to := l.src.Rows(k.w, i)
		if row < from || row >= to {
			continue
		}
		src, err := l.read(k.w, i, own)
		if err != nil {
			return 0, err
		}
		perRow := len(src) / (to - from)
		src = src[(row-from)*perRow : min(row-from+kernels.GroupRows, to-from)*perRow]
		return int64(to-from) * int64(perRow), l.cfg.Pack(k.bytes(), l.prog.Weights[k.w], row, src)
	}
	return 0, fmt.Errorf("stream: row %d of %q", row, l.prog.Weights[k.w].Name)
}

func (l *live) read(w kernels.W, i int, own *scratch) ([]byte, error) {
	src, err := l.src.Read(w, i, own.raw)
	if err != nil {
		return nil, err
	}
	own.raw = src
	return src, nil
}
