package chat

import (
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// parser reads tokens by recursive descent, with Jinja2's grammar and precedence. Panics with a failure.
type parser struct {
	toks  []tok
	at    int
	depth int // of expressions and blocks inside one another

	loops  int         // open loops of this macro
	macros []*macroDef // open ones

	soft    int     // open conditions of this scope: a filter that is not known there matters only when it is reached
	unknown []error // filters and tests outside of conditions
}

// maxDepth bounds recursion: an expression in brackets takes several levels.
const maxDepth = 4 * maxNest

// parse turns a source into statements.
func parse(source string) (body []statement, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				panic(p)
			}
			body, err = nil, f.err
		}
	}()
	p := &parser{toks: lex(source)}
	if body, _ = p.body(); len(p.unknown) > 0 {
		return nil, p.unknown[0]
	}
	return body, nil
}

func (p *parser) cur() *tok { return &p.toks[p.at] }

func (p *parser) next() *tok {
	t := p.cur()
	if t.kind != "end" {
		p.at++
	}
	return t
}

func (p *parser) fail(k tandem.Kind, format string, args ...any) {
	(&run{line: p.cur().line}).fail(k, format, args...)
}

// is reports whether the next token is of a kind; isName whether it is that word.
func (p *parser) is(kind string) bool     { return p.cur().kind == kind }
func (p *parser) isName(word string) bool { return p.is("name") && p.cur().val == word }

// behind reports whether the token after the next is of a kind.
func (p *parser) behind(kind string) bool {
	return p.at+1 < len(p.toks) && p.toks[p.at+1].kind == kind
}

func (p *parser) skip(kind string) bool {
	if p.is(kind) {
		p.at++
		return true
	}
	return false
}

func (p *parser) skipName(word string) bool {
	if p.isName(word) {
		p.at++
		return true
	}
	return false
}

func (p *parser) want(kind string) *tok {
	if !p.is(kind) {
		p.fail(tandem.Invalid, "want %s, not %s", describe(kind), p.cur())
	}
	return p.next()
}

func describe(kind string) string {
	switch kind {
	case "name", "string", "number":
		return "a " + kind
	}
	return short(kind)
}

// String shows a token in errors.
func (t *tok) String() string {
	switch t.kind {
	case "name":
		return short(t.val)
	case "text", "string", "number":
		return "a " + t.kind
	case "end":
		return "the end of the template"
	}
	return short(t.kind)
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxDepth {
		p.fail(tandem.Invalid, "expressions and blocks are more than %d deep inside one another", maxDepth)
	}
}

func (p *parser) leave() { p.depth-- }

// body reads statements up to a tag that begins with one of ends and returns its name, which it has read; without ends up to the
// end of the source.
func (p *parser) body(ends ...string) (out []statement, end string) {
	begun := p.cur().line
	for {
		t := p.next()
		switch t.kind {
		case "end":
			if len(ends) > 0 {
				last := slices.IndexFunc(ends, func(end string) bool { return strings.HasPrefix(end, "end") })
				(&run{line: begun}).fail(tandem.Invalid, "a block has no end: want {%% %s %%}", ends[last])
			}
			return out, ""
		case "text":
			out = append(out, &data{t.val})
		case "{{":
			out = append(out, &output{t.line, []expr{p.tuple(true, "")}})
			p.want("}}")
		case "{%":
			if !p.is("name") {
				p.fail(tandem.Invalid, "want the name of a statement, not %s", p.cur())
			}
			if slices.Contains(ends, p.cur().val) {
				return out, p.next().val
			}
			p.enter()
			out = append(out, p.statement())
			p.leave()
			p.want("%}")
		}
	}
}

// block reads the end of a tag and what follows up to one of ends.
func (p *parser) block(ends ...string) ([]statement, string) {
	p.skip(":")
	p.want("%}")
	return p.body(ends...)
}

// scope is block for a body that is a scope of its own.
func (p *parser) scope(ends ...string) ([]statement, string) {
	outer := p.soft
	p.soft = 0
	defer func() { p.soft = outer }()
	return p.block(ends...)
}

// notKnown notes that a filter or test is not known.
func (p *parser) notKnown(why string) {
	if p.soft == 0 {
		p.unknown = append(p.unknown, failed(p.cur().line, tandem.Unsupported, "%s", why))
	}
}

// misplaced are names of tags that only stand inside or behind others.
var misplaced = map[string]bool{"else": true, "elif": true, "endif": true, "endfor": true, "endset": true, "endmacro": true,
	"endgeneration": true, "endraw": true, "endcall": true, "endfilter": true, "endwith": true}

func (p *parser) statement() statement {
	t := p.next()
	switch t.val {
	case "if":
		return p.conditions(t.line)
	case "for":
		return p.loop(t.line)
	case "set":
		return p.assignment(t.line)
	case "macro":
		return p.macro(t.line)
	case "call":
		return p.callBlock(t.line)
	case "filter":
		s := &filterBlock{line: t.line, chain: p.filters(p.filter(nil))}
		s.body, _ = p.scope("endfilter")
		return s
	case "with":
		return p.with(t.line)
	case "print":
		s := &output{line: t.line}
		for !p.is("%}") {
			if len(s.values) > 0 {
				p.want(",")
			}
			s.values = append(s.values, p.expression())
		}
		return s
	case "generation":
		loops := p.loops
		p.loops = 0
		s := &plainBlock{}
		s.body, _ = p.scope("endgeneration")
		p.loops = loops
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.fail(tandem.Invalid, "{%% %s %%} without a loop around it", t.val)
		}
		return &jump{map[string]flow{"break": breaks, "continue": continues}[t.val]}
	}
	p.at--
	if misplaced[t.val] {
		p.fail(tandem.Invalid, "{%% %s %%} without an open block", t.val)
	}
	p.fail(tandem.Unsupported, "{%% %.40s %%} is not a statement that tandem runs (it runs if, for, set, macro, call, filter, with, "+
		"print, break, continue, generation, raw): give another template with --chat-template", t.val)
	return nil
}

