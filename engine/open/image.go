package open

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Image is a model's packed weights as one file, which a later start reads instead of packing them:
//
//	the bytes of the store; its description in JSON; the description's length in 8 bytes, little-endian, and its SHA-256; imageMagic
//
// Packed weights are the same for all instruction sets of the processor, so one file serves them all.
type Image struct {
	Model string // path of the model's file
	For   string // which files of a user one replaces another: the model's path, the device, the version of packing
	Fresh bool   // the weights were packed now: no file had them
	alone bool   // memory that others share was refused
	told  imageTable
	store kernels.ImageStore
	bytes []byte // of the store
}

// imageTable describes the bytes of an image.
type imageTable struct {
	Key      string        `json:"key"`              // what the bytes were made from: the model's file by inode, times and size; the matrices
	Digest   string        `json:"digest"`           // of the model's tensors
	Layout   int           `json:"layout"`           // kernels.LayoutVersion
	Matrices []imageMatrix `json:"matrices"`         // those that are all of their tensors
	Sums     []uint32      `json:"crc32c,omitempty"` // of each imageBlock; none of memory that processes share the output matrix in
}

// imageMatrix is a matrix of an image: the whole tensor of that name, packed.
type imageMatrix struct {
	Name string       `json:"name"`
	Type kernels.Type `json:"type"`
	Rows int          `json:"rows"`
	Cols int          `json:"cols"`
	At   int          `json:"at"` // its first byte
}

const (
	imageMagic     = "tandem image 2\n\x00"
	imageTail      = 8 + sha256.Size + len(imageMagic)
	imageBlock     = 1 << 20  // bytes that are read and checked at a time: they are still in a core's cache when they are checked
	mostImageTable = 64 << 20 // bytes of the description
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // a processor's own instruction

// newImage returns the image of the model in f in a store; nil if its weights are not in one piece of the processor's memory.
func (l *Loaded) newImage(f *gguf.File) *Image {
	s, ok := l.Store.(kernels.ImageStore)
	if !ok {
		return nil
	}
	h := sha256.New()
	fmt.Fprintln(h, "image 2", kernels.LayoutVersion)
	for i := range l.Pass.Program.Weights {
		fmt.Fprintf(h, "%+v\n", l.Pass.Program.Weights[i])
	}
	tensors.Describe(h, l.Matrices)
	stamp, err := f.Stamp()
	if err != nil {
		return nil
	}
	t := imageTable{Key: stamp + " " + hex.EncodeToString(h.Sum(nil)), Layout: kernels.LayoutVersion}
	for w := range l.Matrices {
		if m := &l.Matrices[w]; m.Whole() {
			at, _ := s.Place(kernels.W(w))
			t.Matrices = append(t.Matrices, imageMatrix{m.Tensor.Name, m.Kind(), m.Rows, m.Cols(), at})
		}
	}
	return &Image{Model: l.Path, For: fmt.Sprintf("weights of %s packed for %s, version %d", l.Path, l.Device.About().Name,
		kernels.LayoutVersion), store: s, bytes: s.Image(), told: t}
}

// find fills the weights from what others share, or from a file that o.Images has, and returns the digest of the model's tensors; "" if
// there is neither. Then weights may have any bytes.
func (i *Image) find(o Options) (digest string) {
	if i == nil {
		return ""
	}
	if o.Shared != nil && !o.Shared.Output {
		var err error
		if digest, err = i.share(o); err != nil {
			o.Shared.Refused(i.Model, err)
			i.alone = true
		}
	}
	if digest == "" && o.Images != nil {
		digest = i.kept(o.Images, nil)
	}
	return digest
}

// kept reads the weights, or copies the whole file that all has to a memory file.
func (i *Image) kept(all Images, to *os.File) string {
	path, free := all.Find(i)
	if path == "" {
		return ""
	}
	defer free()
	digest, err := i.read(path, to)
	if err != nil {
		all.Refused(i, err)
	}
	return digest
}

// Bytes returns the most bytes that the file has.
func (i *Image) Bytes() int64 {
	table, _ := json.Marshal(i.told)
	return int64(len(i.bytes)) + int64(i.blocks()*len("4294967295,")+len(table)+imageTail) + 1<<10
}

// Packed returns the weights, in place: valid until the model is closed.
func (i *Image) Packed() []byte { return i.bytes }

func (i *Image) blocks() int { return (len(i.bytes) + imageBlock - 1) / imageBlock }

func (i *Image) block(n int) []byte {
	return i.bytes[n*imageBlock : min((n+1)*imageBlock, len(i.bytes))]
}

// Check says what is wrong with the file at path, but for the bytes of weights: these are checked as they are read.
func (i *Image) Check(path string) error {
	f, _, err := i.open(path)
	if err == nil {
		f.Close()
	}
	return err
}

// open opens the file at path and reads its description.
func (i *Image) open(path string) (f *os.File, t imageTable, err error) {
	if f, err = files.Open(path); err != nil {
		return nil, t, files.Reason(err)
	}
	if t, err = i.describe(f); err != nil {
		f.Close()
		return nil, t, err
	}
	return f, t, nil
}

func (i *Image) describe(f *os.File) (t imageTable, err error) {
	t, size, err := readTable(f, int64(len(i.bytes)))
	switch {
	case err != nil:
		return t, err
	case size != int64(len(i.bytes)):
		return t, errors.New("it has another size than the weights")
	case t.Key != i.told.Key:
		return t, errors.New("the model's file has changed since, or another release made it")
	case len(t.Sums) != i.blocks() || t.Digest == "":
		return t, fmt.Errorf("it has %d checksums instead of %d", len(t.Sums), i.blocks())
	}
	return t, nil
}

// readTable reads the description behind the weights in f, and returns how many bytes these have, of which there must be so many.
func readTable(f *os.File, least int64) (t imageTable, size int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return t, 0, err
	}
	tail := make([]byte, imageTail)
	if st.Size() < least+int64(imageTail) {
		return t, 0, fmt.Errorf("it has %d bytes, too few", st.Size())
	}
	if _, err := f.ReadAt(tail, st.Size()-int64(imageTail)); err != nil {
		return t, 0, err
	}
	n := binary.LittleEndian.Uint64(tail)
	if !bytes.HasSuffix(tail, []byte(imageMagic)) || n > mostImageTable {
		return t, 0, errors.New("it does not end as packed weights do")
	}
	if size = st.Size() - int64(n) - int64(imageTail); size < least {
		return t, 0, errors.New("it has another size than the weights")
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, size); err != nil {
		return t, 0, err
	}
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:], tail[8:][:sha256.Size]) {
		return t, 0, errors.New("its description has changed")
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, 0, fmt.Errorf("its description is damaged: %w", err)
	}
	return t, size, nil
}

