package httpapi

import (
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
)

// slotTable follows which generations of all front ends run. As in the gateway, those run that came first, at most as many as there are
// slots; the others wait. Safe for concurrent use.
type slotTable struct {
	mu   sync.Mutex
	n    int            // slots; 0: as many as generations
	all  []*running     // first come first
	came map[string]int // generations so far, by tenant
}

// running is a generation.
type running struct {
	request tandem.Request
	task    int // counts a tenant's generations from 0
	slot    int // -1: it waits
	tokens  int // number of its output tokens so far
}

// take adds a generation.
func (t *slotTable) take(r tandem.Request) *running {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Prompt, r.Tokens, r.Stop = "", nil, nil // texts are kept by whoever needs them
	if t.came == nil {
		t.came = map[string]int{}
	}
	x := &running{request: r, task: t.came[r.Tenant], slot: -1}
	t.came[r.Tenant]++
	t.all = append(t.all, x)
	t.fill()
	return x
}

// fill gives free slots to those that wait; t is locked.
func (t *slotTable) fill() {
	used := map[int]bool{}
	for _, x := range t.all {
		used[x.slot] = true
	}
	free := 0
	for _, x := range t.all {
		for used[free] {
			free++
		}
		if x.slot >= 0 {
			continue
		}
		if t.n > 0 && free >= t.n {
			return
		}
		x.slot, used[free] = free, true
	}
}

// leave takes a generation out.
func (t *slotTable) leave(x *running) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = slices.DeleteFunc(t.all, func(y *running) bool { return x == y })
	t.fill()
}

// grew notes further tokens of a generation.
func (t *slotTable) grew(x *running, tokens int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.tokens += tokens
}

// Slot is room for one session. Request, which has no texts, and Tokens of output are those of the generation that runs there.
type Slot struct {
	Busy    bool
	Task    int // counts the tenant's generations; -1 in a free slot
	Request tandem.Request
	Tokens  int
}

// Sessions says how many sessions there are at most. It returns m.
func (m *Monitor) Sessions(n int) *Monitor {
	m.slots.n = n
	return m
}

// Slots returns all slots.
func (m *Monitor) Slots() []Slot {
	t := &m.slots
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Slot, t.n)
	for i := range out {
		out[i].Task = -1
	}
	for _, x := range t.all {
		for x.slot >= len(out) {
			out = append(out, Slot{Task: -1})
		}
		if x.slot >= 0 {
			out[x.slot] = Slot{Busy: true, Task: x.task, Request: x.request, Tokens: x.tokens}
		}
	}
	return out
}

// slots answers /slots. What others ask for is not told, nor how often they have asked: only that their slots are taken. Where metrics
// have keys of their own, only those tell even that; others learn from the status 503 alone that no slot is free.
func slots(c *call, cfg Config) error {
	var all []Slot
	if cfg.Slots != nil {
		all = cfg.Slots()
	}
	out, free := []llamacpp.Slot{}, false
	told := cfg.MetricsKeys == nil || opened(cfg.MetricsKeys, c.Header)
	for i, x := range all {
		own := x.Busy && x.Request.Tenant == c.tenant
		slot := llamacpp.Slot{ID: i, Task: -1, Context: cfg.Limits.Context, Busy: own || x.Busy && told}
		free = free || !x.Busy
		if own {
			slot.Task = x.Task
			params := llamacpp.NewParams(x.Request)
			slot.Params, slot.Speculates = &params, !x.Request.Bounds.Plain()
			slot.Next = []llamacpp.Next{{More: true, Remain: max(0, x.Request.MaxTokens-x.Tokens), Decoded: x.Tokens}}
		}
		out = append(out, slot)
	}
	if !free && c.URL.Query().Get("fail_on_no_slot") != "" {
		return tandem.Errorf("", tandem.Unavailable, "no slot is free: %d sessions run", len(out))
	}
	return c.reply(out)
}