func (p *parser) conditions(line int) statement {
	s := &branching{line: line}
	p.soft++
	defer func() { p.soft-- }()
	for end := "elif"; ; {
		b := branch{}
		if end == "elif" {
			b.cond = p.tuple(false, "")
			b.body, end = p.block("elif", "else", "endif")
		} else {
			b.body, end = p.block("endif")
		}
		s.branches = append(s.branches, b)
		if end == "endif" {
			return s
		}
	}
}

func (p *parser) loop(line int) statement {
	p.loops++
	s := &loop{line: line, to: p.target("in", false)}
	if !p.skipName("in") {
		p.fail(tandem.Invalid, "want \"in\" in a loop, not %s", p.cur())
	}
	s.over = p.tuple(false, "recursive")
	if p.skipName("if") {
		s.cond = p.expression()
	}
	s.recursive = p.skipName("recursive")
	var end string
	s.body, end = p.scope("endfor", "else")
	p.loops--
	if end == "else" {
		s.hasElse = true
		s.none, _ = p.scope("endfor")
	}
	return s
}

func (p *parser) assignment(line int) statement {
	s := &assignment{line: line, to: p.target("", true)}
	if p.skip("=") {
		s.value = p.tuple(true, "")
		return s
	}
	s.chain = p.filters(nil)
	s.body, _ = p.scope("endset")
	return s
}

// target reads what is assigned to, up to the word end. attrs: attributes of namespaces are allowed.
func (p *parser) target(end string, attrs bool) target {
	var parts []target
	several := false
	for {
		if len(parts) > 0 {
			p.want(",")
		}
		if p.tupleEnds(end) {
			break
		}
		parts = append(parts, p.oneTarget(attrs))
		if !p.is(",") {
			break
		}
		several = true
	}
	if !several && len(parts) == 1 {
		return parts[0]
	}
	if len(parts) == 0 {
		p.fail(tandem.Invalid, "want a name, not %s", p.cur())
	}
	return target{parts: parts, several: true}
}

func (p *parser) oneTarget(attrs bool) target {
	if !p.is("(") {
		t := target{name: p.storeName()}
		if attrs && p.skip(".") {
			t.attr = p.want("name").val
		}
		return t
	}
	p.enter()
	defer p.leave()
	p.next()
	t := target{several: p.is(")")}
	for !p.is(")") {
		if len(t.parts) > 0 {
			p.want(",")
			t.several = true
			if p.is(")") {
				break
			}
		}
		t.parts = append(t.parts, p.oneTarget(false))
	}
	p.next()
	if !t.several {
		return t.parts[0]
	}
	return t
}

// storeName reads a name that is assigned to.
func (p *parser) storeName() string {
	name := p.want("name").val
	if _, fixed := words[name]; fixed {
		p.at--
		p.fail(tandem.Invalid, "%s cannot be assigned to", name)
	}
	if name == "loop" && p.loops > 0 {
		p.at--
		p.fail(tandem.Invalid, "loop cannot be assigned to in a loop")
	}
	return name
}

func (p *parser) macro(line int) statement {
	m := &macroDef{line: line, name: p.storeName()}
	p.signature(m)
	p.macroBody(m, "endmacro")
	return m
}

// signature reads the parameters of a macro.
func (p *parser) signature(m *macroDef) {
	p.want("(")
	for !p.is(")") {
		if len(m.params) > 0 {
			p.want(",")
		}
		name := p.storeName()
		if slices.Contains(m.params, name) {
			p.fail(tandem.Invalid, "parameter %s is there twice", short(name))
		}
		m.params = append(m.params, name)
		if p.skip("=") {
			m.values = append(m.values, p.expression())
		} else if len(m.values) > 0 {
			p.fail(tandem.Invalid, "parameter %s has no default, but one before it has", short(name))
		}
	}
	p.next()
}

// macroBody reads what a macro prints. Loops and conditions around it do not count inside.
func (p *parser) macroBody(m *macroDef, end string) {
	loops := p.loops
	p.loops = 0
	p.macros = append(p.macros, m)
	m.body, _ = p.scope(end)
	p.macros = p.macros[:len(p.macros)-1]
	p.loops = loops
	for i, name := range m.params {
		if name == "caller" && m.caller && i < len(m.params)-len(m.values) {
			p.fail(tandem.Invalid, "parameter caller of a macro wants a default, as {%% call %%} gives it")
		}
		m.kwargs = m.kwargs && name != "kwargs"
		m.varargs = m.varargs && name != "varargs"
	}
}

func (p *parser) callBlock(line int) statement {
	s := &callBlock{line: line, def: &macroDef{line: line}}
	if p.is("(") {
		p.signature(s.def)
	}
	c, ok := p.expression().(*call)
	if !ok {
		p.fail(tandem.Invalid, "{%% call %%} wants a call of a macro")
	}
	s.call = c
	p.macroBody(s.def, "endcall")
	return s
}

func (p *parser) with(line int) statement {
	s := &with{line: line}
	for !p.is("%}") {
		if len(s.to) > 0 {
			p.want(",")
		}
		s.to = append(s.to, p.target("", false))
		p.want("=")
		s.values = append(s.values, p.expression())
	}
	s.body, _ = p.scope("endwith")
	return s
}