// read reads the weights, on all cores, and checks every block; to is nil, or what the whole file is written to instead. It reads and does
// not map, so a file that is cut meanwhile is an error.
func (i *Image) read(path string, to *os.File) (digest string, err error) {
	f, t, err := i.open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		once sync.Once
	)
	for range min(runtime.NumCPU(), i.blocks()) {
		wg.Go(func() {
			buf := make([]byte, imageBlock)
			for n := int(next.Add(1)) - 1; n < i.blocks(); n = int(next.Add(1)) - 1 {
				b, at := i.block(n), int64(n)*imageBlock
				if to != nil {
					b = buf[:len(b)]
				}
				bad := readBlock(f, b, at, t.Sums[n])
				if bad == nil && to != nil {
					_, bad = to.WriteAt(b, at)
				}
				if bad != nil {
					once.Do(func() { err = files.Reason(bad) })
					next.Store(int64(i.blocks()))
				}
			}
		})
	}
	wg.Wait()
	if err == nil && to != nil {
		_, err = io.Copy(io.NewOffsetWriter(to, int64(len(i.bytes))), io.NewSectionReader(f, int64(len(i.bytes)), mostImageTable))
	}
	if err != nil {
		return "", err
	}
	return t.Digest, nil
}

// readBlock reads a block and checks it.
func readBlock(f *os.File, b []byte, at int64, sum uint32) error {
	switch _, err := f.ReadAt(b, at); {
	case errors.Is(err, io.EOF):
		return errors.New("it was cut")
	case err != nil:
		return err
	case crc32.Checksum(b, castagnoli) != sum:
		return fmt.Errorf("its bytes from %d on have changed: checksum", at)
	}
	return nil
}

// Write makes the file at path, which is not there yet. The model must stay open meanwhile. Errors: of the file system, and ctx's.
func (i *Image) Write(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(i.write(ctx, f), f.Close())
}

func (i *Image) write(ctx context.Context, f io.Writer) error {
	t := i.told
	for n := range i.blocks() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := f.Write(i.block(n)); err != nil {
			return err
		}
		t.Sums = append(t.Sums, crc32.Checksum(i.block(n), castagnoli))
	}
	return t.write(f)
}

// write writes the description behind the weights.
func (t imageTable) write(f io.Writer) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	end := append(binary.LittleEndian.AppendUint64(b, uint64(len(b))), sum[:]...)
	_, err = f.Write(append(end, imageMagic...))
	return err
}
