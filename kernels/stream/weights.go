package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	// readers is how many blocks of a packed file are read at a time. Four are enough for a disk's full rate on idle cores. While a stage
	// computes, a reader gets a core late to ask for its next block: the reads of the others are what the disk does until then.
	readers = 8
	// packers is how many pieces of a model's file are read at a time: each takes memory of its own.
	packers = 4
)

// weights are the kernels.FileStore of a program.
type weights struct {
	cfg    Config
	lost   func(error)
	prog   *kernels.Program // divided
	stages []stage          // those of prog, perhaps one more, which is always resident: see stagesOf
	budget *budget
	looks  []*lookup // embeddings, then experts
	expert experts
	mem    []byte   // resident stages, then the slots
	at     []int64  // per resident stage: where it lies in mem
	place  []int    // per streamed stage: its place in a pass
	order  [][]view // per stage, in order of StageWeights
	ring   *ring    // nil: nothing is streamed, or not filled yet
	feed   feed
	file   File
	free   func() error // gives the packed file back
	sums   []byte       // checksums of the packed file
	left   bool         // runners compare those of products
	count  counters
	keeps  bool
	once   sync.Once
}

// view is where a weight of a stage lies: in an extent of the stage's bytes or of the last one's, in a lookup, or, as weight `at` of a
// mixture, by expert.
type view struct {
	extent extent
	always bool // of the stage that is always resident
	look   *lookup
	of     *mixture
	at     int
}

var (
	_ kernels.RowStore = (*weights)(nil)
	_ kernels.Checked  = (*weights)(nil)
)

// layOut lays out p, a divided program, in the memory of c. Errors: *kernels.TooSmall, *kernels.Unsupported.
func layOut(p *kernels.Program, c Config) (*weights, error) {
	w := &weights{cfg: c, prog: p, stages: stagesOf(p)}
	sizes, total := make([]int64, len(w.stages)), int64(0)
	read := map[kernels.W]bool{} // by products
	for i, s := range w.stages {
		for _, e := range s.weights {
			if read[e.w] {
				return nil, &kernels.Unsupported{Device: name, What: fmt.Sprintf("streaming of weight %q, which two stages read",
					p.Weights[e.w].Name)}
			}
			read[e.w] = true
		}
		sizes[i] = s.size
		total += s.size
	}
	looked := w.lookUp(&total)
	var err error
	if w.expert.all, err = mixturesOf(p); err != nil {
		return nil, err
	}
	// What every pass reads is worth more memory than what some passes do, so experts get what is left.
	w.expert.classify()
	least, whole, _, _ := w.expert.sizes()
	always := int64(0)
	for _, s := range w.stages[p.StageCount():] {
		always += s.size
	}
	if w.budget, err = choose(sizes[:p.StageCount()], looked, c.Memory-least-always); err != nil {
		if small := (*kernels.TooSmall)(nil); errors.As(err, &small) {
			return nil, &kernels.TooSmall{Bytes: c.Memory, Least: small.Least + least + always}
		}
		return nil, err
	}
	w.budget.resident = append(w.budget.resident, slices.Repeat([]bool{true}, len(w.stages)-p.StageCount())...)
	w.budget.held += always
	w.settle()
	w.expert.divide(min(whole, c.Memory-w.budget.bytes()))
	for _, m := range w.expert.all {
		w.looks = append(w.looks, m.looks...)
	}
	for i := range p.StageCount() {
		w.order = append(w.order, w.views(i))
	}
	w.expert.foretell(p)
	return w, nil
}

// settle gives every resident stage its place in memory.
func (w *weights) settle() {
	end := int64(0)
	resident := map[kernels.W]bool{}
	for i, s := range w.stages {
		w.at = append(w.at, end)
		if w.budget.resident[i] {
			end += s.size
			for _, e := range s.weights {
				resident[e.w] = true
			}
		}
	}
	streamed := 0
	for i, s := range w.stages {
		w.place = append(w.place, streamed)
		if s.size > 0 && !w.budget.resident[i] {
			streamed++
		}
	}
	for _, l := range w.looks {
		if resident[l.w] { // no memory of its own
			w.budget.looked -= l.most
			l.most = 0
		}
	}
}

// views returns the weights of a stage in order of StageWeights.
func (w *weights) views(stage int) (out []view) {
	s := &w.stages[stage]
	for _, k := range w.prog.StageWeights(stage) {
		var v view
		for _, e := range s.weights {
			if e.w == k {
				v.extent = e
			}
		}
		for _, more := range w.stages[w.prog.StageCount():] {
			for _, e := range more.weights {
				if e.w == k {
					v.extent, v.always = e, true
				}
			}
		}
		for _, l := range w.looks {
			if v.extent.size == 0 && l.w == k {
				v.look = l
			}
		}
		for _, m := range w.expert.all {
			if i := slices.Index(m.looks, v.look); v.look != nil && i >= 0 {
				v.of, v.at = m, i
			}
		}
		out = append(out, v)
	}
	return out
}

