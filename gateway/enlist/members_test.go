package enlist

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/text/token"
)

// book writes down what a gateway would be told.
type book struct {
	lines    []string
	drafters []drafter // that were enlisted
}

func (b *book) Enlist(m gateway.Enlisted) {
	line := "+" + m.Name
	if m.Features {
		line += " features"
	}
	for _, c := range m.Costs {
		line += fmt.Sprintf(" %d:%v", c.Rows, c.Time)
	}
	b.lines = append(b.lines, line)
	d := m.Drafter
	if t, ok := d.(translating); ok {
		d = t.Drafter
		line += " translates"
		b.lines[len(b.lines)-1] = line
	}
	b.drafters = append(b.drafters, d.(drafter))
}
func (b *book) Dismiss(name string) { b.lines = append(b.lines, "-"+name) }
func (b *book) PassCosts(name string, costs []tandem.Cost) {
	b.lines = append(b.lines, fmt.Sprintf("%s costs %d:%v", name, costs[0].Rows, costs[0].Time))
}
func (b *book) DrafterState(name string, up bool) {
	b.lines = append(b.lines, name+map[bool]string{true: " up", false: " down"}[up])
}

// want checks what was told since the last time.
func (b *book) want(t *testing.T, what string, lines ...string) {
	t.Helper()
	slices.Sort(b.lines)
	slices.Sort(lines)
	if !slices.Equal(b.lines, lines) {
		t.Errorf("%s: told %q: want %q", what, b.lines, lines)
	}
	b.lines = nil
}

