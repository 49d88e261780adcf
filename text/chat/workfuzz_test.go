package chat

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// A program is a string of bytes, each of which chooses how a template goes on. Every program is one that the parser takes, so that a
// fuzzer's time goes into what operations cost.
type program struct {
	rest []byte
	size int // expressions written
}

func (p *program) choose(n int) int {
	if len(p.rest) == 0 {
		return 0
	}
	c := int(p.rest[0])
	p.rest = p.rest[1:]
	return c % n
}

func pick[E any](p *program, of []E) E { return of[p.choose(len(of))] }

// prelude sets the variables that expressions begin with: large ones, and ones that hold themselves.
var prelude = `{% set n = namespace(t=(1, 'a'), l=[1], d={'a': 1}) %}{% for i in range(25) %}{% set n.t = (n.t, n.t) %}` +
	`{% set n.l = [n.l, n.l] %}{% endfor %}{% set n.n = n %}{% set user = messages[0].content %}{% set long = 'ab, \n\x01é' * 30000 %}` +
	`{% set spans = (user * 900)|list|join(',') %}{% set many = [none, 1] * 9000 %}{% set words = range(9000)|map('string')|list %}` +
	`{% set big = 9223372036854775807 %}{% set names = {` + numbered(2000, "'%d': 1", ", ") + `} %}{% set path = 'n' ~ '.n' * 9000 %}` +
	`{% set far = 10 ** 9 %}{% set code = 'a%s%d' * 900 %}{% set marks = '<&\'>' * 9000 %}` +
	`{% macro f(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{% macro g(a) %}{{ f(a, *many) }}{{ caller() }}{% endmacro %}`

// leaves and patterns are expressions by their kind: S a string, N a number, L a list or the like, D a dict, A anything. In a pattern, a
// letter between < and > stands for an expression of that kind.
var leaves = map[byte][]string{
	'S': {"long", "spans", "user", "''", "'a'", "','", "'\u00df\\x01'", "path", "code", "marks", "'%s %d'",
		"'{a}{0}{:05d}'", "'99999'", "'%A%Y'", "'upper'", "'string'", "'0'"},
	'N': {"0", "1", "3", "-3", "far", "-far", "big", "1048575", "1.5", "-1e300", "true", "18446744073709551616", "n.t|length"},
	'L': {"many", "words", "n.l", "n.t", "range(90000)", "names.items()", "names.values()", "messages",
		"(many|map('string'))", "[long, user]"},
	'D': {"names", "n.d", "messages[0]", "dict(a=n.l)", "{1: long}"},
	'A': {"n", "none", "f", "g", "loop", "loop.changed", "undefined_name", "namespace(**n.d)", "tools",
		"range"},
}

var patterns = map[byte][]string{
	'S': {"<A> ~ <A>", "<S> + <S>", "<S> * <N>", "<S> % <A>", "<S> % (<A>, <A>)", "<S>[<N>]", "<S>[<N>:<N>:<N>]",
		"<S>[<N>:]", "<A>|string", "<S>|upper", "<S>|lower",
		"<S>|title", "<S>|capitalize", "<S>|trim", "<S>|trim(<S>)", "<S>|replace(<S>, <S>)",
		"<S>|replace(<S>, <S>, <N>)", "<L>|join(<S>)",
		"<L>|join(<S>, attribute=<S>)", "<S>|indent(<N>, true, true)", "<S>|indent(<S>)", "<S>|safe", "<A>|tojson",
		"<A>|tojson(indent=<N>)",
		"<A>|tojson(ensure_ascii=true, indent=<S>)", "<L>|tojson(separators=(<S>, <S>))", "<S>|format(<A>, <A>)",
		"<S>.format(<A>, <N>, a=<A>)", "<S>.upper()", "<S>.lower()", "<S>.title()", "<S>.capitalize()",
		"<S>.strip(<S>)",
		"<S>.lstrip()", "<S>.rstrip(<S>)", "<S>.replace(<S>, <S>, <N>)", "<S>.join(<L>)", "strftime_now(<S>)", "f(<A>, <A>)", "f(*<L>)",
		"f(<A>, **<D>)", "loop.cycle(<S>, <S>)"},
	'N': {"<N> + <N>", "<N> - <N>", "<N> * <N>", "<N> / <N>", "<N> // <N>", "<N> % <N>", "<N> ** <N>", "-<N>", "<S>|int",
		"<S>|int(<N>, <N>)", "<N>|round(<N>)",
		"<A>|length", "<A>|count", "<S>.find(<S>, <N>, <N>)",
		"<S>.rfind(<S>)", "(<L>|list).count(<A>)", "(<L>|list).index(<A>, <N>)"},
	'L': {"<L> + <L>", "<L> * <N>", "[<A>, <A>]", "(<A>, <A>)", "[<A>] * <N>", "<L>[<N>:<N>:<N>]", "<L>|list", "<S>|list", "<L>|sort",
		"<L>|sort(reverse=true, attribute=<S>)",
		"<L>|sort(attribute=',' * <N>)", "<L>|unique|list", "<L>|unique(attribute=<S>)|list", "<L>|batch(<N>)|list",
		"<L>|groupby(<S>)", "<L>|groupby(<N>, default=<A>)", "<L>|map('string')|list", "<L>|map('tojson')|list",
		"<L>|map(attribute=<S>)|list", "<L>|map('replace', <S>, <S>)|list",
		"<L>|select|list", "<L>|select('in', <A>)|list", "<L>|reject('equalto', <A>)|list", "<L>|selectattr(<S>)|list",
		"<L>|rejectattr(<S>, 'eq', <A>)|list", "<D>|dictsort(true, 'value')",
		"<D>|dictsort", "<D>|items|list", "<S>.split(<S>)", "<S>.split()", "<S>.split(<S>, <N>)", "<S>.splitlines(true)",
		"range(<N>)", "range(<N>, <N>, <N>)", "<D>.keys()", "<D>.values()", "<D>.items()"},
	'D': {"{<A>: <A>}", "{<S>: <A>, <N>: <A>}", "dict(<D>, a=<A>)", "dict(**<D>)"},
	'A': {"<L>[<N>]", "<D>[<A>]", "<A>[<S>]", "<D>.get(<A>, <A>)", "<A>|default(<A>, true)", "<A>|d(<A>)", "<L>|first",
		"<L>|last", "<L>|max", "<L>|min(attribute=<S>)",
		"<A> == <A>", "<A> != <A>", "<L> < <L>", "<S> <= <S>", "<N> > <N>", "<L> >= <L>", "<A> in <L>", "<S> not in <S>", "<A> in <D>",
		"<A> and <A>", "<A> or <A>", "not <A>", "<A> if <A> else <A>",
		"<A> is defined", "<A> is undefined", "<A> is none", "<A> is true", "<A> is false", "<A> is boolean",
		"<A> is string", "<A> is number", "<A> is integer", "<A> is float",
		"<A> is mapping", "<A> is sequence", "<A> is iterable", "<A> is callable",
		"<N> is odd", "<N> is even", "<N> is divisibleby <N>",
		"<A> is sameas <A>", "<A> is in <L>", "<A> is eq <A>", "<A> is equalto <A>", "<A> is ne <A>",
		"<L> is lt <L>", "<S> is lessthan <S>", "<N> is le <N>", "<L> is gt <L>",
		"<N> is greaterthan <N>", "<L> is ge <L>", "<S>.startswith(<S>, <N>)", "<S>.endswith((<S>, <S>))", "namespace(**<D>)",
		"raise_exception(<A>)", "loop.changed(<A>)", "loop.index", "loop.length", "loop.nextitem", "<A>.n.n.n", "caller()"},
}

