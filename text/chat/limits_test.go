package chat

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// What a hostile template may cost: the promise of the package's comment.
const (
	mostHeap = 64 << 20    // bytes
	mostTime = time.Second // of a processor
	patience = 2           // times mostTime on a machine that does other work
	mostWall = 8 * time.Second
)

// hostile are templates that ask for too much. Each must end in an error of the kind, within the promise.
var hostile = map[string]struct {
	source string
	kind   tandem.Kind
}{
	"endless loop":           {`{% for i in range(10**9) %}x{% endfor %}`, tandem.Invalid},
	"range that is too long": {`{{ range(2000000)|length }}`, tandem.Invalid},
	"nested loops": {`{% for a in range(900) %}{% for b in range(900) %}{% for c in range(900) %}{% endfor %}{% endfor %}{% endfor %}`,
		tandem.Invalid},
	"macro that calls itself": {`{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`, tandem.Invalid},
	"macros that call each other twice": {`{% macro f(n) %}{% if n %}{{ g(n-1) }}{{ g(n-1) }}{% endif %}{% endmacro %}` +
		`{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(60) }}`, tandem.Invalid},
	"repeated string": {`{{ 'a' * 10**9 }}`, tandem.Invalid},
	"repeated list":   {`{{ ([1] * 10**9)|length }}`, tandem.Invalid},
	"power": {`{{ 10 ** 10 ** 10 }}{{ 9**99999999|int }}{% for i in range(10**8) %}{% endfor %}`,
		tandem.Unsupported},
	"doubling": {`{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}`,
		tandem.Invalid},
	"doubling by replace": {`{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s.replace('a', 'aaa') %}{% endfor %}`,
		tandem.Invalid},
	"doubling by join": {`{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s.join(n.s) %}{% endfor %}`,
		tandem.Invalid},
	"doubling by indent": {`{% set n = namespace(s='\n\na') %}{% for i in range(60) %}{% set n.s = n.s|indent(n.s|length, true, true) %}{% endfor %}`, tandem.Invalid},
	"doubling by tojson": {`{% set n = namespace(s='"') %}{% for i in range(60) %}{% set n.s = n.s|tojson %}{% endfor %}`, tandem.Invalid},
	"doubling by block set": {`{% set s = 'a' %}` + strings.Repeat(`{% set s %}{{ s }}{{ s }}{% endset %}`, 60) +
		`{{ s }}`, tandem.Invalid},
	"wide padding": {`{{ 'a'|indent(10**9, true) }}`, tandem.Invalid},
	"wide JSON":    {`{{ [[[[1]]]]|tojson(indent=10**9) }}`, tandem.Invalid},
	"long output": {`{% for i in range(100000) %}` + strings.Repeat("long", 100) + `{% endfor %}`,
		tandem.Invalid},
	"lists that share themselves":             {`{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}`, tandem.Invalid},
	"JSON that shares itself":                 {`{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l|tojson }}`, tandem.Invalid},
	"comparing what shares itself":            {`{% set n = namespace(l=[1],m=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}{% endfor %}{{ n.l == n.m }}`, tandem.Invalid},
	"a namespace that holds a list of itself": {`{% set n = namespace() %}{% set n.l = [n] %}{{ n.l|tojson }}`, tandem.Invalid},
	"a namespace in itself":                   {`{% set n = namespace() %}{% set n.n = n %}{{ n|tojson }}`, tandem.Invalid},
	"sorting long strings":                    {`{% set s = 'a' * 100000 %}{% for i in range(10000) %}{% set x = [s ~ 1, s ~ 2, s ~ 0]|sort %}{% endfor %}`, tandem.Invalid},
	"searching long strings": {`{% set s = 'a' * 3000000 %}{% for i in range(500000) %}{% set x = 'b' in s %}{% endfor %}`,
		tandem.Invalid},
	"splitting into characters":    {`{% set s = 'a' * 5000000 %}{{ s|list|length }}`, tandem.Invalid},
	"splitting at every character": {`{% set s = 'a' * 5000000 %}{{ s.split('a')|length }}`, tandem.Invalid},
	"keys without end":             {`{% set n = namespace(d={}) %}{% for i in range(300000) %}{% set n.d = dict(n.d, a=i) %}{{ n.d|length }}{% endfor %}`, tandem.Invalid},
	"macros kept":                  {`{% set n = namespace(l=none) %}{% for i in range(300000) %}{% macro f() %}{% endmacro %}{% set n.l = [f, n.l] %}{% endfor %}`, tandem.Invalid},
	"numbers in long strings": {`{% set s = ' ' * 3000000 %}{% for i in range(300000) %}{% set x = s|int %}{% endfor %}`,
		tandem.Invalid},
	"long keys": {`{% set s = 'a' * 3000000 %}{% set d = {s: 1} %}{% for i in range(300000) %}{% set x = d[s] %}{% endfor %}`,
		tandem.Invalid},
	"long paths": {`{% set n = namespace() %}{% set n.n = n %}{% set p = 'n' ~ '.n' * 2000000 %}{% for i in range(10000) %}{% set x = [n]|map(attribute=p)|list %}{% endfor %}`, tandem.Invalid},
	"variables far outside": {strings.Repeat(`{% for i in [1] %}`, 60) +
		`{% for i in range(300000) %}{% set x = messages %}{% endfor %}` + strings.Repeat(`{% endfor %}`, 60), tandem.Invalid},
	"deep brackets": {`{{ ` + strings.Repeat("(", 100000) + `1` + strings.Repeat(")", 100000) + ` }}`,
		tandem.Invalid},
	"deep lists":                 {`{{ ` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + ` }}`, tandem.Invalid},
	"deep blocks":                {strings.Repeat("{% if 1 %}", 10000) + strings.Repeat("{% endif %}", 10000), tandem.Invalid},
	"long sum":                   {`{{ 1` + strings.Repeat("+1", 15000) + ` }}`, tandem.Invalid},
	"long chain of conditionals": {`{{ ` + strings.Repeat("1 if 0 else ", 8000) + `2 }}`, tandem.Invalid},
	"long chain of attributes":   {`{{ a` + strings.Repeat(".b", 15000) + ` }}`, tandem.Invalid},
	"long sum as a keyword":      {`{{ f(` + strings.Repeat("1+", 15000) + `1=2) }}`, tandem.Invalid},
	"many signs":                 {`{{ ` + strings.Repeat("- ", 15000) + `1 }}`, tandem.Invalid},
	"many nots":                  {`{{ ` + strings.Repeat("not ", 15000) + `1 }}`, tandem.Invalid},
	"deep targets":               {`{% set ` + strings.Repeat("(", 63) + "a" + strings.Repeat(",)", 63) + ` = 1 %}`, tandem.Invalid},
	"calls of calls":             {`{{ a` + strings.Repeat("()", 10000) + ` }}`, tandem.Invalid},
	"numbers of many digits":     {`{{ ` + strings.Repeat("9", 100000) + ` }}`, tandem.Unsupported},
	"wide format":                {`{{ '%1000000000d' % 1 }}`, tandem.Unsupported},
	"wide precision":             {`{{ '%.1000000000f' % 1.5 }}`, tandem.Unsupported},
	"precision of a number":      {`{{ '%.1000000000d' % 1 }}`, tandem.Unsupported},
	"wide groups":                {`{{ "{:01048575,}".format(1) }}`, tandem.Unsupported},
	"wide fields":                {`{{ '{:1000000000}'.format('a') }}`, tandem.Unsupported},
	"endless generator":          {`{% set n = namespace(g=[1]) %}{% for i in range(10**4) %}{% set n.g = n.g|map('string') %}{% endfor %}{{ n.g|list }}`, tandem.Invalid},
	"recursive loop":             {`{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`, tandem.Unsupported},
	"caller that calls itself": {`{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}`,
		tandem.Invalid},
	"keys of deep tuples":           {`{% set n = namespace(t=(1,)) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}{{ {n.t: 1} }}`, tandem.Unsupported},
	"batch that fills up":           {`{{ [1]|batch(10**9, 1)|list }}`, tandem.Unsupported},
	"many tokens":                   {`{{ ` + strings.Repeat("+", 200000), tandem.Invalid},
	"many strings":                  {`{{ ` + strings.Repeat(`'a'`, 80000) + strings.Repeat(".x", 40000), tandem.Invalid},
	"many raw blocks without end":   {strings.Repeat(`{% raw %}`, 25000), tandem.Invalid},
	"many comments without end":     {strings.Repeat(`{#`, 100000), tandem.Invalid},
	"many line breaks and open tag": {strings.Repeat("\n", 200000) + `{{`, tandem.Invalid},
	"a megabyte":                    {strings.Repeat("x", 1<<20), tandem.Invalid},
	"a megabyte of brackets":        {`{{` + strings.Repeat("[", 1<<20), tandem.Invalid},
	"error with a huge value":       {`{{ {}[('a' * 9000000)].x }}`, tandem.Invalid},
}

