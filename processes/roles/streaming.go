package roles

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// The memory that processes beside the verifier take, in bytes, without their models. Measured with a vocabulary of 152 thousand tokens: 44
// MiB for a gateway, 15 for the process that starts all, and 20 for a drafter. The program's own pages, 35 MiB, are shared and counted with
// the verifier, whose heap takes 28 then.
const (
	gatewayBytes = 64 << 20 // with the process that starts all
	drafterBytes = 48 << 20

	// slackBytes is by how much less may be available when a model is loaded than when it was planned.
	slackBytes = 8 << 20
)

// Streaming says how a target that does not fit into memory is run.
type Streaming struct {
	Budget int64 // bytes of memory; 0: what is available, less a margin
	// On returns a device that computes on d with streamed weights within that many bytes of memory. Closing it closes d.
	On func(d kernels.Device, memory int64) kernels.Streamer
}

// Limit returns the memory that all processes together may take: the budget, but no more than is available.
func (s *Streaming) Limit(available memory.Available) int64 {
	if s.Budget > 0 {
		return min(s.Budget, available.Bytes-slackBytes)
	}
	return available.Bytes - available.Bytes/16
}

// Fit returns the device for the model at path with options o, whose footprint on o.Device is need: o.Device if all of it fits into limit
// bytes, else a streaming device on it. others is the part of those bytes that other processes and models take. fits is the footprint on
// the returned device. Errors: Exhausted, with the least that works; Unsupported.
func (s *Streaming) Fit(path string, o engine.Options, need memory.Footprint, limit, others int64) (d kernels.Device, fits memory.Footprint,
	err error) {
	if need.Total()+others <= limit {
		return o.Device, need, nil
	}
	on := s.On(o.Device, max(0, limit-others-need.Total()+need.Weights-need.Beside))
	o.Device, o.KVPages = on, 1
	f, err := engine.Measure(path, o)
	var small *kernels.TooSmall
	if fits = need; !errors.As(err, &small) {
		fits.Weights = f.Weights + need.Beside
		return on, fits, err
	}
	fits.Weights = small.Least + need.Beside
	beside := ""
	if others > 0 {
		beside = fmt.Sprintf(", and %s beside it", memory.Bytes(others))
	}
	why := fmt.Sprintf("%s cannot run in %s of memory, even if its weights are read from the disk in every pass: that needs %s%s: "+
		"want %s, or a smaller --ctx or --kv-memory", ModelName(path), memory.Bytes(limit), fits, beside,
		s.more(limit, fits.Total()+others))
	return nil, need, tandem.Errorf("", tandem.Exhausted, "%w", &TooLittle{fits.Total() + others, why})
}

// TooLittle is the error for a model that cannot run in the given memory, even with streamed weights.
type TooLittle struct {
	Least int64 // bytes that would do
	why   string
}

func (e *TooLittle) Error() string { return e.why }

// more says what would be enough in place of a limit: a budget, unless that would be more than is available.
func (s *Streaming) more(limit, least int64) string {
	mib := least>>20 + 1
	if s.Budget > limit || s.Budget == 0 && mib<<20 > limit+limit/15-slackBytes {
		return fmt.Sprintf("%d MiB of memory, more than is free or the control group allows", (least+slackBytes)>>20+1)
	}
	return fmt.Sprintf("--memory-budget %dMiB", mib)
}

// BesideStreamed reports whether a side file can be open beside a target whose weights are streamed. Errors: those of engine.SideOf.
func BesideStreamed(path string) (bool, error) {
	spec, err := engine.SideOf(path)
	return spec.Kind == side.Assistant, err
}

// fit is Fit for the first model of a room. The room then has its footprint there.
func (s *Streaming) fit(r *Room, limit, others int64) (kernels.Device, error) {
	t := &r.Models[0]
	o := r.Options
	o.MaxRows, o.MaxWanted = passRows, t.wanted
	d, fits, err := s.Fit(t.path, o, t.Footprint, limit, others+r.Beside)
	for i := 0; err == nil && d != o.Device && i < len(t.sides); i++ {
		var ok bool
		if ok, err = BesideStreamed(t.sides[i]); err == nil && !ok {
			return nil, tandem.Errorf("", tandem.Unsupported, "%s needs %s, more than %s, and heads (%s) cannot borrow weights that are "+
				"streamed: want none but an assistant, or a larger --memory-budget", ModelName(t.path), t.Footprint, memory.Bytes(limit),
				t.sides[i])
		}
	}
	t.Footprint = fits
	return d, err
}

// ample reports whether a planned room leaves a session of the first model a context that is not worth streaming weights for a longer one.
func (r *Room) ample() bool {
	f := r.Fit()
	return r.Ctx > 0 || r.KVMemory > 0 || f.One >= min(f.Context, ampleContext)
}

// Where memory is scarce these take at most such a part of it: keys and values by default, and the logits of the first model's passes, four
// bytes for each row and token of the vocabulary. But leastWanted rows have logits: those of a usual tree.
const (
	scarceKV     = 4
	scarceLogits = 32
	leastWanted  = 32
)

