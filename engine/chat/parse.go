package chat

import (
	"errors"
	"fmt"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"github.com/tandem-llm/tandem"
)

// parse turns a source into gonja's tree, with this package's statements in it.
func parse(source string) (body []nodes.Node, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			body, err = nil, p.err
		default: // gonja's parser dereferences nil on some incomplete expressions
			body, err = nil, tandem.Errorf(op, tandem.Invalid, "the chat template cannot be parsed: %.200s", fmt.Sprint(p))
		}
	}()
	stream := tokens.NewStream(operands(conditionals(lex(source))))
	g := &grammar{}
	g.whole = parser.NewParser("chat_template", stream, config.New(), nil, g)
	tree, err := g.whole.Parse()
	if err == nil {
		return tree.Nodes, nil
	}
	var ours *tandem.Error
	var syntax *parser.SyntaxError
	switch {
	case errors.As(err, &ours):
		return nil, ours
	case errors.As(err, &syntax):
		return nil, tandem.Errorf(op, tandem.Invalid, "template line %d: %.200s, near %.40q", syntax.Line, syntax.Message, syntax.Raw)
	}
	return nil, tandem.Errorf(op, tandem.Invalid, "the chat template cannot be parsed: %.200s", err)
}

// The statements. Each holds expressions and bodies as gonja's nodes.
type (
	place   struct{ at *tokens.Token }
	ifBlock struct {
		place
		branches []branch
	}
	branch struct {
		cond nodes.Expression // nil: else
		body []nodes.Node
	}
	forLoop struct {
		place
		targets    []string
		over       nodes.Expression
		cond       nodes.Expression // nil: all
		body, none []nodes.Node
	}
	set struct {
		place
		targets []string
		attr    string           // of the single target, a namespace; "" for none
		value   nodes.Expression // nil: the text of body
		body    []nodes.Node
	}
	macroDef struct {
		place
		name   string
		params []string
		values []nodes.Expression // defaults; nil: undefined
		body   []nodes.Node
	}
	block struct { // generation
		place
		body []nodes.Node
	}
	jump struct {
		place
		to flow
	}
)

// flow is how a body ended.
type flow uint8

const (
	onward flow = iota
	breaks
	continues
)

func (p place) Position() *tokens.Token { return p.at }
func (p place) String() string          { return fmt.Sprintf("statement at line %d", p.at.Line) }

// grammar gives gonja the parsers of the statements. It belongs to one parse.
type grammar struct {
	whole *parser.Parser // of the whole template
	depth int            // of blocks
}

// Get implements parser.ControlStructureGetter.
func (g *grammar) Get(name string) (parser.ControlStructureParser, bool) {
	parse, known := map[string]func(*grammar, place, *parser.Parser, *parser.Parser) nodes.ControlStructure{
		"if": (*grammar).parseIf, "for": (*grammar).parseFor, "set": (*grammar).parseSet, "macro": (*grammar).parseMacro,
		"generation": (*grammar).parseGeneration, "break": parseJump(breaks), "continue": parseJump(continues),
	}[name]
	at := place{g.whole.Current()} // the token after the name, in the same tag
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		switch {
		case !known && misplaced[name]:
			g.fail(at, tandem.Invalid, "{%% %s %%} without an open block", name)
		case !known:
			g.fail(at, tandem.Unsupported, "{%% %.40s %%} is not a statement that tandem runs (it runs if, for, set, macro, break, "+
				"continue, generation, raw): give another template with --chat-template", name)
		}
		if g.depth++; g.depth > maxNest {
			g.fail(at, tandem.Invalid, "more than %d blocks inside one another", maxNest)
		}
		defer func() { g.depth-- }()
		return parse(g, at, p, args), nil
	}, true
}

var misplaced = map[string]bool{"": true, "else": true, "elif": true, "endif": true, "endfor": true, "endset": true,
	"endmacro": true, "endgeneration": true, "endraw": true}

func (g *grammar) fail(at place, k tandem.Kind, format string, args ...any) {
	line := 0
	if at.at != nil {
		line = at.at.Line
	}
	(&run{line: line}).fail(k, format, args...)
}

func (g *grammar) check(at place, err error) {
	var syntax *parser.SyntaxError
	switch {
	case errors.As(err, &syntax):
		g.fail(at, tandem.Invalid, "%.200s, near %.40q", syntax.Message, syntax.Raw)
	case err != nil:
		g.fail(at, tandem.Invalid, "%.200s", err)
	}
}

func (g *grammar) expression(at place, args *parser.Parser) nodes.Expression {
	e, err := args.ParseExpression()
	g.check(at, err)
	return e
}

func (g *grammar) end(at place, args *parser.Parser) {
	if !args.End() {
		g.fail(at, tandem.Invalid, "unexpected %.40q in this tag", args.Current().Val)
	}
}