func testVocab(t *testing.T) *token.Vocab {
	t.Helper()
	v, err := token.Open(filepath.Join("..", "..", "models", "gopher-19m-q8_0.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// process is a Link whose drafters list their vocabularies with the functions here; the others do not answer.
type process struct {
	lists map[string]func(most int) (token.Listing, error)

	mu      sync.Mutex
	told    []string         // of the target's vocabulary
	refuses map[string]error // by name, what those say who are told
}

func (p *process) Drafter(name, enlisted string) tandem.Drafter { return drafter{p, name, enlisted} }

func (p *process) Vocabulary(ctx context.Context, name string, most int) (token.Listing, error) {
	if list := p.lists[name]; list != nil {
		return list(most)
	}
	return token.Listing{}, tandem.Errorf("test", tandem.Unavailable, "no answer")
}

func (p *process) Target(ctx context.Context, name, fingerprint string, file []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, fmt.Sprintf("%s %s %s", name, fingerprint, file))
	return p.refuses[name]
}

// drafter is one that nobody asks for drafts.
type drafter struct {
	of             *process
	name, enlisted string
}

func (drafter) Open(context.Context, tandem.Opening) (tandem.Opened, error) { panic("not asked") }
func (drafter) Propose(context.Context, tandem.Proposal) (tandem.Proposed, error) {
	panic("not asked")
}
func (drafter) Close(context.Context, tandem.SessionID) error { panic("not asked") }

// members returns members that tell b, and where they log and count.
func members(t *testing.T, b *book) (m *Members, vocab *token.Vocab, log *bytes.Buffer, counters *tandem.Counters) {
	vocab, log, counters = testVocab(t), new(bytes.Buffer), new(tandem.Counters)
	m = NewMembers(MembersConfig{Gateway: b, Vocab: vocab, Fingerprint: fingerprint, Counters: counters,
		Log: slog.New(slog.NewTextHandler(log, nil))})
	return m, vocab, log, counters
}

// fingerprint stands for that of the target's vocabulary.
const fingerprint = "of the target"

func TestMembers(t *testing.T) {
	b := new(book)
	m, vocab, log, _ := members(t, b)
	t.Cleanup(m.Close)
	good := func(names ...string) (out []Drafter) {
		for _, n := range names {
			out = append(out, Drafter{Name: n, Model: "m", Vocab: vocab.Size(), Fingerprint: fingerprint})
		}
		return out
	}
	lookup := Drafter{Name: "lookup"}
	link := new(process)
	a := Process{Addr: "a", Instance: 1, Link: link, Up: true, Drafters: append(good("go", "py"), lookup)}
	c := Process{Addr: "c", Instance: 2, Link: link, Drafters: good("go")}
	m.Update([]Process{a, c})
	b.want(t, "one process is there, one is only heard of", "+go", "+py", "+lookup")
	c.Up = true
	m.Update([]Process{a, c})
	b.want(t, "a second drafter of the same name", "+go#2")
	a.Up = false
	m.Update([]Process{a, c})
	b.want(t, "a process dies", "go down", "py down", "lookup down")
	early := Process{Addr: "0", Instance: 3, Link: link, Up: true, Drafters: good("go")}
	m.Update([]Process{early, a, c})
	b.want(t, "a third; the others keep their names", "+go#3")
	m.Update([]Process{early, c})
	b.want(t, "it is gone", "-go", "-py", "-lookup")
	a.Up, a.Instance, a.Drafters = true, 4, good("go", "prose")
	m.Update([]Process{early, a, c})
	b.want(t, "it is back with another model", "+go", "+prose")
	c.Draining = true
	m.Update([]Process{early, a, c})
	b.want(t, "one drains", "-go#2")
	c.Draining, c.Instance = false, 5
	m.Update([]Process{early, a, c})
	b.want(t, "its successor", "+go#2")
	a.Link = new(process)
	m.Update([]Process{early, a, c})
	b.want(t, "over another connection, under the same name", "+go", "+prose")
	m.Update([]Process{early, a, c})
	b.want(t, "nothing happened")
	if d := b.drafters[len(b.drafters)-1]; d.of != a.Link || b.drafters[3] != (drafter{link, "go", "go#2"}) {
		t.Errorf("enlisted %+v", b.drafters)
	}
	if got := m.Processes(); len(got) != 3 || got[1].Used != 2 || got[1].Models() != "m, m" {
		t.Errorf("processes %+v", got)
	}
	told := Process{Addr: "e", Link: link, Up: true, Drafters: good("dear")}
	told.Drafters[0].Costs = []tandem.Cost{{Rows: 1, Time: 8e6}, {Rows: 64, Time: 96e6}}
	m.Update([]Process{early, a, c, told})
	b.want(t, "one that has measured its passes", "+dear 1:8ms 64:96ms")
	told.Drafters = slices.Clone(told.Drafters)
	told.Drafters[0].Costs = []tandem.Cost{{Rows: 1, Time: 6e6}, {Rows: 64, Time: 96e6}}
	for range 2 {
		m.Update([]Process{early, a, c, told})
	}
	b.want(t, "measured again: the same drafter, told once", "dear costs 1:6ms")
	if log.Len() != 0 {
		t.Errorf("logged %s", log)
	}
}

// TestTakenNames: a drafter whose name the gateway's own drafter has gets a number. Requests can name both, and only the one with the
// number comes and goes.
func TestTakenNames(t *testing.T) {
	b := new(book)
	m, _, _, _ := members(t, b)
	t.Cleanup(m.Close)
	m.cfg.Taken = []string{"lookup"}
	names := func(what string, want ...string) {
		t.Helper()
		if got := m.Names(); !slices.Equal(got, want) {
			t.Errorf("%s: requests can name %q: want %q", what, got, want)
		}
	}
	names("no process", "lookup")
	p := Process{Addr: "a", Instance: 1, Link: new(process), Up: true, Drafters: []Drafter{{Name: "lookup"}}}
	q := Process{Addr: "b", Instance: 2, Link: new(process), Up: true, Drafters: p.Drafters}
	m.Update([]Process{p, q})
	b.want(t, "two processes with that name", "+lookup#2", "+lookup#3")
	names("two processes", "lookup", "lookup#2", "lookup#3")
	if d := b.drafters; d[0] != p.Link.Drafter("lookup", "lookup#2") || d[1] != q.Link.Drafter("lookup", "lookup#3") {
		t.Errorf("enlisted %+v", d)
	}
	p.Up = false
	m.Update([]Process{p, q})
	b.want(t, "one dies", "lookup#2 down")
	names("one is dead", "lookup", "lookup#3")
	m.Update([]Process{q})
	b.want(t, "it is gone", "-lookup#2")
	m.Update(nil)
	b.want(t, "so is the other", "-lookup#3")
	names("no process any more", "lookup")
}

// TestOtherVocabularies: of drafters without the target's fingerprint those are enlisted whose ids mean the same, once they have
// said so; the others are refused by name.
func TestOtherVocabularies(t *testing.T) {
	b := new(book)
	m, vocab, log, counters := members(t, b)
	t.Cleanup(m.Close)
	// with lists so many tokens of the target's vocabulary with a change
	with := func(tokens int, change func(v *token.Listing)) func(most int) (token.Listing, error) {
		return func(most int) (token.Listing, error) {
			v := vocab.Listing()
			n := min(tokens, most)
			v.Size, v.Pieces, v.Kinds = 0, slices.Clone(v.Pieces[:n]), slices.Clone(v.Kinds[:n])
			change(&v)
			return v, nil
		}
	}
	same := func(*token.Listing) {}
	size := vocab.Size()
	list := []struct {
		name  string
		vocab int
		lists func(most int) (token.Listing, error)
		good  bool
		says  []string // of the log; nil: nothing
	}{
		{"go", size, nil, true, nil},
		{"other", size, with(size, func(v *token.Listing) { v.Pieces[700] = "seven" }), false,
			[]string{`is not used`, `token 700 is`, `\"seven\" in the draft`}},
		{"short", 3000, with(3000, same), true, []string{"3000 tokens, the target 4096"}},
		{"long", size + 64, with(size, same), true, []string{"4160 tokens, the target 4096"}},
		{"ends", size, with(size, func(v *token.Listing) { v.EOS = 7 }), true, []string{"end with token 7, the target's with 2"}},
		{"types", size, with(size, func(v *token.Listing) { v.Kinds[999] = 4 }), true,
			[]string{"1 tokens have another type, the first is token 999"}},
		{"liar", size, with(100, same), false, []string{"lists 100 tokens of its 4096"}},
		{"old", size, with(size, func(v *token.Listing) { v.Tokenizer, v.Kinds = "", nil }), false, []string{"want a newer one"}},
		{"mute", size, func(int) (token.Listing, error) {
			return token.Listing{}, tandem.Errorf("test", tandem.Unsupported, "tells no vocabulary")
		}, false, []string{"fingerprint of mute there"}},
	}
	there := &process{lists: map[string]func(int) (token.Listing, error){}}
	p := Process{Addr: "a", Instance: 1, Link: there, Up: true}
	for _, d := range list {
		there.lists[d.name] = d.lists
		told := Drafter{Name: d.name, Vocab: d.vocab, Fingerprint: "of " + d.name}
		if d.name == "go" {
			told.Fingerprint = fingerprint
		}
		p.Drafters = append(p.Drafters, told)
	}
	for range 3 {
		m.Update([]Process{p})
	}
	m.work.Wait()
	b.want(t, "those whose ids mean the same", "+go", "+short", "+long", "+ends", "+types")
	for _, d := range list {
		var lines []string
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "drafter="+d.name+" ") {
				lines = append(lines, line)
			}
		}
		if len(lines) != min(1, len(d.says)) {
			t.Errorf("%s: logged %q", d.name, lines)
			continue
		}
		for _, want := range d.says {
			if !strings.Contains(lines[0], want) {
				t.Errorf("%s: logged %q: want %q in it", d.name, lines[0], want)
			}
		}
	}
	if c := counters.Snapshot(); c["drafters.other_vocabulary"] != 4 || c["drafters.near_vocabulary"] != 4 {
		t.Errorf("counted %v", c)
	}
	p.Instance = 2 // restarted with the same models: the wrong are named once more, the right stay
	m.Update([]Process{p})
	m.work.Wait()
	if other, short := strings.Count(log.String(), "drafter=other"), strings.Count(log.String(), "drafter=short"); other != 2 ||
		short != 1 {
		t.Errorf("after a restart the wrong one is logged %d times, the right %d: want 2 and 1", other, short)
	}
	b.want(t, "after a restart")
	p.Drafters = slices.Clone(p.Drafters)
	p.Drafters[1].Fingerprint = fingerprint
	p.Drafters[2].Fingerprint = "another"
	m.Update([]Process{p})
	m.work.Wait()
	b.want(t, "one has the target's vocabulary now, one was asked again", "+other", "-short", "+short")
}