// narrow makes the passes of the first model fit for so many bytes of memory, less than all of it wants: fewer rows have logits.
func (r *Room) narrow(limit int64) (err error) {
	t := &r.Models[0]
	if t.Config.Vocab == 0 || t.measure == nil {
		return nil
	}
	row := int64(t.Config.Vocab) * int64(unsafe.Sizeof(float32(0)))
	t.wanted = int(min(max(limit/scarceLogits/row, leastWanted), passRows))
	t.nodes = min(t.nodes, t.wanted)
	t.Footprint, err = t.measure(t.least(r.Sizes), t.wanted)
	t.Pages = t.least(r.Sizes)
	return err
}

// planStreamed chooses the pools of a room whose first model is streamed in so many bytes. What keys and values take is read from the disk
// in every pass. So by default they hold no more than one session of --ctx, or of ampleContext, or as many as --sessions says.
func (r *Room) planStreamed(a memory.Available, limit int64) error {
	if r.KVMemory > 0 {
		a.Bytes, a.Each = math.MaxInt64, false
		tokens, err := r.named(a)
		if err == nil {
			err = r.take(a, tokens)
		}
		return err
	}
	one := r.whole()
	if r.Ctx == 0 {
		one = min(one, ampleContext)
	}
	wanted := max(r.Asked, 1) * one
	return r.take(a, r.longest(wanted, func(n int) bool { return r.kv(n, r.Models) <= limit/scarceKV }))
}

// choose chooses the pools of a room, and the device of its first model: its own if all fits, else a streaming one. processes is what
// processes take beside the models, groups how many groups of processes share the memory (Room.Plan). It returns the limit of all together,
// and what of it is others': 0 and 0 if all fits and no budget is named. The room then has the first model's footprint on the device.
func (s *Streaming) choose(r *Room, a memory.Available, processes int64, groups int) (d kernels.Device, limit, others int64, err error) {
	d = r.Options.Device
	if s.Budget == 0 {
		if err = r.Plan(a, groups); err == nil && r.ample() || tandem.KindOf(err) == tandem.Invalid {
			return d, 0, 0, err
		}
	}
	if limit = s.Limit(a); a.Each && s.Budget == 0 {
		processes = 0
	}
	within := a
	within.Bytes = limit - processes
	if s.Budget > 0 {
		within.Machine, within.Each, within.By = false, false, "--memory-budget "+memory.Bytes(s.Budget)
	}
	plans := []func() error{func() error { return r.Plan(within, groups) }}
	err = plans[0]()
	for _, bytes := range []int64{limit - processes, 0} { // 0, the fewest rows: if what was named for keys and values holds no more
		if err == nil && r.ample() || bytes == 0 && tandem.KindOf(err) != tandem.Invalid {
			break
		}
		if err = r.narrow(bytes); err == nil {
			err = plans[0]()
		}
	}
	if tandem.KindOf(err) == tandem.Invalid {
		return d, limit, 0, err
	}
	if err != nil || !r.ample() {
		pools := func() error { return r.planStreamed(a, limit) }
		streamed := []func() error{pools}
		if r.KVMemory == 0 {
			pools = func() error { return r.take(a, 0) } // the least
			streamed = append(streamed, pools)
		}
		streamed = append(streamed, func() error { return cmp.Or(r.narrow(0), pools()) }) // the least buffers too
		if err == nil {
			streamed = append(streamed, plans...) // in memory with a short context, rather than not at all
		}
		plans = streamed
	}
	for i, plan := range plans {
		if err = plan(); tandem.KindOf(err) == tandem.Invalid && i+1 < len(plans) {
			continue // keys and values that were named hold a session of fewer rows
		}
		if err != nil {
			return d, limit, others, err
		}
		others = processes + r.others(within.Each)
		if d, err = s.fit(r, limit, others); err == nil {
			break
		}
	}
	return d, limit, others, err
}

// Alone chooses the pools of a room, and the device of its first model, in a process with the whole budget. Errors: those of Fit and
// Room.Plan.
func (s *Streaming) Alone(r *Room, available memory.Available) (kernels.Device, error) {
	d, _, _, err := s.choose(r, available, 0, 1)
	return d, err
}

// Divided is how the memory of a group of processes is shared.
type Divided struct {
	Budget  int64               // bytes for the process with the room's first model; 0: all fits, and no budget is named
	Streams kernels.StreamStats // what is streamed of that model; zero: all of it is in memory
}

// Streamed reports whether the first model's weights are read from the disk.
func (d Divided) Streamed() bool { return d.Streams.Streamed > 0 }

// Divide chooses the pools of a room. It returns the memory for the process with the room's first model, beside a gateway and the processes
// of the other models, and what of it is streamed; the room then has its footprint there. Errors: those of Fit and Room.Plan.
func (s *Streaming) Divide(r *Room, available memory.Available) (Divided, error) {
	processes := int64(gatewayBytes)
	if _, apart := r.guests(); apart {
		processes += drafterBytes
	}
	d, limit, others, err := s.choose(r, available, processes, 1)
	if err != nil {
		return Divided{}, err
	}
	out := Divided{Budget: limit - others}
	if guests, _ := r.guests(); limit > 0 {
		out.Budget += guests
	}
	if on, ok := d.(kernels.Streamer); ok {
		out.Streams = on.StreamStats()
	}
	return out, nil
}
