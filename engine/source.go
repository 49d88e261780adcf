package engine

import (
	"context"
	"hash/crc32"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// fill makes weights, cache and names ready.
func (m *Model) fill(f, of *gguf.File, progress func(done, total int64)) error {
	digests := m.newDigests(f, of)
	s, streamed := m.store.(kernels.FileStore)
	if streamed && of != nil {
		return tandem.Errorf("engine", tandem.Unsupported, "%s: the weights of a draft with states cannot be streamed", f.Path())
	}
	to := into(m.store)
	src := &source{matrices: m.matrices, name: f.Path()}
	if streamed {
		to.take = src.note(m.matrices)
	}
	if m.options.Lock {
		to.cache = m.memory
	}
	to.add, to.forget = digests.add, m.options.Forget || streamed
	if err := fill(m.matrices, to, progress); err != nil {
		return err
	}
	if to.forget {
		f.Forget()
	}
	tensors, err := digests.sum(context.Background())
	if err != nil {
		return err
	}
	if m.names, err = m.nameOf(f, tensors); err != nil || !streamed {
		return err
	}
	src.digest = tensors
	if err := s.Fill(context.Background(), src, progress); err != nil {
		if tandem.KindOf(err) != tandem.Internal {
			return err
		}
		return tandem.Errorf("engine", tandem.Unavailable, "%s: %w", f.Path(), err)
	}
	return nil
}

// source is the kernels.Source of a model file. The pieces are those in which the file was read when its digest was computed, with a
// checksum of each, so that whoever reads a piece later knows that it is what the digest names.
type source struct {
	matrices []matrix
	pieces   [][]sourcePiece // per matrix, in order of row
	digest   string
	name     string
}

// sourcePiece is a piece of a matrix, and where it comes from.
type sourcePiece struct {
	piece
	first, rows int // in the tensor, and in the matrix
	sum         uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var _ kernels.Source = (*source)(nil)

// note prepares the pieces of all matrices and returns what takes them when they are read for the first time.
func (s *source) note(matrices []matrix) func(p piece, src []byte) error {
	s.pieces = make([][]sourcePiece, len(matrices))
	chunks, _, _ := chunksOf(matrices)
	for _, c := range chunks {
		for _, p := range c.into {
			bytes := perRow(c.tensor)
			q := sourcePiece{piece: p, first: c.row + p.from/bytes, rows: p.size / bytes}
			switch {
			case p.across > 0:
				q.rows = c.tensor.Shape[0]
			case p.strip.row > bytes: // a stride of rows
				q.rows = p.size / p.strip.row * (p.strip.size / bytes)
			}
			s.pieces[p.matrix] = append(s.pieces[p.matrix], q)
		}
	}
	return func(p piece, src []byte) error {
		all := s.pieces[p.matrix]
		at, _ := slices.BinarySearchFunc(all, p.row, func(q sourcePiece, row int) int { return q.row - row })
		all[at].sum = crc32.Checksum(src, castagnoli)
		return nil
	}
}

func (s *source) Digest() string         { return s.digest }
func (s *source) Name() string           { return s.name }
func (s *source) Pieces(w kernels.W) int { return len(s.pieces[w]) }

func (s *source) Rows(w kernels.W, i int) (from, to int) {
	p := s.pieces[w][i]
	return p.row, p.row + p.rows
}

// Read implements kernels.Source. Errors: those of gguf.Tensor.ReadAt; Corrupt for other bytes.
func (s *source) Read(w kernels.W, i int, buf []byte) ([]byte, error) {
	m, p := &s.matrices[w], &s.pieces[w][i]
	buf = slices.Grow(buf[:0], p.size)[:p.size]
	at := int64(p.first) * int64(perRow(m.tensor))
	if err := m.tensor.ReadAt(buf, at); err != nil {
		return nil, err
	}
	m.tensor.Forget(at, len(buf))
	out := p.of(m.tensor, buf)
	if crc32.Checksum(out, castagnoli) != p.sum {
		return nil, tandem.Errorf("engine", tandem.Corrupt, "%s: rows %d to %d of %s have changed since the model was opened", s.name,
			p.row, p.row+p.rows-1, m.name())
	}
	return out, nil
}
