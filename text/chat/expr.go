package chat

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// words are names with a fixed value.
var words = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// expression reads one expression: a or b, with conditions behind it.
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	known := len(p.unknown)
	e := p.or()
	for p.skipName("if") {
		p.unknown = p.unknown[:known]
		p.soft++
		t := &ternary{yes: e, cond: p.or()}
		if p.skipName("else") {
			t.no = p.expression()
		}
		p.soft--
		e = t
	}
	return e
}

// tupleEnds reports whether no further element of a tuple follows.
func (p *parser) tupleEnds(word string) bool {
	return p.is("}}") || p.is("%}") || p.is(")") || word != "" && p.isName(word)
}

// tuple reads an expression or several with commas between them, up to the word end. conditional: with "a if b else c".
func (p *parser) tuple(conditional bool, end string) expr {
	read := p.expression
	if !conditional {
		read = func() expr {
			p.enter()
			defer p.leave()
			return p.or()
		}
	}
	items, several := p.items(read, end)
	if several {
		return &listing{items, true}
	}
	p.invalidIf(len(items) == 0, "want an expression, not %s", p.cur())
	return items[0]
}

func (p *parser) items(read func() expr, end string) (items []expr, several bool) {
	for {
		if len(items) > 0 {
			p.want(",")
		}
		if p.tupleEnds(end) {
			return items, several
		}
		items = append(items, read())
		if !p.is(",") {
			return items, several
		}
		several = true
	}
}

func (p *parser) or() expr  { return p.chain(p.and, "or") }
func (p *parser) and() expr { return p.chain(p.not, "and") }

func (p *parser) not() expr {
	if !p.skipName("not") {
		return p.compare()
	}
	p.enter()
	defer p.leave()
	return &negation{p.not()}
}

