package system

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// memorySample is what the processes held at one moment.
type memorySample struct {
	Rounds int              `json:"rounds"`
	RSS    map[string]int64 `json:"rss_bytes"`        // by process
	Gauges map[string]int64 `json:"gauges,omitempty"` // by process and name: pages of the KV cache, tickets in the pool
	Texts  int              `json:"texts"`            // finished
}

// memoryResult is the processes' memory over many rounds.
type memoryResult struct {
	Sessions int                `json:"sessions"`
	Rounds   int                `json:"rounds"`
	Growth   map[string]float64 `json:"growth"` // by process: largest size in the second half ÷ in the first, its first tenth excepted
	Samples  []memorySample     `json:"samples"`
}

// gauges are the counters that show what a process holds now.
var gauges = []string{"kv.pages", "pool.depth"}

func (b *runner) sample(rounds, texts int) memorySample {
	s := memorySample{Rounds: rounds, Texts: texts, RSS: map[string]int64{}, Gauges: map[string]int64{}}
	for name, pid := range b.processes.PIDs() {
		s.RSS[name] = residentBytes(pid)
	}
	for role, counters := range b.processes.Counters(b.ctx) {
		for _, g := range gauges {
			if n, ok := counters[g]; ok {
				s.Gauges[role+"."+g] = n
			}
		}
	}
	return s
}

// growth returns, for each process, its largest size in the second half of the samples over that in the
// first half without its first fifth, in which caches and heaps fill.
func growth(samples []memorySample) map[string]float64 {
	out := map[string]float64{}
	n := len(samples)
	if n < 10 {
		return out
	}
	for name := range samples[0].RSS {
		var early, late int64
		for i, s := range samples[n/10:] {
			if i+n/10 < n/2 {
				early = max(early, s.RSS[name])
			} else {
				late = max(late, s.RSS[name])
			}
		}
		out[name] = figures.Share(float64(late), float64(early))
	}
	return out
}

// memoryVariants are bounds of trees that change from text to text.
func (b *runner) memoryVariants() []variant {
	minionsTree := b.strategy(tandem.StrategyMinions)
	minionsTree.request.Vote = tandem.VoteTree
	return []variant{b.strategy(tandem.StrategyPlanner), b.strategy(tandem.StrategyLLMCad), b.strategy(tandem.StrategyMinions),
		b.strategy(tandem.StrategyFixed), minionsTree, b.plainly()}
}

// memorySuite keeps many sessions at work for many rounds, with strategies that change from text to text,
// and looks at what the processes hold meanwhile.
func (b *runner) memorySuite() (*suiteResult, error) {
	w := &work{b: b, variants: b.memoryVariants()}
	for _, s := range b.sets {
		if s.Name != setMixed {
			w.prompts = append(w.prompts, s.Prompts...)
		}
	}
	res := &memoryResult{Sessions: memorySessions}
	r := &suiteResult{Memory: res}
	w.samples = append(w.samples, b.sample(0, 0))
	var wg sync.WaitGroup
	for range memorySessions {
		wg.Go(w.session)
	}
	wg.Wait()
	res.Samples = w.samples
	if w.failed != nil {
		return r, w.failed
	}
	time.Sleep(pause)
	res.Samples = append(res.Samples, b.sample(w.rounds, w.texts))
	if w.rounds < b.cfg.Rounds {
		b.note("time is over after %d of %d rounds", w.rounds, b.cfg.Rounds)
	}
	res.Rounds, res.Growth = w.rounds, growth(res.Samples)
	r.Figures = res.figures()
	return r, nil
}

// work is the state of the memory suite's sessions, and the samples taken of the processes.
type work struct {
	b        *runner
	variants []variant
	prompts  []benchPrompt

	mu      sync.Mutex
	begun   int // texts
	texts   int // finished
	rounds  int
	samples []memorySample
	sampled int // of sampleCount: what the last sample stands for
	failed  error
}

// sampleCount is how many samples the suite memory takes while its sessions work.
const sampleCount = 50

// session continues one text after the other until the rounds are done, time is over, or one fails.
func (w *work) session() {
	for {
		v, p, ok := w.next()
		if !ok {
			return
		}
		o, err := w.b.generate(v, p, nil)
		if err == nil {
			w.b.agrees(v, p, o)
		}
		w.done(o, err)
	}
}

// next returns what to do next; ok is false if nothing is left.
func (w *work) next() (v variant, p benchPrompt, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rounds >= w.b.cfg.Rounds || w.failed != nil || w.b.over() {
		return v, p, false
	}
	w.begun++
	return w.variants[w.begun%len(w.variants)], w.prompts[(w.begun*7)%len(w.prompts)], true
}

// done counts a text, and takes a sample if it is time for one.
func (w *work) done(o *outcome, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed = err
		return
	}
	w.texts++
	w.rounds += o.Stats.Rounds
	if now := w.rounds * sampleCount / w.b.cfg.Rounds; now > w.sampled {
		w.sampled = now
		w.samples = append(w.samples, w.b.sample(w.rounds, w.texts))
	}
}

// figures are the largest growth of a process, and what is held after the last text.
func (m *memoryResult) figures() (all []figure) {
	worst, name := 0.0, ""
	for n, g := range m.Growth {
		if g > worst {
			worst, name = g, n
		}
	}
	if name == "" {
		all = append(all, figure{Name: "memory: second half over first", Value: 0, Note: "too few rounds to tell"})
	} else {
		all = append(all, figure{Name: fmt.Sprintf("memory of %s: second half over first, %d rounds", name, m.Rounds), Value: worst})
	}
	end := m.Samples[len(m.Samples)-1].Gauges
	for _, key := range sortedKeys(end) {
		all = append(all, figure{Name: key + " after the last text", Value: float64(end[key])})
	}
	return all
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// print shows the samples at the start, the middle and the end.
func (m *memoryResult) print(w io.Writer) {
	if len(m.Samples) == 0 {
		return
	}
	last := len(m.Samples) - 1
	t := figures.NewTable(w, "%s\t%s\t%s\t%s")
	t.Head("", "start", "middle", "end")
	row := func(name string, of func(memorySample) string) {
		t.Row(name, of(m.Samples[0]), of(m.Samples[last/2]), of(m.Samples[last]))
	}
	row("rounds", func(s memorySample) string { return fmt.Sprint(s.Rounds) })
	for _, name := range sortedKeys(m.Samples[0].RSS) {
		row(name, func(s memorySample) string { return figures.MiB(s.RSS[name]) })
	}
	for _, name := range sortedKeys(m.Samples[last].Gauges) {
		row(name, func(s memorySample) string { return fmt.Sprint(s.Gauges[name]) })
	}
	_ = t.Flush()
}

// residentBytes returns the memory of a process that is in RAM, 0 if it is gone.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}
