package modelinfo

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/roles"
)

// budgetInfo says what a verifier with a memory budget does, before it is started.
type budgetInfo struct {
	ReadRate float64      `json:"read_gb_s"` // direct reads of the model's file, measured now; 0: not known
	Of       []budgetLine `json:"of"`
	context  int          // of a session with enough memory
}

// budgetLine is one budget. Sizes are in bytes.
type budgetLine struct {
	Budget   int64   `json:"budget_bytes"` // of the verifier alone
	Resident int64   `json:"resident_bytes"`
	Context  int     `json:"context"`                    // of one session alone
	PerPass  int64   `json:"pass_bytes"`                 // of experts, by a row if all are chosen equally often
	Experts  int64   `json:"expert_bytes,omitempty"`     // memory for experts
	All      int64   `json:"all_expert_bytes,omitempty"` // of all experts
	Passes   float64 `json:"passes_s"`                   // at ReadRate: tokens per second without drafts; 0: not known
	Why      string  `json:"why,omitempty"`
}

// budgets returns what the named budget gives, and 30, 50 and 75 % of the memory that the whole model needs.
func (c Query) budgets(info memoryInfo) (*budgetInfo, error) {
	const long = 300 * time.Millisecond
	out := &budgetInfo{context: info.Room.Context}
	if !strings.HasPrefix(c.Path, gguf.Builtin) {
		rate, err := stream.Rate(c.Path, long)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Unavailable, "%s: measuring the disk: %w", c.Path, files.Reason(err))
		}
		out.ReadRate = rate / 1e9
	}
	all := []int64{info.Total * 30 / 100, info.Total / 2, info.Total * 75 / 100}
	if b := c.Budget; b > 0 {
		all = append([]int64{b}, all...)
	}
	for _, b := range all {
		line, err := c.budget(info, b)
		if err != nil {
			return nil, err
		}
		if line.PerPass > 0 {
			line.Passes = out.ReadRate * 1e9 / float64(line.PerPass)
		}
		out.Of = append(out.Of, line)
	}
	return out, nil
}

// budget plans a verifier in so many bytes.
func (c Query) budget(info memoryInfo, bytes int64) (line budgetLine, err error) {
	line = budgetLine{Budget: bytes}
	r := roles.Room{Sizes: c.Sizes.OrDefault(), Options: engine.Options{Device: device.Planner(), KVType: c.KVType},
		KVMemory: c.KVMemory, Asked: c.Sizes.Sessions}
	if err := r.Add(c.Path, tandem.DefaultLimits.Nodes, 0, c.Heads...); err != nil {
		return line, err
	}
	s := *c.Streams
	s.Budget = bytes
	d, err := s.Alone(&r, memory.Available{Bytes: math.MaxInt64, By: "the budget"})
	var small *roles.TooLittle
	switch {
	case errors.As(err, &small):
		line.Why = fmt.Sprintf("too little: the least is %s", memory.Bytes(small.Least))
		return line, nil
	case tandem.KindOf(err) == tandem.Unsupported:
		line.Why = "the weights do not fit, and heads that are no assistant cannot borrow streamed ones"
		return line, nil
	case err != nil:
		return line, err
	}
	line.Resident, line.Context = r.Models[0].Weights, r.Fit().One
	if streamer, ok := d.(kernels.Streamer); ok {
		s := streamer.StreamStats()
		line.Resident, line.PerPass, line.Experts, line.All = s.Resident+info.Beside, s.Streamed, s.Experts, s.AllExperts
	}
	return line, nil
}

// rows returns the table in words.
func (b *budgetInfo) rows() (rows [][2]string) {
	if b == nil {
		return nil
	}
	for _, l := range b.Of {
		what := cmp.Or(l.Why, "all of it in memory")
		if l.PerPass > 0 {
			what = fmt.Sprintf("%s of weights in memory, %s read by each pass", figures.MiB(l.Resident), figures.MiB(l.PerPass))
		}
		if l.All > 0 {
			what = fmt.Sprintf("%s of weights and %s of %s of experts in memory, about %s read by a pass of one row",
				figures.MiB(l.Resident), figures.MiB(l.Experts), figures.MiB(l.All), figures.MiB(l.PerPass))
		}
		if l.Context > 0 && l.Context < b.context {
			what += fmt.Sprintf(", a session of up to %s tokens", Digits(l.Context))
		}
		if l.Passes > 0 {
			what += fmt.Sprintf(": at %.2f GB/s, as measured now, %.3g passes/s", b.ReadRate, l.Passes)
		}
		rows = append(rows, [2]string{"in " + memory.Bytes(l.Budget), what})
	}
	return rows
}