// cost is what one Parse and Render took.
type cost struct {
	heap         uint64 // bytes, at most
	time         time.Duration
	steps, spent int // that were counted; the last operation only before it was done
	out          Rendered
	err          error
}

// over says which promise c breaks, "" for none.
func (c cost) over() string {
	switch {
	case c.time > patience*mostTime || errors.Is(c.err, tandem.Deadline):
		return fmt.Sprintf("took %v: want at most %v", c.time, mostTime)
	case c.heap > mostHeap:
		return fmt.Sprintf("%d bytes of heap: want at most %d", c.heap, uint64(mostHeap))
	case len(c.out.Text) > defaults.output:
		return fmt.Sprintf("%d bytes printed: want at most %d", len(c.out.Text), defaults.output)
	case c.err != nil && len(c.err.Error()) > 2000:
		return fmt.Sprintf("an error of %d bytes", len(c.err.Error()))
	case errors.Is(c.err, tandem.Internal):
		return "an internal error: " + c.err.Error()
	case c.err == nil && (c.steps > defaults.steps || c.spent > defaults.spent):
		return fmt.Sprintf("%d steps, %d bytes: want at most %d, %d", c.steps, c.spent, defaults.steps, defaults.spent)
	}
	return ""
}

// measure runs a template under limits. The total allocation is an upper bound of the heap. So only a template that
// allocates more than the promise is run again, with the heap sampled and garbage collected early.
func measure(source string, l limits, messages ...Message) cost {
	c := runOnce(source, l, messages)
	if c.heap > mostHeap && c.time <= patience*mostTime {
		stop := sampleHeap()
		runOnce(source, l, messages)
		c.heap = stop()
	}
	return c
}