// TestForeignVocabulary: a drafter whose ids mean other texts is told the target's vocabulary, once in its process's life, and its sessions
// are translated; one that cannot is refused with both reasons.
func TestForeignVocabulary(t *testing.T) {
	b := new(book)
	m, vocab, log, counters := members(t, b)
	t.Cleanup(m.Close)
	m.cfg.Tokenizer = func() ([]byte, error) { return []byte("the file"), nil }
	lists := func(int) (token.Listing, error) {
		v := vocab.Listing()
		v.Pieces = slices.Clone(v.Pieces)
		v.Pieces[700] = "seven"
		return v, nil
	}
	there := &process{lists: map[string]func(int) (token.Listing, error){"far": lists, "fed": lists},
		refuses: map[string]error{"fed": tandem.Errorf("target", tandem.Unsupported, "it reads states")}}
	p := Process{Addr: "a", Instance: 1, Link: there, Up: true, Drafters: []Drafter{{Name: "far", Vocab: vocab.Size(), Fingerprint: "f"},
		{Name: "fed", Vocab: vocab.Size(), Fingerprint: "f"}}}
	for range 3 {
		m.Update([]Process{p})
	}
	m.work.Wait()
	b.want(t, "the one that translates", "+far translates")
	slices.Sort(there.told)
	if want := []string{"far " + fingerprint + " the file", "fed " + fingerprint + " the file"}; !slices.Equal(there.told, want) {
		t.Errorf("told %q: want %q", there.told, want)
	}
	opened := new(asked)
	if _, err := (translating{opened}).Open(t.Context(), tandem.Opening{Session: 3}); err != nil || !opened.o.Translate ||
		opened.o.Session != 3 {
		t.Errorf("opened %+v, %v", opened.o, err)
	}
	if text := log.String(); strings.Count(text, "drafter=far ") != 1 || !strings.Contains(text, "it drafts in its own tokens") ||
		strings.Count(text, "drafter=fed ") != 1 || !strings.Contains(text, "it reads states") || !strings.Contains(text, "token 700 is") {
		t.Errorf("logged %s", text)
	}
	p.Instance = 2 // a process that knows nothing
	m.Update([]Process{p})
	m.work.Wait()
	b.want(t, "another process at the same place", "-far", "+far translates")
	if n := counters.Snapshot()["drafters.translated"]; n != 2 || len(there.told) != 4 {
		t.Errorf("counted %d, told %q", n, there.told)
	}
}