// until parses up to one of ends and returns which one it was, with its arguments.
func (g *grammar) until(at place, p *parser.Parser, ends ...string) (body []nodes.Node, end string, args *parser.Parser) {
	w, args, err := p.WrapUntil(ends...)
	g.check(at, err)
	return w.Nodes, w.EndTag, args
}

func (g *grammar) name(at place, args *parser.Parser) string {
	t := args.Match(tokens.Name)
	if t == nil {
		g.fail(at, tandem.Invalid, "want a name, not %.40q", args.Current().Val)
	}
	return t.Val
}

func (g *grammar) parseIf(at place, p, args *parser.Parser) nodes.ControlStructure {
	n := &ifBlock{place: at}
	for end := "elif"; end != "endif"; {
		b := branch{}
		if last := len(n.branches) - 1; last >= 0 && n.branches[last].cond == nil {
			g.fail(at, tandem.Invalid, "{%% %s %%} follows {%% else %%}", end)
		}
		if end == "elif" {
			b.cond = g.expression(at, args)
		}
		g.end(at, args)
		b.body, end, args = g.until(at, p, "elif", "else", "endif")
		n.branches = append(n.branches, b)
	}
	g.end(at, args)
	return n
}

func (g *grammar) parseFor(at place, p, args *parser.Parser) nodes.ControlStructure {
	n := &forLoop{place: at}
	paren := args.Match(tokens.LeftParenthesis) != nil
	n.targets = g.names(at, args)
	if paren && args.Match(tokens.RightParenthesis) == nil || args.Match(tokens.In) == nil {
		g.fail(at, tandem.Invalid, "want \"in\" in a loop, not %.40q", args.Current().Val)
	}
	n.over = g.expression(at, args)
	if args.MatchName("if") != nil {
		n.cond = g.expression(at, args)
	}
	if args.MatchName("recursive") != nil {
		g.fail(at, tandem.Unsupported, "a recursive loop is not something that tandem runs")
	}
	g.end(at, args)
	var end string
	if n.body, end, args = g.until(at, p, "else", "endfor"); end == "else" {
		g.end(at, args)
		n.none, _, args = g.until(at, p, "endfor")
	}
	g.end(at, args)
	return n
}

func (g *grammar) names(at place, args *parser.Parser) []string {
	names := []string{g.name(at, args)}
	for args.Match(tokens.Comma) != nil {
		names = append(names, g.name(at, args))
	}
	return names
}

func (g *grammar) parseSet(at place, p, args *parser.Parser) nodes.ControlStructure {
	n := &set{place: at, targets: g.names(at, args)}
	if len(n.targets) == 1 && args.Match(tokens.Dot) != nil {
		n.attr = g.name(at, args)
	}
	if args.Match(tokens.Assign) == nil {
		g.end(at, args)
		n.body, _, args = g.until(at, p, "endset")
		g.end(at, args)
		return n
	}
	first := args.Current()
	n.value = g.expression(at, args)
	if args.Current(tokens.Comma) != nil {
		t := &nodes.Tuple{Location: first, Val: []nodes.Expression{n.value}}
		for args.Match(tokens.Comma) != nil {
			t.Val = append(t.Val, g.expression(at, args))
		}
		n.value = t
	}
	g.end(at, args)
	return n
}

func (g *grammar) parseMacro(at place, p, args *parser.Parser) nodes.ControlStructure {
	n := &macroDef{place: at, name: g.name(at, args)}
	if args.Match(tokens.LeftParenthesis) == nil {
		g.fail(at, tandem.Invalid, "macro %.40s has no parameter list", n.name)
	}
	for args.Match(tokens.RightParenthesis) == nil {
		if len(n.params) > 0 && args.Match(tokens.Comma) == nil {
			g.fail(at, tandem.Invalid, "the parameters of macro %.40s are not separated by commas", n.name)
		}
		n.params = append(n.params, g.name(at, args))
		var value nodes.Expression
		if args.Match(tokens.Assign) != nil {
			value = g.expression(at, args)
		}
		n.values = append(n.values, value)
	}
	g.end(at, args)
	n.body, _, args = g.until(at, p, "endmacro")
	args.Match(tokens.Name) // {% endmacro name %}
	g.end(at, args)
	return n
}

// parseGeneration: {% generation %} marks text for training; it prints its body.
func (g *grammar) parseGeneration(at place, p, args *parser.Parser) nodes.ControlStructure {
	g.end(at, args)
	n := &block{place: at}
	n.body, _, args = g.until(at, p, "endgeneration")
	g.end(at, args)
	return n
}

func parseJump(to flow) func(*grammar, place, *parser.Parser, *parser.Parser) nodes.ControlStructure {
	return func(g *grammar, at place, _, args *parser.Parser) nodes.ControlStructure {
		g.end(at, args)
		return &jump{at, to}
	}
}