// allocate reserves its memory.
func (w *weights) allocate() (err error) {
	if w.mem, err = allocate(w.budget.held+int64(w.budget.slots)*w.budget.slot, true); err != nil {
		return err
	}
	if err = w.expert.allocate(); err != nil {
		return err
	}
	for i := range w.stages {
		for _, e := range w.stages[i].weights {
			for _, l := range w.looks {
				if l.w == e.w && w.budget.resident[i] {
					l.mem, l.begin = w.memoryOf(i)[e.at:e.at+e.size], 0
				}
			}
		}
	}
	return nil
}

// memoryOf returns the memory of a resident stage, or that of the first slot.
func (w *weights) memoryOf(stage int) []byte {
	n := w.stages[stage].size
	if w.budget.resident[stage] {
		return w.mem[w.at[stage]:][:n]
	}
	return w.mem[w.budget.held:][:n]
}

// Fill opens or makes the packed file, reads what is resident, and begins to fill the ring.
func (w *weights) Fill(ctx context.Context, src kernels.Source, progress func(done, total int64)) error {
	t := newTable(src.Digest(), w.prog, w.stages, w.looks)
	for i, l := range w.looks {
		l.home = t.Looked[i].At
		if l.most > 0 {
			if err := l.allocate(); err != nil {
				return err
			}
		}
	}
	made, err := w.open(ctx, src, t, progress)
	if err != nil {
		return err
	}
	if err := populate(w.expert.mem, func() {
		if progress != nil {
			progress(0, 0)
		}
	}); err != nil {
		return err
	}
	begun, before := time.Now(), w.count.read.Load()
	if !made {
		if err := w.load(ctx, progress); err != nil {
			return err
		}
	}
	if len(w.expert.all) > 0 {
		w.expert.start(w.feed, &w.count)
	}
	if w.budget.slots == 0 {
		if len(w.expert.all) > 0 {
			w.tell(0)
		}
		return nil
	}
	w.start()
	if err := w.ring.full(); err != nil {
		return w.failed(err)
	}
	w.tell(float64(w.count.read.Load()-before) / time.Since(begun).Seconds())
	return nil
}

// open chooses where weights are read from. made: the packed file is new, and the resident stages are in memory.
func (w *weights) open(ctx context.Context, src kernels.Source, t *table, progress func(done, total int64)) (made bool, err error) {
	var sums []uint32
	check := func(path string) error {
		sums, err = checkFile(path, t)
		return err
	}
	path := ""
	if w.cfg.Keep != nil {
		r := Request{Model: src.Name(), Key: fmt.Sprintf("tensors %s, layout %d", src.Digest(), kernels.LayoutVersion), Bytes: t.Bytes}
		r.Check, r.Make = check, func(ctx context.Context, path string, shown func(done, total int64)) error {
			made = true
			return w.write(ctx, path, src, t, func(done, total int64) {
				for _, f := range []func(done, total int64){progress, shown} {
					if f != nil {
						f(done, total)
					}
				}
			})
		}
		r.Waited = func() {
			if progress != nil {
				progress(0, 0)
			}
		}
		if path, w.free, err = w.cfg.Keep(ctx, r); err != nil {
			return false, err
		}
	}
	if path == "" {
		w.feed, w.keeps = &live{weights: w, src: src}, true
		return false, nil
	}
	if err := check(path); err != nil {
		return false, &Fault{path, 0, err}
	}
	if w.sums, err = allocate(int64(4*len(sums)), false); err != nil {
		return false, err
	}
	kept := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(w.sums))), len(sums))
	copy(kept, sums)
	f := newPacked(path, t, kept, w.stages, w.looks)
	if w.cfg.Open != nil {
		f.file, err = w.cfg.Open(path)
	} else {
		var file *os.File
		if file, f.direct, err = openDirect(path); err == nil {
			f.file = file
		}
		if err == nil && !f.direct {
			w.say("the file system of %s has no direct reads: pages are dropped after ordinary ones", path)
		}
	}
	if err != nil {
		return false, &Fault{path, 0, reason(err)}
	}
	w.feed, w.file = f, f.file
	return made, nil
}

// checkFile returns the checksums of the packed file at path if its table is t.
func checkFile(path string, t *table) ([]uint32, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, reason(err)
	}
	found, err := readTable(f, st.Size())
	if err != nil {
		return nil, reason(err)
	}
	return found.match(t, st.Size())
}

// load reads the resident stages.
func (w *weights) load(ctx context.Context, progress func(done, total int64)) error {
	done := int64(0)
	for i := range w.stages {
		if !w.budget.resident[i] || w.stages[i].size == 0 {
			continue
		}
		if err := w.fillStage(ctx, w.feed, i, w.memoryOf(i)); err != nil {
			return w.failed(err)
		}
		w.count.read.Add(w.stages[i].size)
		if done += w.stages[i].size; progress != nil {
			progress(done, w.budget.held)
		}
	}
	return nil
}