// asked is a drafter that keeps its last opening.
type asked struct {
	tandem.Drafter
	o tandem.Opening
}

func (a *asked) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	a.o = o
	return tandem.Opened{}, nil
}

// TestVocabularyOfSilentDrafter: one that does not answer is asked again and keeps nobody waiting.
func TestVocabularyOfSilentDrafter(t *testing.T) {
	b := new(book)
	m, vocab, _, _ := members(t, b)
	silent := Process{Addr: "a", Instance: 1, Link: new(process), Up: true, Drafters: []Drafter{{Name: "far", Vocab: 9, Fingerprint: "f"}}}
	good := Process{Addr: "b", Instance: 1, Link: silent.Link, Up: true,
		Drafters: []Drafter{{Name: "go", Vocab: vocab.Size(), Fingerprint: fingerprint}}}
	m.Update([]Process{silent, good})
	b.want(t, "the good one is there at once", "+go")
	m.Update([]Process{good}) // it is gone: nobody asks any more
	m.work.Wait()
	m.Update([]Process{silent, good})
	m.Close() // and this does not wait for its answer
	b.want(t, "the silent one")
}

// TestMembersThatReadFeatures: the gateway is told which drafters do.
func TestMembersThatReadFeatures(t *testing.T) {
	b := new(book)
	m, vocab, _, _ := members(t, b)
	defer m.Close()
	m.Update([]Process{{Addr: "a", Instance: 1, Link: new(process), Up: true, Drafters: []Drafter{
		{Name: "dgf", Vocab: vocab.Size(), Fingerprint: fingerprint, Features: true},
		{Name: "go", Vocab: vocab.Size(), Fingerprint: fingerprint}}}})
	b.want(t, "both are used", "+dgf features", "+go")
}