// runOnce returns a cost whose heap is the total allocation.
func runOnce(source string, l limits, messages []Message) (c cost) {
	ctx, cancel := context.WithTimeout(context.Background(), mostWall) // ends what has no limits
	defer cancel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, before := threadTime(), metric("/gc/heap/allocs:bytes")
	t, err := Parse(source, llama)
	if err == nil {
		m := &meter{ctx: ctx, limits: l}
		c.out, err = t.metered(m, messages, Options{}, false)
		c.steps, c.spent = m.steps, m.spentBytes
	}
	c.time, c.err, c.heap = threadTime()-begin, err, metric("/gc/heap/allocs:bytes")-before
	return c
}

func metric(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// sampleHeap watches the heap every millisecond until stop, which returns by how much it grew at most.
func sampleHeap() (stop func() uint64) {
	const objects = "/memory/classes/heap/objects:bytes"
	percent := debug.SetGCPercent(10)
	runtime.GC()
	before := metric(objects)
	done, most := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		highest := before
		for {
			select {
			case <-tick.C:
				highest = max(highest, metric(objects))
			case <-done:
				most <- highest - before
				return
			}
		}
	}()
	return func() uint64 {
		close(done)
		debug.SetGCPercent(percent)
		return <-most
	}
}

func TestHostileTemplates(t *testing.T) {
	for name, tc := range hostile {
		t.Run(name, func(t *testing.T) {
			c := measure(tc.source, defaults, say("user", "hello")...)
			if !errors.Is(c.err, tc.kind) {
				t.Errorf("error %v, want %v", c.err, tc.kind)
			}
			if s := c.over(); s != "" {
				t.Error(s)
			}
			t.Logf("%v, %d KiB: %v", c.time.Round(10*time.Microsecond), c.heap>>10, c.err)
		})
	}
}

// TestOracleSeesMissingLimits removes one limit after the other: each time the oracle of the tests above and of
// FuzzTemplate must report it.
func TestOracleSeesMissingLimits(t *testing.T) {
	const none = 1 << 60
	for name, tc := range map[string]struct {
		source  string
		without func(*limits)
		want    string
	}{
		"spent": {`{% set n = namespace(s='ab') %}{% for i in range(27) %}{% set n.s = n.s ~ n.s %}{% endfor %}`,
			func(l *limits) { l.spent, l.steps = none, none }, "bytes of heap"},
		"output": {`{% for i in range(2000) %}` + strings.Repeat("long", 1000) + `{% endfor %}`,
			func(l *limits) { l.output = none }, "bytes printed"},
		"steps and processor time": {`{% for a in range(2000) %}{% for b in range(3000) %}{% for c in [1,2,3,4] %}{% endfor %}{% endfor %}{% endfor %}`,
			func(l *limits) { l.steps, l.spent, l.cpu = none, none, time.Hour }, "took"},
	} {
		t.Run(name, func(t *testing.T) {
			l := defaults
			if c := measure(tc.source, l); c.over() != "" {
				t.Fatalf("with all limits: %s", c.over())
			}
			tc.without(&l)
			if c := measure(tc.source, l); !strings.Contains(c.over(), tc.want) && !strings.Contains(c.over(), "took") { // a slow machine
				t.Errorf("the oracle says %q (error %v), want %q", c.over(), c.err, tc.want)
			}
		})
	}
}

