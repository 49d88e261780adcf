package roles

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

const (
	// SpareSessions is KV memory, in sessions, for abandoned sessions that are not yet forgotten.
	SpareSessions = 1
	// passRows is the largest pass: one tree of the largest size, or many smaller ones with a chunk of prefill.
	passRows = 256
	// draftRows is how many rows of a draft's pass have logits at least: one level of the widest tree that a request may ask for. Each
	// takes four bytes for each token of the vocabulary, most of a small draft's buffers.
	draftRows = 64
	// draftRowsEach is how many of them there are for each session, if those are more: a level of a usual tree.
	draftRowsEach = 8
)

// DraftRows returns how many rows with logits a pass of a draft has at most. A pass grows the trees of some sessions by a level, and
// schedules divide what does not fit into one.
func DraftRows(s settings.Sizes) int {
	return min(passRows, max(draftRows, draftRowsEach*sequences(s)))
}

// Models says how a process computes with its models.
type Models struct {
	Threads int // threads of all models together; 0 = all cores
	// Device makes the device of one model, with that many threads. The process closes it.
	Device func(threads int) (Device, error)
	// Options are those that all models of the process share, such as the type of keys and values. Load fills in the device and
	// what depends on a model.
	Options engine.Options
	// Sides are side files by the file of the model that is their target, at most one of each kind.
	Sides map[string][]string
	// Open is engine.Open, or engine.OpenDraft with Target if that is set. It may show the progress, and then also calls Options.Progress.
	Open   func(path string, o engine.Options) (*engine.Model, error)
	Target string // GGUF file of the target, for drafts that read its hidden states
	Beside int64  // bytes that the process keeps beside its models
	// KVMemory is the size in bytes of the pools of keys and values of all models together. 0: half of the share that Room.Plan gives all
	// processes, since another process has models too.
	KVMemory int64
	Wanted   int // rows with logits in a pass; 0: all rows of the largest

	Kept Kept // keeps packed weights between starts; nil: every start packs them

	Shared      *engine.Shared // memory in which processes have weights of SharedModel once; nil: none
	SharedModel string         // path of its file

	Streaming *Streaming // for a process's only model but its guest, if it does not fit into memory; nil: it must fit
	Guest     *Guest     // a draft that runs beside the only model; nil: none
}

// Kept keeps packed weights from one start to the next.
type Kept interface {
	engine.Images
	// Keep makes the file of freshly packed weights, unless they are not worth one. It takes seconds, and ends early with ctx.
	Keep(ctx context.Context, i *engine.Image)
}

// Device is a kernels.Device that its owner must close, after what runs on it.
type Device interface {
	kernels.Device
	Close() // frees its threads and memory
}

// Load loads models with pools of keys and values for sessions of nodes tree rows each, and shows the supervisor its progress.
// They share the threads evenly, each getting at least one. A guest comes last, unless it is left out: see Process.Spares. undo closes
// them, and what was made before an error. Errors: those of loading, and Exhausted for models that do not fit into memory, with what would
// fit.
func (r *Process) Load(paths []string, k Models, nodes int, undo *Cleanup) (models []*engine.Model, err error) {
	threads, o := cmp.Or(k.Threads, runtime.NumCPU()), k.Options
	devices := make([]Device, len(paths))
	for i := range paths {
		if devices[i], err = k.Device(max(1, threads/len(paths))); err != nil {
			return nil, err
		}
		undo.Add(devices[i].Close)
		if d, ok := devices[i].(kernels.Losable); ok {
			r.losable = append(r.losable, d)
		}
		o.Device = devices[i]
	}
	room, err := r.room(paths, &k, nodes, o, devices)
	if err != nil {
		return nil, err
	}
	o.Forget = k.Streaming != nil && k.Streaming.Budget > 0
	o.MaxRows, o.Sequences, o.Progress = passRows, sequences(room.Sizes), func(int64, int64) { r.Alive() }
	if k.Kept != nil {
		o.Images = k.Kept
	}
	for i, path := range paths {
		t := &room.Models[i]
		if o.Device, o.Shared = devices[i], nil; k.shares(t) {
			o.Shared = k.Shared
		}
		o.Context, o.KVPages, o.MaxWanted = r.ContextOf(t.Context), t.Pages, t.wanted
		m, err := k.Open(path, o)
		if err != nil {
			return nil, err
		}
		undo.Add(m.Close)
		r.tellMapped(path, m, o.Shared != nil)
		if i := m.Image(); k.Kept != nil && i != nil && i.Fresh {
			r.later = append(r.later, func(ctx context.Context) { k.Kept.Keep(ctx, i) })
		}
		for _, side := range k.Sides[path] {
			if err := m.OpenSide(side); err != nil {
				return nil, err
			}
			r.Alive()
		}
		models = append(models, m)
	}
	r.pages(models)
	if g := k.Guest; g != nil {
		m, err := r.openGuest(g, k, room, o, models[0], undo)
		if err == nil {
			models = append(models, m)
		} else if !r.Spares(g.Path, err) {
			return nil, err
		}
	}
	runtime.KeepAlive(room) // with the vocabularies
	return models, nil
}

