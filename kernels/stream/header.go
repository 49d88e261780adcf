package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/tandem-llm/tandem/kernels"
)

// Version is that of the packed file. A file of another version is made again.
const Version = 2

// A packed file is its header, then the extents of the stages and of the matrices of which rows are looked up, each at a page:
//
//	"tandem packed\n\0\0", the length of the table in 8 bytes, little-endian, the table's SHA-256, the table in JSON
//
// The table has checksums (kernels/sum) for the groups of each matrix of a stage and for each group of rows that is looked up: every byte
// is compared before a pass ends in which it was read.
const (
	magic      = "tandem packed\n\x00\x00"
	fixedBytes = len(magic) + 8 + sha256.Size
	mostTable  = 256 << 20

	// blockBytes are read at a time.
	blockBytes = 2 << 20
	// asideBytes of them, where what is read is not what a reader may write to.
	asideBytes = 1 << 20
)

// table describes a packed file. It is the same for the same tensors and program on every machine, but for the checksums.
type table struct {
	Version int         `json:"version"`
	Digest  string      `json:"digest"` // of the model's tensors
	Block   int64       `json:"block_bytes"`
	Matrix  []matrixRow `json:"matrices"`
	Stages  []stageRow  `json:"stages"`
	Looked  []lookedRow `json:"looked_up"`
	Bytes   int64       `json:"bytes"` // of the file
	Sums    string      `json:"sums"`
}

type matrixRow struct {
	Name    string         `json:"name"`
	Type    string         `json:"type"`
	Rows    int            `json:"rows"`
	Cols    int            `json:"cols"`
	Layout  kernels.Layout `json:"layout"`
	Version int            `json:"layout_version"`
}

type stageRow struct {
	Name    string `json:"name"`
	At      int64  `json:"at"` // in the file
	Bytes   int64  `json:"bytes"`
	Matrix  []int  `json:"matrices"`
	Offsets []int64
}

type lookedRow struct {
	Matrix int   `json:"matrix"`
	At     int64 `json:"at"`
	Own    bool  `json:"own"` // it has an extent of its own; else it lies in a stage
}

// lookedUp returns the table without checksums for a digest, stages and looked-up matrices.
func newTable(digest string, p *kernels.Program, stages []stage, looks []*lookup) *table {
	t := &table{Version: Version, Digest: digest, Block: blockBytes}
	for i := range p.Weights {
		w := &p.Weights[i]
		t.Matrix = append(t.Matrix, matrixRow{w.Name, w.Type.String(), w.Rows, w.Cols, w.Layout, kernels.LayoutVersion})
	}
	end, sums := int64(0), 0 // of the extents, from the first on
	homes := map[kernels.W]int64{}
	for _, s := range stages {
		r := stageRow{Name: s.name, At: end, Bytes: s.size}
		for _, e := range s.weights {
			r.Matrix, r.Offsets = append(r.Matrix, int(e.w)), append(r.Offsets, e.at)
			sums += e.groups
			if _, ok := homes[e.w]; !ok {
				homes[e.w] = end + e.at
			}
		}
		t.Stages = append(t.Stages, r)
		end += s.size
	}
	for _, l := range looks {
		at, in := homes[l.w]
		if !in {
			at = end
			end += pages(l.group * int64(l.groups))
		}
		t.Looked = append(t.Looked, lookedRow{int(l.w), at, !in})
	}
	for _, l := range looks {
		sums += l.groups
	}
	t.Sums = hex.EncodeToString(make([]byte, 4*sums))
	t.Bytes = 1 << 62 // takes as many digits as any size
	first := pages(int64(fixedBytes + len(t.encode())))
	for i := range t.Stages {
		t.Stages[i].At += first
	}
	for i := range t.Looked {
		t.Looked[i].At += first
	}
	t.Bytes = first + end
	return t
}

// blocksOf returns the number of blocks of an extent.
func blocksOf(bytes int64) int { return int((bytes + blockBytes - 1) / blockBytes) }

func (t *table) encode() []byte {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // numbers and strings
	}
	return b
}

// header returns the file's first bytes.
func (t *table) header() []byte { return headerOf(t.encode()) }

func headerOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	out := binary.LittleEndian.AppendUint64([]byte(magic), uint64(len(b)))
	return append(append(out, sum[:]...), b...)
}

// readTable reads the table of a packed file of so many bytes. Errors say what is wrong with it.
func readTable(r io.ReaderAt, size int64) (*table, error) {
	fixed := make([]byte, fixedBytes)
	if _, err := r.ReadAt(fixed, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("it has %d bytes, too few for a header", size)
		}
		return nil, err
	}
	if !bytes.HasPrefix(fixed, []byte(magic)) {
		return nil, errors.New("it does not begin as a packed file does")
	}
	n := binary.LittleEndian.Uint64(fixed[len(magic):])
	if n > mostTable || int64(n) > size-int64(fixedBytes) {
		return nil, fmt.Errorf("its table has %d bytes, and the file %d", n, size)
	}
	b := make([]byte, n)
	if _, err := r.ReadAt(b, int64(fixedBytes)); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:], fixed[len(magic)+8:]) {
		return nil, errors.New("its table has changed")
	}
	t := new(table)
	if err := json.Unmarshal(b, t); err != nil {
		return nil, fmt.Errorf("its table is damaged: %w", err)
	}
	return t, nil
}

// match returns an error that says how a file's table differs from the one that is wanted, and its checksums.
func (t *table) match(want *table, size int64) ([]uint32, error) {
	switch sums, err := hex.DecodeString(t.Sums); {
	case t.Version != want.Version:
		return nil, fmt.Errorf("it is of version %d, this program writes version %d", t.Version, want.Version)
	case t.Digest != want.Digest:
		return nil, fmt.Errorf("it holds the tensors %s, the model has %s", t.Digest, want.Digest)
	case size != t.Bytes:
		return nil, fmt.Errorf("it has %d bytes instead of %d", size, t.Bytes)
	case err != nil || len(sums) != len(want.Sums)/2:
		return nil, fmt.Errorf("it has %d checksums instead of %d", len(t.Sums)/8, len(want.Sums)/8)
	default:
		same := *t
		same.Sums = want.Sums
		if !reflect.DeepEqual(&same, want) {
			return nil, errors.New("its matrices lie in another order")
		}
		out := make([]uint32, len(sums)/4)
		for i := range out {
			out[i] = binary.LittleEndian.Uint32(sums[4*i:])
		}
		return out, nil
	}
}