func (p *parser) compare() expr {
	c := &comparison{first: p.sum()}
	for {
		op := p.cur().kind
		switch {
		case slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, op):
			p.next()
		case p.skipName("in"):
			op = "in"
		case p.isName("not") && p.behind("name") && p.toks[p.at+1].val == "in":
			p.at += 2
			op = "not in"
		default:
			if len(c.ops) == 0 {
				return c.first
			}
			return c
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
}

// chain reads operators of one precedence, from the left.
func (p *parser) chain(operand func() expr, ops ...string) expr {
	e := operand()
	for slices.Contains(ops, p.cur().kind) || p.is("name") && slices.Contains(ops, p.cur().val) {
		op := p.next()
		e = &binary{cmp.Or(op.val, op.kind), e, operand()}
	}
	return e
}

func (p *parser) sum() expr { return p.chain(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := p.product()
	if !p.is("~") {
		return e
	}
	c := &concat{parts: []expr{e}}
	for p.skip("~") {
		c.parts = append(c.parts, p.product())
	}
	return c
}

func (p *parser) product() expr { return p.chain(p.power, "*", "/", "//", "%") }
func (p *parser) power() expr   { return p.chain(func() expr { return p.unary(true) }, "**") }

// unary reads a value with its sign and what follows it; filters and tests bind tighter than every operator but a sign.
func (p *parser) unary(withFilters bool) expr {
	var e expr
	if p.is("-") || p.is("+") {
		p.enter()
		defer p.leave()
		negative := p.next().kind == "-"
		e = &minus{negative, p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	for withFilters {
		switch {
		case p.skip("|"):
			e = p.filter(e)
		case p.isName("is"):
			e = p.test(e)
		case p.is("("):
			e = &call{e, p.callArgs()}
		default:
			return e
		}
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case "name":
		if v, ok := words[t.val]; ok {
			return &constant{v}
		}
		p.names.read(t.val)
		for _, m := range p.macros {
			m.caller = m.caller || t.val == "caller"
			if (t.val == "kwargs" || t.val == "varargs") && !slices.Contains(m.params, t.val) {
				p.fail(tandem.Unsupported, "tandem does not know %s of a macro", t.val)
			}
		}
		return &variable{t.val}
	case "string":
		s := t.val
		if p.is("string") {
			var b strings.Builder
			for b.WriteString(s); p.is("string"); {
				b.WriteString(p.next().val)
			}
			s = b.String()
		}
		return &constant{lit(s)}
	case "number":
		return &constant{t.num}
	case "(":
		items, several := p.items(p.expression, "")
		p.want(")")
		if !several && len(items) == 1 {
			return items[0]
		}
		return &listing{items, true}
	case "[":
		return &listing{items: p.until("]", p.expression)}
	case "{":
		return p.mapping()
	}
	p.at--
	p.fail(tandem.Invalid, "want an expression, not %s", p.cur())
	return nil
}

// until reads elements with commas between them, of which the last may have one behind it, and the closing bracket.
func (p *parser) until(end string, read func() expr) (out []expr) {
	for !p.is(end) {
		if len(out) > 0 {
			if p.want(","); p.is(end) {
				break
			}
		}
		out = append(out, read())
	}
	p.next()
	return out
}

func (p *parser) mapping() expr {
	m := &mapping{}
	p.until("}", func() expr {
		m.keys = append(m.keys, p.expression())
		p.want(":")
		m.vals = append(m.vals, p.expression())
		return nil
	})
	return m
}

// postfix reads attributes, subscripts and calls.
func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.skip("."):
			if p.is("name") {
				e = &attribute{e, p.next().val}
				continue
			}
			t := p.want("number")
			if _, fraction := t.num.(float64); fraction {
				p.fail(tandem.Invalid, "a fraction cannot stand behind a dot")
			}
			e = &subscript{e, &constant{t.num}}
		case p.skip("["):
			e = p.subscript(e)
		case p.is("("):
			e = &call{e, p.callArgs()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expr) expr {
	key := p.slice(of)
	if p.is(",") {
		p.fail(tandem.Unsupported, "tandem does not know several keys in brackets")
	}
	p.want("]")
	if s, ok := key.(*slicing); ok {
		return s
	}
	return &subscript{of, key}
}

// slice reads one subscript: an expression or from:to:step.
func (p *parser) slice(of expr) expr {
	part := func() expr {
		if p.is(":") || p.is("]") || p.is(",") {
			return nil
		}
		return p.expression()
	}
	from := part()
	if !p.is(":") {
		p.invalidIf(from == nil, "want an expression, not %s", p.cur())
		return from
	}
	p.next()
	s := &slicing{of: of, from: from, to: part()}
	if p.skip(":") {
		s.step = part()
	}
	return s
}

func (p *parser) callArgs() callArgs {
	var a callArgs
	wrong := func(is bool) {
		p.invalidIf(is, "the values of a call stand in the wrong order: want values, names=values, *list, **dict")
	}
	p.want("(")
	for first := true; !p.is(")"); first = false {
		if !first {
			if p.want(","); p.is(")") {
				break
			}
		}
		switch {
		case p.is("*"):
			wrong(a.list != nil || a.pairs != nil)
			p.next()
			a.list = p.expression()
		case p.is("**"):
			wrong(a.pairs != nil)
			p.next()
			a.pairs = p.expression()
		case p.is("name") && p.behind("="):
			wrong(a.pairs != nil)
			name := p.next().val
			p.invalidIf(slices.Contains(a.names, name), "%s is given twice in a call", short(name))
			p.next()
			a.names = append(a.names, name)
			a.vals = append(a.vals, p.expression())
		default:
			wrong(a.list != nil || a.pairs != nil || len(a.names) > 0)
			a.pos = append(a.pos, p.expression())
		}
	}
	p.next()
	return a
}

// dotted reads the name of a filter or test.
func (p *parser) dotted() string {
	name := p.want("name").val
	for p.skip(".") {
		name += "." + p.want("name").val
	}
	return name
}

// filter reads the name and values of a filter. One that is not known is refused, unless it may never be reached.
func (p *parser) filter(of expr) expr {
	f := &applied{of: of, name: p.dotted()}
	if filters[f.name] == nil {
		p.notKnown(noFilter(f.name))
	}
	if p.is("(") {
		f.args = p.callArgs()
	}
	return f
}

func (p *parser) test(of expr) expr {
	p.next()
	not := p.skipName("not")
	t := &applied{of: of, test: true, name: p.dotted()}
	if tests[t.name] == nil {
		p.notKnown(noTest(t.name))
	}
	switch p.cur().kind {
	case "(":
		t.args = p.callArgs()
	case "name", "string", "number", "[", "{":
		if p.isName("else") || p.isName("or") || p.isName("and") {
			break
		}
		p.invalidIf(p.isName("is"), "a test cannot follow a test: want parentheses around the first")
		t.args.pos = []expr{p.postfix(p.primary())}
	}
	if not {
		return &negation{t}
	}
	return t
}
