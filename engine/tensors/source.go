package tensors

import (
	"hash/crc32"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Source is the kernels.Source of a model file. The pieces are those in which the file was read when its digest was computed, with a
// checksum of each, so that whoever reads a piece later knows that it is what the digest names.
type Source struct {
	matrices []Matrix
	pieces   [][]sourcePiece // per matrix, in order of row
	digest   string
	name     string
}

// sourcePiece is a piece of a matrix, and where it comes from.
type sourcePiece struct {
	Piece
	first, rows int // in the tensor, and in the matrix
	sum         uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var _ kernels.Source = (*Source)(nil)

// NewSource returns the source of these matrices of a file; name is for messages. Before it is read, Fill must have run with Note's result.
func NewSource(matrices []Matrix, name string) *Source {
	return &Source{matrices: matrices, name: name}
}

// Named sets what Digest returns: the digest of the file's tensors.
func (s *Source) Named(digest string) { s.digest = digest }

// Note prepares the pieces of all matrices. The function that it returns is a Filling's Take: it notes the checksum of each piece as that
// is read for the first time.
func (s *Source) Note() func(p Piece, src []byte) error {
	s.pieces = make([][]sourcePiece, len(s.matrices))
	chunks, _, _ := chunksOf(s.matrices)
	for _, c := range chunks {
		for _, p := range c.into {
			bytes := PerRow(c.tensor)
			q := sourcePiece{Piece: p, first: c.row + p.from/bytes, rows: p.size / bytes}
			switch {
			case p.across > 0:
				q.rows = c.tensor.Shape[0]
			case p.strip.row > bytes: // a stride of rows
				q.rows = p.size / p.strip.row * (p.strip.size / bytes)
			}
			s.pieces[p.matrix] = append(s.pieces[p.matrix], q)
		}
	}
	return func(p Piece, src []byte) error {
		all := s.pieces[p.matrix]
		at, _ := slices.BinarySearchFunc(all, p.row, func(q sourcePiece, row int) int { return q.row - row })
		all[at].sum = crc32.Checksum(src, castagnoli)
		return nil
	}
}

func (s *Source) Digest() string { return s.digest }

func (s *Source) Name() string { return s.name }

func (s *Source) Pieces(w kernels.W) int { return len(s.pieces[w]) }

func (s *Source) Rows(w kernels.W, i int) (from, to int) {
	p := s.pieces[w][i]
	return p.row, p.row + p.rows
}

// Read implements kernels.Source. Errors: those of gguf.Tensor.ReadAt; Corrupt for other bytes.
func (s *Source) Read(w kernels.W, i int, buf []byte) ([]byte, error) {
	m, p := &s.matrices[w], &s.pieces[w][i]
	buf = slices.Grow(buf[:0], p.size)[:p.size]
	at := int64(p.first) * int64(PerRow(m.Tensor))
	if err := m.Tensor.ReadAt(buf, at); err != nil {
		return nil, err
	}
	m.Tensor.Forget(at, len(buf))
	out := p.of(m.Tensor, buf)
	if crc32.Checksum(out, castagnoli) != p.sum {
		return nil, tandem.Errorf("engine", tandem.Corrupt, "%s: rows %d to %d of %s have changed since the model was opened", s.name,
			p.row, p.row+p.rows-1, m.Name())
	}
	return out, nil
}
