// Package published reads published heads, prompt tokens and drafts, and says how to make a side file of them: its keys, and where each of
// its tensors comes from. It reads ids, but no weights. The sources of the layouts are named at their tables.
package published

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/safetensors"
	"github.com/tandem-llm/tandem/modelfile/side"
)

const op = "import"

// Options say what to read. Zero values are defaults.
type Options struct {
	Kind   side.Kind // default: told from the tensors' names
	Taps   []int     // default: what the checkpoint says, or what its kind is usually trained with
	Target side.Target
}

// Checkpoint is an open checkpoint and what a side file takes of it. Close it when its tensors are read.
type Checkpoint struct {
	Spec    *side.Spec
	Tensors []Tensor // of the side file
	Copies  []Copy   // tensors that should equal one of the target's
	Notes   []string // what was decided, for people
	path    string   // as errors show it
	files   []io.Closer
}

// Tensor is a tensor of the side file. It takes Shape[0] columns of the source, from Col on; its row r is row RowsOf(r) of the source.
type Tensor struct {
	Name   string
	Shape  []int // inputs first
	From   TensorSource
	Col    int
	RowsOf func(row int) int // nil: the same row
}

// Copy is a tensor of the checkpoint that should equal the target's of that name. If it does not, it becomes the side file's tensor of
// that name if Own is set; else the checkpoint was made for another target.
type Copy struct {
	Tensor
	Own bool
}

// TensorSource is a tensor of a checkpoint, or a vector that follows from its configuration: one of the three is set.
type TensorSource struct {
	Safetensor *safetensors.Tensor
	GGUF       *gguf.Tensor
	Values     []float32
}

// shape returns the source's shape, inputs first.
func (s TensorSource) shape() []int {
	switch {
	case s.GGUF != nil:
		return s.GGUF.Shape
	case s.Values != nil:
		return []int{len(s.Values)}
	}
	shape := slices.Clone(s.Safetensor.Shape)
	slices.Reverse(shape)
	return shape
}

// written returns the shape as the checkpoint's format writes it.
func (s TensorSource) written(shape []int) []int {
	if s.Safetensor != nil {
		shape = slices.Clone(shape)
		slices.Reverse(shape)
	}
	return shape
}

// Path returns the path of the checkpoint, fit for messages.
func (c *Checkpoint) Path() string { return c.path }

// Close closes the checkpoint's files.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Open reads the checkpoint at path: a folder with *.safetensors and config.json, such a file or the index of several (with config.json
// beside it), or a GGUF file of architecture eagle3. Errors: Invalid for what cannot be a checkpoint for o.Target, Corrupt for a
// damaged one, Unsupported for parts that the side file has no place for.
func Open(path string, o Options) (*Checkpoint, error) {
	c := &Checkpoint{path: safetensors.Printable(path)}
	err := c.open(path, o)
	if err == nil {
		err = c.check(o.Target)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Checkpoint) open(path string, o Options) error {
	st, err := os.Stat(path)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "%s: %w", c.path, files.Reason(err))
	}
	dir := filepath.Dir(path)
	if st.IsDir() {
		dir = path
		if path, err = c.weightsIn(path); err != nil {
			return err
		}
	}
	if isGGUF, err := c.recognise(path); err != nil {
		return err
	} else if isGGUF {
		return c.openGGUF(path, o)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	t := &taker{c: c, o: o, from: map[string]TensorSource{}, named: map[string]string{}, used: map[string]bool{}}
	for i := range f.Tensors() {
		x := &f.Tensors()[i]
		if err := t.offer(x); err != nil {
			return err
		}
	}
	if t.config, err = c.readConfig(dir); err != nil {
		return err
	}
	return t.take()
}

