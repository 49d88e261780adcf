package chat

import (
	"github.com/nikolalohinski/gonja/v2/tokens"

	"github.com/tandem-llm/tandem"
)

// Jinja syntax that gonja's grammar lacks is rewritten, token by token, into syntax that it has.

// choose is the function that stands for a conditional expression; no source can spell it.
const choose = " if"

// conditionals rewrites every "x if c else y" into a call choose(c, x, y), because gonja knows conditionals
// only as a whole {{ }} or right side of a set.
func conditionals(in []*tokens.Token) []*tokens.Token {
	out := make([]*tokens.Token, 0, len(in))
	for i := 0; i < len(in); i++ {
		t := in[i]
		out = append(out, t)
		if t.Type != tokens.VariableBegin && t.Type != tokens.BlockBegin {
			continue
		}
		j := i + 1
		for in[j].Type != tokens.VariableEnd && in[j].Type != tokens.BlockEnd {
			j++ // the lexer has made sure that there is one
		}
		tag := in[i+1 : j]
		switch {
		case t.Type == tokens.VariableBegin:
			out = choice(out, tag, 0)
		case len(tag) > 0 && (tag[0].Val == "for" || tag[0].Val == "macro"): // their if and commas belong to no expression
			out = inBrackets(append(out, tag[0]), tag[1:], 0)
		case len(tag) > 0:
			out = segments(append(out, tag[0]), tag[1:], 0)
		}
		i = j - 1
	}
	return out
}

// segments rewrites each part between commas, colons and assignments.
func segments(out, in []*tokens.Token, depth int) []*tokens.Token {
	open, from := 0, 0
	for i, t := range in {
		switch open += opens(t); {
		case open == 0 && (t.Type == tokens.Comma || t.Type == tokens.Colon || t.Type == tokens.Assign):
			out = append(choice(out, in[from:i], depth), t)
			from = i + 1
		}
	}
	return choice(out, in[from:], depth)
}

// choice rewrites one expression.
func choice(out, in []*tokens.Token, depth int) []*tokens.Token {
	if len(in) > 0 && depth > maxNest {
		(&run{line: in[0].Line}).fail(tandem.Invalid, "more than %d conditionals and brackets inside one another", maxNest)
	}
	first := func(word string, from int) int {
		open := 0
		for i := from; i < len(in); i++ {
			if open += opens(in[i]); open == 0 && in[i].Type == tokens.Name && in[i].Val == word &&
				(i == 0 || in[i-1].Type != tokens.Dot) {
				return i
			}
		}
		return -1
	}
	ifAt := first("if", 0)
	if ifAt <= 0 {
		return inBrackets(out, in, depth)
	}
	elseAt, end := first("else", ifAt), len(in)
	if elseAt < 0 {
		elseAt = end
	}
	at := in[ifAt]
	mark := func(t tokens.Type, val string) *tokens.Token {
		return &tokens.Token{Type: t, Val: val, Pos: at.Pos, Line: at.Line}
	}
	out = append(out, mark(tokens.Name, choose), mark(tokens.LeftParenthesis, "("))
	out = inBrackets(out, in[ifAt+1:elseAt], depth)
	out = inBrackets(append(out, mark(tokens.Comma, ",")), in[:ifAt], depth)
	if elseAt < end {
		out = choice(append(out, mark(tokens.Comma, ",")), in[elseAt+1:], depth+1)
	}
	return append(out, mark(tokens.RightParenthesis, ")"))
}

// inBrackets rewrites the contents of the outermost brackets of in.
func inBrackets(out, in []*tokens.Token, depth int) []*tokens.Token {
	open, from := 0, 0
	for i, t := range in {
		step := opens(t)
		open += step
		switch {
		case step > 0 && open == 1:
			out = append(out, t)
			from = i + 1
		case step < 0 && open == 0:
			out = append(segments(out, in[from:i], depth+1), t)
		case open == 0:
			out = append(out, t)
		}
	}
	return out
}

func opens(t *tokens.Token) int {
	switch t.Type {
	case tokens.LeftParenthesis, tokens.LeftBracket, tokens.LeftBrace:
		return 1
	case tokens.RightParenthesis, tokens.RightBracket, tokens.RightBrace:
		return -1
	}
	return 0
}

// operands puts the right side of every "in" into parentheses: gonja takes it for a single name or literal, and so
// reads "x in a|lower" as "(x in a)|lower".
func operands(in []*tokens.Token) []*tokens.Token {
	out := make([]*tokens.Token, 0, len(in))
	mark := func(t tokens.Type, val string, at *tokens.Token) {
		out = append(out, &tokens.Token{Type: t, Val: val, Pos: at.Pos, Line: at.Line})
	}
	var open []int // the depths at which a right side is open
	depth := 0
	for _, t := range in {
		step := opens(t)
		for len(open) > 0 && open[len(open)-1] == depth && (step < 0 || endsOperand(t)) {
			mark(tokens.RightParenthesis, ")", t)
			open = open[:len(open)-1]
		}
		depth += step
		out = append(out, t)
		if t.Type == tokens.In {
			mark(tokens.LeftParenthesis, "(", t)
			open = append(open, depth)
		}
	}
	return out
}

func endsOperand(t *tokens.Token) bool {
	switch t.Type {
	case tokens.Name:
		return t.Val == "if" || t.Val == "else" || t.Val == "recursive"
	case tokens.And, tokens.Or, tokens.Not, tokens.In, tokens.Is, tokens.Equals, tokens.Ne, tokens.LowerThan,
		tokens.LowerThanOrEqual, tokens.GreaterThan, tokens.GreaterThanOrEqual, tokens.Comma, tokens.Colon, tokens.Assign,
		tokens.VariableEnd, tokens.BlockEnd:
		return true
	}
	return false
}
