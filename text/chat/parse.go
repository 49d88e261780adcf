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
	names  *names      // of the scope that is read

	soft    int     // open conditions of this scope: a filter that is not known there matters only when it is reached
	unknown []error // filters and tests outside of conditions
}

// maxDepth bounds recursion: an expression in brackets takes several levels.
const maxDepth = 4 * maxNest

// parse turns a source into statements. hides are the names that its outermost scope hides, reads those that may be the caller's variables.
func parse(source string) (body []statement, hides []string, reads map[string]bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				panic(p)
			}
			body, err = nil, f.err
		}
	}()
	reads = map[string]bool{}
	p := &parser{toks: lex(source), names: newNames(nil, &hides)}
	if body, _ = p.body(); len(p.unknown) > 0 {
		return nil, nil, nil, p.unknown[0]
	}
	p.names.resolve(reads)
	return body, hides, reads, nil
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
	(&meter{line: p.cur().line}).fail(k, format, args...)
}

func (p *parser) invalidIf(is bool, format string, args ...any) {
	if is {
		p.fail(tandem.Invalid, format, args...)
	}
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
	p.invalidIf(!p.is(kind), "want %s, not %s", &tok{kind: kind}, p.cur())
	return p.next()
}

// String shows a token in errors.
func (t *tok) String() string {
	switch {
	case t.kind == "name" && t.val != "":
		return short(t.val)
	case t.kind == "name" || t.kind == "text" || t.kind == "string" || t.kind == "number":
		return "a " + t.kind
	case t.kind == "end":
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
				(&meter{line: begun}).fail(tandem.Invalid, "a block has no end: want {%% %s %%}", ends[last])
			}
			return out, ""
		case "text":
			out = append(out, &data{t.val})
		case "{{":
			out = append(out, &output{t.line, p.tuple(true, "")})
			p.want("}}")
		case "{%":
			p.invalidIf(!p.is("name"), "want the name of a statement, not %s", p.cur())
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

// scope is block for a body that is a scope of its own, which begins with params; it puts into hides what the scope hides.
func (p *parser) scope(hides *[]string, params func(*names), ends ...string) (body []statement, end string) {
	soft, outer := p.soft, p.names
	p.soft, p.names = 0, newNames(outer, hides)
	if params != nil {
		params(p.names)
	}
	body, end = p.block(ends...)
	p.soft, p.names = soft, outer
	return body, end
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
		s := &filterBlock{line: t.line}
		p.printed(&s.block, p.filter(nil), "endfilter")
		return s
	case "with":
		return p.with(t.line)
	case "generation":
		loops := p.loops
		p.loops = 0
		s := &plainBlock{}
		s.body, _ = p.scope(&s.hides, nil, "endgeneration")
		p.loops = loops
		return s
	case "break", "continue":
		p.invalidIf(p.loops == 0, "{%% %s %%} without a loop around it", t.val)
		return &jump{map[string]flow{"break": breaks, "continue": continues}[t.val]}
	}
	p.at--
	p.invalidIf(misplaced[t.val], "{%% %s %%} without an open block", t.val)
	p.fail(tandem.Unsupported, "{%% %.40s %%} is not a statement that tandem runs (it runs if, for, set, macro, call, filter, with, "+
		"break, continue, generation, raw): give another template with --chat-template", t.val)
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
	p.invalidIf(!p.skipName("in"), "want \"in\" in a loop, not %s", p.cur())
	s.over = p.tuple(false, "recursive")
	if p.skipName("if") {
		outer := p.names
		p.names = newNames(outer, new([]string))
		p.names.target(s.to, true, false)
		s.cond = p.expression()
		p.names = outer
	}
	if p.isName("recursive") {
		p.fail(tandem.Unsupported, "tandem does not know recursive loops")
	}
	var end string
	s.body, end = p.scope(&s.hides, func(in *names) {
		in.param("loop")
		in.target(s.to, true, false)
	}, "endfor", "else")
	p.loops--
	if end == "else" {
		s.hasElse = true
		s.none, _ = p.scope(&s.noneHides, nil, "endfor")
	}
	return s
}

func (p *parser) assignment(line int) statement {
	s := &assignment{line: line, to: p.target("", true)}
	if p.skip("=") {
		s.value = p.tuple(true, "")
		p.names.target(s.to, false, p.soft > 0)
		return s
	}
	p.names.target(s.to, false, p.soft > 0)
	p.printed(&s.block, nil, "endset")
	return s
}

// printed reads a block whose filters begin with chain.
func (p *parser) printed(b *printedBlock, chain expr, end string) {
	for b.chain = chain; p.skip("|"); {
		b.chain = p.filter(b.chain)
	}
	b.body, _ = p.scope(&b.hides, nil, end)
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
	p.invalidIf(len(parts) == 0, "want a name, not %s", p.cur())
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
	p.names.store(m.name, p.soft > 0)
	outer := p.names
	p.names = newNames(outer, &m.hides)
	p.signature(m)
	p.macroBody(m, "endmacro")
	p.names = outer
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
		p.invalidIf(slices.Contains(m.params, name), "parameter %s is there twice", short(name))
		m.params = append(m.params, name)
		if p.skip("=") {
			m.values = append(m.values, p.expression())
		} else if len(m.values) > 0 {
			p.fail(tandem.Invalid, "parameter %s has no default, but one before it has", short(name))
		}
	}
	p.next()
}

// macroBody reads what a macro prints, in the scope of its parameters. Loops and conditions around it do not count inside.
func (p *parser) macroBody(m *macroDef, end string) {
	loops, soft := p.loops, p.soft
	p.loops, p.soft = 0, 0
	for _, name := range append([]string{"caller"}, m.params...) {
		p.names.param(name)
	}
	p.macros = append(p.macros, m)
	m.body, _ = p.block(end)
	p.macros = p.macros[:len(p.macros)-1]
	p.loops, p.soft = loops, soft
	if i := slices.Index(m.params, "caller"); m.caller && i >= 0 && i < len(m.params)-len(m.values) {
		p.fail(tandem.Invalid, "parameter caller of a macro wants a default, as {%% call %%} gives it")
	}
}

func (p *parser) callBlock(line int) statement {
	s := &callBlock{line: line, def: &macroDef{line: line}}
	outer := p.names
	p.names = newNames(outer, &s.def.hides)
	if p.is("(") {
		p.signature(s.def)
	}
	inner := p.names
	p.names = outer
	c, ok := p.expression().(*call)
	p.invalidIf(!ok, "{%% call %%} wants a call of a macro")
	s.call = c
	p.names = inner
	p.macroBody(s.def, "endcall")
	p.names = outer
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
	s.body, _ = p.scope(&s.hides, func(in *names) {
		for _, t := range s.to {
			in.target(t, true, false)
		}
	}, "endwith")
	return s
}