// weightsIn returns the path of the weights in a folder.
func (c *Checkpoint) weightsIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", tandem.Errorf(op, tandem.Invalid, "%s: %w", c.path, err)
	}
	var index, files, pickles, ggufs []string
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasSuffix(name, ".safetensors.index.json"):
			index = append(index, name)
		case strings.HasSuffix(name, ".safetensors"):
			files = append(files, name)
		case slices.Contains(pickleEndings, filepath.Ext(name)):
			pickles = append(pickles, name)
		case strings.HasSuffix(name, ".gguf"):
			ggufs = append(ggufs, name)
		}
	}
	for _, found := range [][]string{index, files, ggufs} {
		if len(found) == 1 {
			return filepath.Join(dir, found[0]), nil
		}
		if len(found) > 1 {
			return "", tandem.Errorf(op, tandem.Invalid, "%s holds %d files of weights, %s: name one of them", c.path, len(found),
				safetensors.Printable(strings.Join(found[:min(len(found), 8)], ", ")))
		}
	}
	if len(pickles) > 0 {
		return "", pickled(safetensors.Printable(filepath.Join(dir, pickles[0])))
	}
	return "", tandem.Errorf(op, tandem.Invalid, "%s holds no *.safetensors, no index of them, and no GGUF file", c.path)
}

var pickleEndings = []string{".bin", ".pt", ".pth", ".pkl", ".ckpt"}

// pickled is the error for files that run code when they are read.
func pickled(path string) error {
	return tandem.Errorf(op, tandem.Unsupported, "%s is a pickle file (PyTorch's torch.save): reading one runs code that it brings. "+
		"Convert it to safetensors where you trust it: import torch, safetensors.torch as s; "+
		"s.save_file(torch.load(FILE, weights_only=True), OUT)", path)
}

// recognise reports whether the file is a GGUF file, and refuses pickles by their content and by their name.
func (c *Checkpoint) recognise(path string) (isGGUF bool, err error) {
	f, err := files.Open(path)
	if err != nil {
		return false, nil // the reader says what is wrong
	}
	defer f.Close()
	head := make([]byte, 9)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("GGUF")):
		return true, nil
	case n == len(head) && n == 9 && head[8] == '{':
		return false, nil // a safetensors file, whose length may begin like a pickle
	case bytes.HasPrefix(head, []byte("PK\x03\x04")) || n > 1 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5,
		slices.Contains(pickleEndings, filepath.Ext(path)):
		return false, pickled(safetensors.Printable(path))
	}
	return false, nil
}

// prefixes that checkpoints of whole models put before their names.
var prefixes = []string{"base_model.model.", "model.", "medusa_head.", "medusa_heads.", "eagle_module."}

// taker takes tensors out of a checkpoint.
type taker struct {
	c      *Checkpoint
	o      Options
	config *config
	from   map[string]TensorSource // by name without prefix
	named  map[string]string       // the name in the file
	used   map[string]bool

	ropeFactors []float32 // that the configuration wants; nil: none
}

// offer adds a tensor of the file.
func (t *taker) offer(x *safetensors.Tensor) error {
	name := x.Name
	for _, p := range prefixes {
		name = strings.TrimPrefix(name, p)
	}
	if before, twice := t.named[name]; twice {
		return t.fail(tandem.Corrupt, "tensors %.80q and %.80q are the same one", before, x.Name)
	}
	t.from[name], t.named[name] = TensorSource{Safetensor: x}, x.Name
	return nil
}

func (t *taker) fail(k tandem.Kind, format string, args ...any) error {
	return tandem.Errorf(op, k, "%s: %w", t.c.path, fmt.Errorf(format, args...))
}

func (t *taker) note(format string, args ...any) {
	t.c.Notes = append(t.c.Notes, fmt.Sprintf(format, args...))
}

func (t *taker) has(name string) bool { _, ok := t.from[name]; return ok }

// count returns how many of the numbers 0, 1, … a tensor is there for, its name given by a format.
func (t *taker) count(format string) (n int) {
	for t.has(fmt.Sprintf(format, n)) {
		n++
	}
	return n
}