func TestTimeAndContext(t *testing.T) {
	tmpl := mustParse(t, `{% for i in range(10000) %}{% for i in range(10) %}{% endfor %}{% endfor %}`)
	tmpl.limits.cpu = 100 * time.Microsecond
	if _, err := tmpl.Render(context.Background(), nil, Options{}); !errors.Is(err, tandem.Invalid) ||
		!strings.Contains(err.Error(), "processor time") {
		t.Errorf("error %v, want Invalid for too much processor time", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tmpl.Render(ctx, nil, Options{}); !errors.Is(err, tandem.Canceled) {
		t.Errorf("error %v, want Canceled", err)
	}
}

// starved is a context whose first Err takes half a second, in which other goroutines have the processors.
type starved struct {
	context.Context
	once sync.Once
}

func (s *starved) Err() error {
	s.once.Do(func() {
		var others sync.WaitGroup
		for range 8 {
			others.Go(func() {
				for begun := time.Now(); time.Since(begun) < 600*time.Millisecond; {
				}
			})
		}
		others.Wait()
	})
	return s.Context.Err()
}

// chatML prints each message as a turn.
const chatML = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim + '<|im_end|>' + '\n' }}{% endfor %}`

func turns(n int) (messages []Message) {
	for range n {
		messages = append(messages, Message{Role: "user", Content: strings.Repeat("word ", 200)})
	}
	return messages
}

// TestBusyMachine renders an innocent conversation on a busy machine: neither the time by the clock nor other threads' processor
// time is a reason to refuse it.
func TestBusyMachine(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	tmpl := mustParse(t, chatML)
	want, err := tmpl.Render(context.Background(), turns(100), Options{})
	if err != nil {
		t.Fatal(err)
	}
	tmpl.limits.cpu = 500 * time.Millisecond // more than fifty times of what it takes
	if out, err := tmpl.Render(&starved{Context: context.Background()}, turns(100), Options{}); err != nil || out.Text != want.Text {
		t.Errorf("%d bytes, error %v: want %d", len(out.Text), err, len(want.Text))
	}
}

// TestLongConversation: the limits leave room for a million tokens' worth of text.
func TestLongConversation(t *testing.T) {
	out, err := mustParse(t, chatML).Render(context.Background(), turns(2000), Options{})
	if err != nil || len(out.Text) < 2_000_000 || len(out.User) != 2000 {
		t.Errorf("%d bytes, %d spans, error %v", len(out.Text), len(out.User), err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, h := range hostile {
		if len(h.source) < 2000 {
			f.Add(h.source, "hello")
		}
	}
	for _, s := range []string{
		`{% for m in messages %}{{ '<|' ~ m['role'] ~ '|>' + m.content|trim }}{% endfor %}{% if add_generation_prompt %}x{% endif %}`,
		"{%- set ns = namespace(a=1) -%}\n {% macro f(x, y='z') %}{{ x[1:] if y is defined else y }}{% endmacro %}{{ f('abc') }}",
		`{{ messages|selectattr('role', 'eq', 'user')|map(attribute='content')|list|tojson(indent=2) }}{% raw %}{{{% endraw %}{# c #}`,
		`{{ messages[0].content.split('l')[-1].replace('o', 'oo').upper()[::-1] * 3 }}{{ {'a': [1, 2.5, none]}|dictsort }}`,
	} {
		f.Add(s, "hello <|x|>")
	}
	f.Fuzz(func(t *testing.T, source, content string) {
		c := measure(source, defaults, say("user", secret+content, "assistant", "b"+secret)...)
		if s := c.over(); s != "" {
			t.Error(s)
		}
		if !strings.Contains(strings.ToLower(source), "e000") && !strings.Contains(source, secret) {
			checkSpans(t, c.out)
		}
	})
}

// secret is a character that occurs only in messages, so wherever it is in the output, that text is the caller's.
const secret = "\ue000"

func checkSpans(t *testing.T, out Rendered) {
	t.Helper()
	rest, end := "", 0
	for _, s := range out.User {
		if s.From < end || s.From >= s.To || s.To > len(out.Text) {
			t.Fatalf("spans %v of %d bytes are not ascending, disjoint and within", out.User, len(out.Text))
		}
		rest += out.Text[end:s.From] + "\x00"
		end = s.To
	}
	if rest += out.Text[end:]; strings.Contains(rest, secret) {
		t.Errorf("what a message holds is outside of the spans %v of %q", out.User, out.Text)
	}
}