// shares reports whether some of a model's weights lie in k.Shared: it is SharedModel, or a draft with states of that.
func (k *Models) shares(t *Tenant) bool {
	return k.Shared != nil && (t.path == k.SharedModel || t.states && k.Target == k.SharedModel)
}

// room plans the memory for models, and puts a streaming device in the place of the only one's if that does not fit. k.Guest is nil
// afterwards if the guest is left out.
func (r *Process) room(paths []string, k *Models, nodes int, o engine.Options, devices []Device) (*Room, error) {
	if k.Target == k.SharedModel {
		o.Shared = k.Shared // what drafts map there does not count
	}
	room := &Room{Sizes: r.Sizes, Options: o, Target: k.Target, Beside: k.Beside, KVMemory: k.KVMemory}
	for _, path := range paths {
		if err := room.Add(path, nodes, k.Wanted, k.Sides[path]...); err != nil {
			return nil, err
		}
		if t := &room.Models[len(room.Models)-1]; path == k.SharedModel {
			t.Footprint = k.Shared.Less(t.Footprint)
		}
	}
	if g := k.Guest; g != nil {
		room.Target = paths[0]
		if err := room.addGuest(g.Path, g.Nodes); r.Spares(g.Path, err) {
			k.Guest = nil
		} else if err != nil {
			return nil, err
		}
	}
	available, err := memory.Free().On(o.Device)
	switch {
	case err != nil:
	case k.Streaming != nil:
		err = r.stream(room, devices, k.Streaming, available)
	default:
		err = room.Plan(available, byHand)
	}
	if err != nil {
		return nil, err
	}
	if f := room.Fit(); f.One < f.Context {
		r.Log.Warn("the memory for keys and values does not hold a whole context", "model", ModelName(paths[0]), "tokens", f.One,
			"context", f.Context)
	}
	BoundGo(room.Total())
	if s := k.Streaming; s != nil && s.Budget > 0 {
		BoundGoIn(s.Limit(available), room.Total())
	}
	return room, nil
}

// tellMapped says whether a draft shares its target's output matrix with it; shares: it was to.
func (r *Process) tellMapped(path string, m *engine.Model, shares bool) {
	bytes, apart := m.Mapped()
	level := slog.LevelInfo
	if shares {
		level = slog.LevelWarn
	}
	if apart != nil {
		r.Log.Log(context.Background(), level, "draft has an output matrix of its own beside its target's", "draft", ModelName(path),
			"reason", apart)
	} else if bytes > 0 {
		r.Log.Info("draft shares its target's output matrix", "draft", ModelName(path), "bytes", bytes)
		r.mapped += bytes
		r.Gauge("weights.mapped_bytes", func() int64 { return r.mapped })
	}
}