// TestPatterns: every operation that a template can ask for is in a pattern.
func TestPatterns(t *testing.T) {
	all := ""
	for _, of := range patterns {
		all += " " + strings.Join(of, " ") + " "
	}
	for _, f := range slices.Concat(slices.Collect(maps.Keys(filters)), slices.Collect(maps.Keys(tests)),
		slices.Collect(maps.Keys(globals)), slices.Collect(maps.Keys(textMethods))) {
		if globals[f] != nil && slices.Contains([]string{"cycler", "joiner", "lipsum", "self"}, f) {
			continue // refused
		}
		if !strings.Contains(all, f) {
			t.Errorf("no pattern has %s", f)
		}
	}
}

// expr writes an expression of a kind.
func (p *program) expr(kind byte, depth int) string {
	if p.size++; depth == 0 || p.size > 30 {
		return "(" + pick(p, leaves[kind]) + ")"
	}
	if kind == 'A' {
		kind = pick(p, []byte("SNLDA"))
	}
	var b strings.Builder
	for i, part := range strings.Split(pick(p, patterns[kind]), "<") {
		if i > 0 && len(part) > 1 && part[1] == '>' {
			b.WriteString(p.expr(part[0], depth-1) + part[2:])
		} else if i > 0 {
			b.WriteString("<" + part)
		} else {
			b.WriteString(part)
		}
	}
	return "(" + b.String() + ")"
}

// template writes what uses an expression: once, again and again, or as what a block does.
func (p *program) template() string {
	use := pick(p, []string{
		"{%% for i in range(90000) %%}{%% for j in range(90000) %%}{%% set x = %s %%}{%% endfor %%}{%% endfor %%}",
		"{{ %s }}",
		"{%% set n.x = user %%}{%% for i in range(90) %%}{%% set n.x = [n.x, %s] %%}{%% endfor %%}{{ n.x }}",
		"{%% for x in range(90000) if %s %%}{{ loop.length }}{%% endfor %%}",
		"{%% call g(1) %%}{{ %s }}{%% endcall %%}",
	})
	return prelude + fmt.Sprintf(use, p.expr('A', 1+p.choose(3)))
}

// FuzzWork: each expression ends within its budget of steps, bytes and time, whatever its values are.
func FuzzWork(f *testing.F) {
	random := rand.New(rand.NewPCG(43, 1))
	for range 100 {
		b := make([]byte, 40)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		source := (&program{rest: b}).template()
		if _, err := Parse(source, llama); err != nil && !errors.Is(err, tandem.Unsupported) {
			t.Fatalf("%s: %v", strings.TrimPrefix(source, prelude), err)
		}
		c := measure(source, defaults, say("user", "hello")...)
		if s := c.over(); s != "" {
			t.Errorf("%s: %s", strings.TrimPrefix(source, prelude), s)
		}
		if testing.Verbose() {
			t.Logf("%v %d steps, %d KiB, %s: %v", c.time, c.steps, c.heap>>10, strings.TrimPrefix(source, prelude), c.err)
		}
	})
}