// outputs returns the number of rows of a matrix.
func (t *taker) outputs(name string) (int, error) {
	s, ok := t.from[name]
	if !ok {
		return 0, t.fail(tandem.Invalid, "tensor %q is missing", name)
	}
	if shape := s.shape(); len(shape) == 2 {
		return shape[1], nil
	}
	return 0, t.fail(tandem.Invalid, "tensor %.80q has shape %d: want a matrix", t.named[name], s.written(s.shape()))
}

// origin says where a tensor of the side file comes from.
type origin struct {
	name   string
	inputs int   // columns of the source, if it has other ones beside; 0: as many as the tensor has
	shape  []int // of the source of a vector, whose numbers lie one after the other; nil: the vector's
	col    int
	rows   func(row int) int
}

// fill takes a tensor for each slot of the spec. where returns a slot's origin, "" for one that the checkpoint cannot have.
func (t *taker) fill(where func(slot string) origin) error {
	for _, slot := range t.c.Spec.Slots() {
		from := where(slot.Name)
		s, ok := t.from[from.name]
		if !ok || from.name == "" { // "model." without its prefix has no name either
			if slot.Optional {
				continue
			}
			return t.fail(tandem.Invalid, "tensor %q is missing", from.name)
		}
		want := slices.Clone(slot.Shape)
		if from.inputs > 0 {
			want[0] = from.inputs
		}
		if from.shape != nil {
			want = slices.Clone(from.shape)
		}
		if got := s.shape(); !slices.Equal(got, want) {
			slices.Reverse(want)
			got = slices.Clone(got)
			slices.Reverse(got)
			return t.fail(tandem.Invalid, "tensor %.80q has shape %d: want %d, by the target and the configuration", t.named[from.name],
				got,
				want)
		}
		if err := t.isFloat(from.name); err != nil {
			return err
		}
		t.used[from.name] = true
		t.c.Tensors = append(t.c.Tensors, Tensor{Name: slot.Name, Shape: slot.Shape, From: s, Col: from.col, RowsOf: from.rows})
	}
	if f := t.ropeFactors; f != nil {
		t.c.Tensors = append(t.c.Tensors, Tensor{Name: side.RopeFactors, Shape: []int{len(f)}, From: TensorSource{Values: f}})
	}
	return nil
}

func (t *taker) isFloat(name string) error {
	if s := t.from[name].Safetensor; s != nil && !s.IsFloat() {
		return t.fail(tandem.Unsupported, "tensor %.80q is %s: want F64, F32, F16 or BF16", t.named[name], s.Type)
	}
	return nil
}

// copies takes a tensor that should equal the target's named of, if the checkpoint has it.
func (t *taker) copies(name, of string, width, vocab int, own bool) error {
	s, ok := t.from[name]
	if !ok {
		return nil
	}
	if want := []int{width, vocab}; !slices.Equal(s.shape(), want) {
		return t.fail(tandem.Invalid, "tensor %.80q has shape %d: want %d, the target's vocabulary and width", t.named[name],
			s.written(s.shape()), s.written(want))
	}
	if err := t.isFloat(name); err != nil {
		return err
	}
	t.used[name] = true
	t.c.Copies = append(t.c.Copies, Copy{Tensor{Name: of, Shape: []int{width, vocab}, From: s}, own})
	return nil
}

// rest refuses tensors that were not taken.
func (t *taker) rest() error {
	var left []string
	for name := range t.from {
		if !t.used[name] && !buffers.MatchString(name) {
			left = append(left, t.named[name])
		}
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return t.fail(tandem.Unsupported, "tensor %.80q has no place in a side file of %s (%d such tensors): leaving it out would change the "+
		"guesses", left[0], t.c.Spec.Kind, len(left))
}

// buffers are no weights: frequencies that follow from the configuration.
var buffers = regexp.MustCompile(`^(layers\.\d+\.|midlayer\.)(self_attn\.)?rotary_emb\.inv_freq$`)

// check refuses a side file that the target would refuse.
func (c *Checkpoint) check(target side.Target) error {
	if err := c.Spec.Check(); err != nil {
		return tandem.Errorf(op, tandem.Invalid, "%s: %w", c.path, err)
	}
	return c.Spec.Fits(c.path, target)
}