// pages shows how much of their pools the models use.
func (r *Process) pages(models []*engine.Model) {
	for name, of := range map[string]func(m *engine.Model) int{
		"kv.pages":       func(m *engine.Model) int { return m.Pages() - m.FreePages() },
		"kv.pages_limit": (*engine.Model).Pages,
		"prefix.pages":   func(m *engine.Model) int { return m.Prefixes().Kept() }, // none of those in kv.pages
		"prefix.states":  func(m *engine.Model) int { return m.Prefixes().KeptStates() },
		"prefix.lost":    func(m *engine.Model) int { return int(m.Prefixes().LostStates()) },
	} {
		r.Gauge(name, func() (sum int64) {
			for _, m := range models {
				sum += int64(of(m))
			}
			return sum
		})
	}
}

// byHand is how many groups of processes with models a process that was started by hand assumes: verifier and drafters.
const byHand = 2

// stream chooses the pools, and puts a streaming device in the place of the only one, if the model does not fit.
func (r *Process) stream(room *Room, devices []Device, s *Streaming, available memory.Available) error {
	d, _, _, err := s.choose(room, available, 0, byHand)
	if err != nil || d == kernels.Device(devices[0]) {
		return err
	}
	on, ok := d.(streamer)
	if !ok {
		return tandem.Errorf("", tandem.Internal, "a streaming device of type %T", d)
	}
	devices[0] = on
	r.losable = append(r.losable, on)
	r.Tell(func(counters map[string]int64) { tellStream(counters, on.StreamStats()) })
	return nil
}

// stuck is how long a single read of a streamed model's weights, a few MiB, may take. After that the disk counts as hanging.
const stuck = time.Minute

// Reading calls progress about once a second while a streamed model reads weights, until stop is called. Such a pass may take longer than
// the supervisor allows: the disk may be slower than when passes were measured. Without streamed weights it calls nothing. A model that
// hangs elsewhere reads nothing once its ring is full, so it is still found.
func (r *Process) Reading(m *engine.Model, progress func()) (stop func()) {
	s, ok := m.Passes().Streamer()
	if !ok {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(supervise.Interval)
		defer ticker.Stop()
		var reads reads
		for {
			select {
			case <-ticker.C:
				if reads.goOn(s.StreamStats(), supervise.Interval) {
					progress()
				}
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// reads is what a streamed model had read at the latest look.
type reads struct {
	bytes int64
	busy  time.Duration
	still time.Duration // in ticks, since bytes changed
}

// goOn looks again, a tick later, and reports whether the disk has brought something, or is at a read that is not stuck.
func (r *reads) goOn(now kernels.StreamStats, tick time.Duration) bool {
	at := now.Busy != r.busy
	r.busy = now.Busy
	if now.Read != r.bytes {
		r.bytes, r.still = now.Read, 0
		return true
	}
	r.still += tick
	return at && r.still < stuck
}

// streamer is the part of a streaming device that a process uses.
type streamer interface {
	Device
	kernels.Losable
	kernels.Streamer
}

// tellStream adds what streaming has done.
func tellStream(counters map[string]int64, s kernels.StreamStats) {
	counters["stream.resident_bytes"], counters["stream.ring_bytes"] = s.Resident, s.Ring
	counters["stream.pass_bytes"], counters["stream.read_bytes"] = s.Streamed, s.Read
	if s.AllExperts > 0 {
		counters["stream.expert_memory_bytes"], counters["stream.expert_read_bytes"] = s.Experts, s.ReadExperts
		counters["stream.experts_used"], counters["stream.experts_missed"] = s.Used, s.Missed
		counters["stream.experts_foretold"], counters["stream.experts_guessed"] = s.Foretold, s.Guessed
		for i, l := range s.Layers {
			for what, n := range map[string]int64{"used": l.Used, "missed": l.Missed, "foretold": l.Foretold, "guessed": l.Guessed} {
				counters["stream.layer_experts_"+what+"."+strconv.Itoa(i)] = n
			}
		}
	}
	counters["stream.waited_us"], counters["stream.busy_us"] = s.Waited.Microseconds(), s.Busy.Microseconds()
}

// Alive tells the supervisor that a long start is making progress.
func (r *Process) Alive() { _ = supervise.Alive(r.ReadyFD) }
