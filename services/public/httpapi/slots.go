package httpapi

import (
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
)

// places follows which generations of all front ends run. As in the gateway, those run that came first, at most as many as there are
// places; the others wait. Safe for concurrent use.
type places struct {
	mu   sync.Mutex
	n    int            // places; 0: as many as generations
	all  []*running     // in the order of their coming
	came map[string]int // by tenant
}

// running is a generation.
type running struct {
	request tandem.Request
	task    int // counts a tenant's generations from 0
	place   int // -1: it waits
	tokens  int // of its output so far
}

// take adds a generation.
func (p *places) take(r tandem.Request) *running {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Prompt, r.Tokens, r.Stop = "", nil, nil // texts are kept by whoever needs them
	if p.came == nil {
		p.came = map[string]int{}
	}
	x := &running{request: r, task: p.came[r.Tenant], place: -1}
	p.came[r.Tenant]++
	p.all = append(p.all, x)
	p.fill()
	return x
}

// fill gives free places to those that wait; p is locked.
func (p *places) fill() {
	used := map[int]bool{}
	for _, x := range p.all {
		used[x.place] = true
	}
	free := 0
	for _, x := range p.all {
		for used[free] {
			free++
		}
		if x.place >= 0 {
			continue
		}
		if p.n > 0 && free >= p.n {
			return
		}
		x.place, used[free] = free, true
	}
}

// leave takes a generation out.
func (p *places) leave(x *running) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(y *running) bool { return x == y })
	p.fill()
}

// grew notes further tokens of a generation.
func (p *places) grew(x *running, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.tokens += tokens
}

// Slot is a place for a session. Request, which has no texts, and Tokens of output are those of the generation that runs there.
type Slot struct {
	Busy    bool
	Task    int // counts the tenant's generations; -1 in a free place
	Request tandem.Request
	Tokens  int
}

// Places says how many sessions there are at most. It returns m.
func (m *Monitor) Places(n int) *Monitor {
	m.places.n = n
	return m
}

// Slots returns all places.
func (m *Monitor) Slots() []Slot {
	p := &m.places
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Slot, p.n)
	for i := range out {
		out[i].Task = -1
	}
	for _, x := range p.all {
		for x.place >= len(out) {
			out = append(out, Slot{Task: -1})
		}
		if x.place >= 0 {
			out[x.place] = Slot{Busy: true, Task: x.task, Request: x.request, Tokens: x.tokens}
		}
	}
	return out
}

// slots answers /slots. What others ask for is not told, nor how often they have asked: only that their places are taken. Where metrics
// have keys of their own, only those tell even that; others learn from the status 503 alone that no place is free.
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