// start starts the readers.
func (w *weights) start() {
	r := &ring{feed: w.feed, count: &w.count}
	for i, s := range w.stages {
		if s.size > 0 && !w.budget.resident[i] {
			r.order = append(r.order, i)
		}
	}
	for i := range w.budget.slots {
		r.slots = append(r.slots, slot{mem: w.mem[w.budget.held+int64(i)*w.budget.slot:][:w.budget.slot]})
	}
	r.start(w.feed.readers())
	w.ring = r
}

// failed makes an error the end of the device: see Device.Gone.
func (w *weights) failed(err error) error {
	if err != nil {
		w.once.Do(func() {
			if f := (*Fault)(nil); errors.As(err, &f) && errors.Is(err, errChanged) && w.free != nil {
				_ = os.Remove(f.File) // so that the next start makes it again; who reads it now has it open, and checks it too
			}
			if w.lost != nil {
				w.lost(err)
			}
		})
	}
	return err
}

// Acquire implements kernels.Weights.
func (w *weights) Acquire(stage int, chosen []int32) ([][]byte, error) {
	if w.feed == nil {
		return nil, errors.New("stream: the weights are not filled")
	}
	var base []byte
	if s := &w.stages[stage]; s.size > 0 {
		if w.budget.resident[stage] {
			base = w.memoryOf(stage)
		} else {
			var err error
			if base, err = w.ring.acquire(w.place[stage]); err != nil {
				return nil, w.failed(err)
			}
			for _, e := range s.weights {
				if e.product && w.left {
					continue
				}
				if err := w.feed.compare(stage, e, base); err != nil {
					return nil, w.failed(err)
				}
			}
		}
	}
	if len(w.stages[stage].experts) > 0 && chosen == nil {
		return nil, fmt.Errorf("stream: %s wants experts, and nobody says which", w.stages[stage].name)
	}
	out := make([][]byte, 0, len(w.order[stage])*max(1, len(chosen)))
	for _, v := range w.order[stage] {
		switch {
		case v.of != nil:
			var err error
			if out, err = w.expert.acquire(v.of, v.at, chosen, out); err != nil {
				return nil, w.failed(err)
			}
		case v.look != nil:
			out = append(out, v.look.bytes())
		case v.always:
			out = append(out, w.memoryOf(len(w.stages) - 1)[v.extent.at:][:v.extent.size])
		default:
			out = append(out, base[v.extent.at:v.extent.at+v.extent.size])
		}
	}
	return out, nil
}

// Unchecked implements kernels.Checked.
func (w *weights) Unchecked() { w.left = true }

// Sums implements kernels.Checked. What stays in memory was compared when it was read.
func (w *weights) Sums(stage int) [][]uint32 {
	if w.feed == nil || w.stages[stage].size == 0 || w.budget.resident[stage] {
		return nil
	}
	all := make([][]uint32, len(w.order[stage]))
	for i, v := range w.order[stage] {
		if v.extent.product {
			all[i] = w.feed.sums(stage, v.extent)
		}
	}
	return all
}

// Wrong implements kernels.Checked.
func (w *weights) Wrong(stage int, k kernels.W) error {
	for _, e := range w.stages[stage].weights {
		if e.w == k {
			if err := w.feed.compare(stage, e, w.ring.held()); err != nil {
				return w.failed(err)
			}
		}
	}
	return w.failed(errors.New("stream: checksums of weights in memory differ from one look to the next: the memory is faulty"))
}

// Release implements kernels.Weights.
func (w *weights) Release(stage int) {
	if w.ring != nil && w.stages[stage].size > 0 && !w.budget.resident[stage] {
		w.ring.release()
	}
}

// Resident is false even if all stages fit: rows of the embedding come and go.
func (w *weights) Resident() bool { return false }

// Pack returns an error: Fill reads these weights.
func (w *weights) Pack(kernels.W, int, []byte) error {
	return errors.New("stream: rows given to streamed weights, which read them themselves")
}

func (w *weights) Bytes() int64 { return w.budget.bytes() + w.expert.memory }
func (w *weights) Keeps() bool  { return w.keeps }

// Lock keeps the memory from being paged out; rows of the embedding and experts are read again instead.
func (w *weights) Lock() error {
	if len(w.mem) == 0 {
		return nil
	}
	if err := unix.Mlock(w.mem); err != nil {
		return fmt.Errorf("stream: the system refuses to lock %d bytes of memory (see ulimit -l): %w", len(w.mem), err)
	}
	return nil
}

// Close ends the readers and gives memory and file back.
func (w *weights) Close() {
	if w.ring != nil {
		w.ring.close()
	}
	w.expert.close()
	if w.file != nil {
		w.file.Close()
	}
	if w.free != nil {
		_ = w.free()
	}
	for _, l := range w.looks {
		if l.mapped {
			release(l.mem)
		}
		l.mem, l.mapped = nil, false
	}
	release(w.mem)
	release(w.sums)
	w.sums = nil
	w.mem, w.file, w.free, w.feed = nil, nil, nil, nil // the ring goes on telling what it did
}
