package gguf

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
)

// LineageKey is the key in which a file that was made from another one names the model: see File.Lineage.
const LineageKey = "tandem.lineage"

const (
	leafBytes   = 512 << 10
	digestBytes = 16 // length of a digest: the first bytes of SHA-256
)

// LeafRows returns how many rows of the tensor make a leaf of its digest: as many as fit 512 KiB, in groups of 16, and at least 16.
// The last leaf may have fewer.
func (t *Tensor) LeafRows() int {
	_, perRow := t.rows()
	return max(16, leafBytes/perRow&^15)
}

// rows returns the number of rows, Shape[0] elements each, and the bytes of one.
func (t *Tensor) rows() (n, bytes int) {
	n = t.Elements() / t.Shape[0]
	return n, t.size / n
}

// Digest is the hash of a file's tensors: names, types, shapes and bytes. It does not depend on their order in the file, the keys,
// or how many files the model is split into. It is SHA-256 over the tensors in order of their names, with the hashes of a tensor's
// leaves (LeafRows) in place of its bytes, so that several cores can compute it while they read tensors for another purpose.
// Add may be called concurrently for different leaves.
type Digest struct {
	leaves map[*Tensor][]leaf
}

type leaf struct {
	sum   [sha256.Size]byte
	known bool
}

// NewDigest returns a digest of some of f's tensors, all if none are named, without any leaves.
func (f *File) NewDigest(only ...*Tensor) *Digest {
	if len(only) == 0 {
		for i := range f.tensors {
			only = append(only, &f.tensors[i])
		}
	}
	d := &Digest{leaves: make(map[*Tensor][]leaf, len(only))}
	for _, t := range only {
		rows, _ := t.rows()
		d.leaves[t] = make([]leaf, (rows+t.LeafRows()-1)/t.LeafRows())
	}
	return d
}

// Add adds the leaf of t that begins with row; data are all its bytes.
func (d *Digest) Add(t *Tensor, row int, data []byte) {
	d.leaves[t][row/t.LeafRows()] = leaf{sha256.Sum256(data), true}
}

// Sum returns the digest as 32 hexadecimal digits. It reads the leaves that were not added, on all cores. Errors: as
// Tensor.ReadAt's, and ctx's once it has ended.
func (d *Digest) Sum(ctx context.Context) (string, error) {
	if err := d.complete(ctx); err != nil {
		return "", err
	}
	tensors := slices.SortedFunc(maps.Keys(d.leaves), func(a, b *Tensor) int { return cmp.Compare(a.Name, b.Name) })
	h := sha256.New()
	h.Write([]byte("tandem tensors 1\n"))
	word := func(n int) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	for _, t := range tensors {
		word(len(t.Name))
		h.Write([]byte(t.Name))
		word(int(t.Type))
		word(len(t.Shape))
		for _, n := range t.Shape {
			word(n)
		}
		for i := range d.leaves[t] {
			h.Write(d.leaves[t][i].sum[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:digestBytes]), nil
}

// complete reads and adds the missing leaves.
func (d *Digest) complete(ctx context.Context) error {
	type missing struct {
		t *Tensor
		i int
	}
	var left []missing
	for t := range d.leaves {
		for j := range d.leaves[t] {
			if !d.leaves[t][j].known {
				left = append(left, missing{t, j})
			}
		}
	}
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for range min(runtime.NumCPU(), len(left)) {
		wg.Go(func() {
			buf := make([]byte, leafBytes)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(left) {
					return
				}
				err := ctx.Err()
				if err == nil {
					err = d.read(left[i].t, left[i].i, buf)
				} else {
					err = tandem.Errorf(op, tandem.KindOf(err), "reading %s was stopped: %w", left[i].t.part.path, err)
				}
				if err != nil {
					once.Do(func() { first = err })
					next.Store(int64(len(left)))
				}
			}
		})
	}
	wg.Wait()
	return first
}

// read reads and adds leaf i of t, through buf: a row may be large.
func (d *Digest) read(t *Tensor, i int, buf []byte) error {
	_, perRow := t.rows()
	size := t.LeafRows() * perRow
	h := sha256.New()
	for at, end := i*size, min((i+1)*size, t.size); at < end; {
		b := buf[:min(len(buf), end-at)]
		if err := t.ReadAt(b, int64(at)); err != nil {
			return err
		}
		h.Write(b)
		at += len(b)
	}
	l := leaf{known: true}
	h.Sum(l.sum[:0])
	d.leaves[t][i] = l
	return nil
}

// Lineage identifies the model in the file, whatever its weights were quantised to and its shape expanded to. It is the lineage that f
// states, which is that of the file it was made from. If f states none, it is tensors, the digest of f's tensors. Errors: Corrupt for a
// malformed key.
func (f *File) Lineage(tensors string) (string, error) {
	l, err := f.StringOr(LineageKey, tensors)
	if err != nil {
		return "", err
	}
	if b, err := hex.DecodeString(l); err != nil || len(b) != digestBytes {
		return "", tandem.Errorf(op, tandem.Corrupt, "%s: key %q is %s: want %d hexadecimal digits", f.Path(), LineageKey, short(l),
			2*digestBytes)
	}
	return l, nil
}

// sums are the digests of files that this process has read for their lineage, by their stamps: a start looks at a draft and at its target
// many times. It is a global because the same file has the same digest. Its size is that of the files named to one process.
var sums sync.Map

// ReadLineage returns f's lineage. If f states none, it reads the whole file for the digest of its tensors, unless this process has done so
// and the file is unchanged. Errors: as Lineage's and Digest.Sum's.
func (f *File) ReadLineage(ctx context.Context) (string, error) {
	if f.Has(LineageKey) {
		return f.Lineage("")
	}
	stamp, unsure := f.Stamp()
	if sum, ok := sums.Load(stamp); ok && unsure == nil {
		return sum.(string), nil
	}
	sum, err := f.NewDigest().Sum(ctx)
	if err == nil && unsure == nil {
		sums.Store(stamp, sum)
	}
	return sum, err
}
