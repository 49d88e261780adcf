package chat

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// over returns a template that sets what an expression needs and evaluates it without end, so that work which is not counted shows
// as time.
func over(set, expr string) string {
	return set + `{% for i in range(90000) %}{% for j in range(90000) %}{% set x = ` + expr + ` %}{% endfor %}{% endfor %}`
}

// shared is a value t that holds itself 2^n times.
func shared(n int) string {
	return fmt.Sprintf(`{%% set n = namespace(t=(1, 2)) %%}{%% for i in range(%d) %%}{%% set n.t = (n.t, n.t) %%}{%% endfor %%}{%% set t = n.t %%}`, n)
}

func numbered(n int, format, sep string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, sep)
}

// long sets s to n bytes.
func long(s string, n int) string { return fmt.Sprintf(`{%% set s = '%s' * %d %%}`, s, n/len(s)) }

var pairs = `{% set d = {` + numbered(4000, "'k%d': 1", ", ") + `} %}`

// uncounted are templates whose work or memory was once not counted before it was done.
var uncounted = map[string]string{
	"a shared tuple printed":               shared(40) + `{{ t }}`,
	"a shared tuple as JSON":               shared(40) + `{{ t|tojson }}`,
	"shared tuples compared":               shared(40) + `{% set u = t %}` + shared(40) + `{{ t == u }}{{ t < u }}{{ [t].index(u) }}`,
	"a shared tuple in groupby":            shared(40) + `{{ [(t, 1)]|groupby(0)|list }}`,
	"sorting by many attributes":           `{{ [1]|sort(attribute=","*3000000) }}`,
	"grouping by a long path":              `{{ [1]|groupby("."*3000000) }}`,
	"JSON of control characters":           long(`\x01`, 10_000_000) + `{{ s|tojson }}`,
	"ASCII JSON of umlauts":                long(`é`, 10_000_000) + `{{ s|tojson(ensure_ascii=true) }}`,
	"repr of control characters":           long(`\x01`, 7_000_000) + `{{ [s] }}`,
	"a long key as an attribute":           over(long("a", 8_000_000), `5[s]`),
	"a long key of a list":                 over(long("a", 8_000_000), `[1]|map(attribute=s)|list`),
	"a long name":                          over("", strings.Repeat("a", 200_000)),
	"lists of the same":                    over(`{% set l = [none] * 120000 %}{% set m = [none] * 120000 %}`, `l == m`),
	"counting the same":                    over(`{% set l = [none] * 120000 %}`, `l.count(none)`),
	"looking for the same":                 over(`{% set l = [none] * 120000 %}`, `l == l[1:] + [none]`),
	"many names looked for in a format":    pairs + over(`{% set s = '{k1000000}' * 100000 %}`, `'{k1}'.format(**d)`),
	"formats without end":                  over(long("a", 8_000_000), `s.format()`),
	"formats of the caller's spans":        over(`{% set s = (messages[0].content * 9000)|list|join('%%') %}`, `s % ()`),
	"fields of the caller's spans":         over(`{% set s = (messages[0].content * 9000)|list|join('{{') %}`, `s.format()`),
	"names in a format":                    pairs + `{% set s = '{k3998}' * 100000 %}{{ s.format(**d) }}`,
	"names of a macro":                     pairs + `{% macro f(` + numbered(4000, "k%d", ",") + `) %}{% endmacro %}` + over("", `f(**d)`),
	"a macro of many names":                `{% macro f(` + numbered(9000, "a%d", ",") + `) %}{% endmacro %}` + over("", `f()`),
	"scopes of many names":                 `{% for i in range(90000) %}{% for j in range(90000) %}{% continue %}` + numbered(5000, "{%% set a%d = 1 %%}", "") + `{% endfor %}{% endfor %}`,
	"scopes of many names that are kept":   `{% set n = namespace(l=none) %}{% for i in range(90000) %}{% macro f() %}{% endmacro %}{% set n.l = [f, n.l] %}{% continue %}` + numbered(4000, "{%% set a%d = 1 %%}", "") + `{% endfor %}`,
	"many targets":                         `{% set l = [1] * 9000 %}{% for i in range(90000) %}{% for ` + numbered(9000, "a%d", ",") + ` in [l] * 1000 %}{% endfor %}{% endfor %}`,
	"spans of the caller trimmed":          over(`{% set s = (messages[0].content * 9000)|list|join('x') %}`, `s|trim`),
	"spans of the caller cut":              over(`{% set s = (messages[0].content * 9000)|list|join('x') %}`, `s[1:]`),
	"title case":                           over(long("a ", 7_000_000), `s|title`),
	"sorting long strings in lower case":   over(long("A", 1_000_000), `[s, s, s]|sort`),
	"lines":                                over(long(`\n`, 300_000), `s.splitlines()`),
	"words":                                over(long("a ", 600_000), `s.split()`),
	"times":                                over(``, `strftime_now('`+strings.Repeat("%A", 30000)+`')`),
	"an attribute without end":             over(`{% set n = namespace() %}{% set n.n = n %}{% set p = 'n' ~ '.n' * 300000 %}`, `[n]|map(attribute=p)|list`),
	"a group of shared lists":              over(shared(30), `[t, t]|groupby(0)|list`),
	"batches of batches":                   over(`{% set l = [1] * 90000 %}`, `l|batch(3)|batch(3)|list`),
	"escapes":                              long(`<`, 2_000_000) + over("", `("a"|safe) + s`),
	"a pattern that almost matches":        over(long("a", 2_000_000)+`{% set p = 'a' * 1000000 ~ 'b' %}`, `s.find(p)`),
	"a pattern that almost matches behind": over(long("a", 2_000_000)+`{% set p = 'b' ~ 'a' * 1000000 %}`, `s.rfind(p)`),
}

// limited are the errors of limits.
var limited = regexp.MustCompile(`than [0-9]+ (steps|bytes|deep)|of processor time|at most [0-9]+`)

// TestTrialsEnd: what is found out about a template when a model is opened takes little, whatever the template is, and says if it is not
// found out.
func TestTrialsEnd(t *testing.T) {
	slow := 0
	all := maps.Clone(uncounted)
	for name, h := range hostile {
		all[name] = h.source
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, source := range all {
		tmpl, err := Parse(source, llama)
		if err != nil {
			continue
		}
		begun := threadTime()
		_, err = tmpl.AfterTurn(context.Background())
		tmpl.wantsString()
		if took := threadTime() - begun; took > mostTime {
			t.Errorf("%s: %v", name, took)
		}
		if err != nil {
			slow++
		}
	}
	if slow < 55 {
		t.Errorf("%d templates were said to take too long, want 55", slow)
	}
}

// TestCounted: what a template does is counted before it is done, in steps and in bytes.
func TestCounted(t *testing.T) {
	for name, source := range uncounted {
		t.Run(name, func(t *testing.T) {
			c := measure(source, defaults, say("user", "hello")...)
			if c.err != nil && !limited.MatchString(c.err.Error()) { // a template that is wrong would show nothing
				t.Errorf("error %v, want one of a limit", c.err)
			}
			if s := c.over(); s != "" {
				t.Error(s)
			}
			t.Logf("%s: %v, %d KiB: %v", name, c.time.Round(10*time.Microsecond), c.heap>>10, c.err)
		})
	}
}
