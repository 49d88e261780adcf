package grammar

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How a regular expression is read.
type reading uint8

const (
	whole  reading = iota // all of the text matches: Spec.Regex, formats
	search                // something in the text matches, and the expression is ECMA's as far as RE2 can say it: pattern
)

// maxProgram bounds a regular expression: its instructions after counts such as {1,1000} are written out.
const maxProgram = 1 << 15

// regex returns the automaton of a regular expression in RE2's syntax, nil if no text matches.
//
// The expression is compiled to a program by the standard library; the states of the automaton are sets of its instructions (Rabin and
// Scott, 1959). ^ and $ hold at the ends of the text. In a search, the set always includes the program's start; after a match everything
// is accepted.
func (b *budget) regex(expression string, how reading) *automaton {
	if how == search {
		expression = fromECMA(expression)
	}
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		large := []syntax.ErrorCode{syntax.ErrInvalidRepeatSize, syntax.ErrLarge, syntax.ErrNestingDepth}
		if e, ok := err.(*syntax.Error); ok && slices.Contains(large, e.Code) {
			panic(tooLarge("%v", err))
		}
		panic(unsupported("%v", err))
	}
	if programSize(re) > maxProgram {
		panic(tooLarge("the regular expression has more than %d instructions", maxProgram))
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		panic(unsupported("%v", err))
	}
	m := &matcher{prog: prog, how: how, seen: [2][]int32{make([]int32, len(prog.Inst)), make([]int32, len(prog.Inst))}}
	al := m.alphabet(b)
	a, _ := explore(b, al, m.close([]uint32{uint32(prog.Start)}, true), func(k string, r rune) (string, bool) {
		b.spend(len(k))
		return m.step(k, r)
	}, func(k string) bool { return k[0] != 0 })
	return a
}

// programSize is the number of instructions of re, about.
func programSize(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		n += programSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return min(n, 2*maxProgram)
}

// matcher runs a program over all texts at once. A state is a string: 1 if the text may end here (2 if anything may follow), and the sorted
// instructions that wait for a character, four bytes each.
type matcher struct {
	prog *syntax.Prog
	how  reading
	seen [2][]int32 // by whether a $ was passed, the last round that visited the instruction
	now  int32
}

// anything is the state of a search that has matched.
const anything = "\x02"

func (m *matcher) alphabet(b *budget) alphabet {
	al, known := everything(), map[string]bool{}
	if m.how == whole {
		al = al.cut(b, []rune{0, 0})
	}
	for i := range m.prog.Inst {
		in := &m.prog.Inst[i]
		set := in.Rune
		switch in.Op {
		case syntax.InstRune, syntax.InstRune1:
			if len(set) == 1 {
				set = nil
				fold := in.Op == syntax.InstRune && syntax.Flags(in.Arg)&syntax.FoldCase != 0
				set = []rune{in.Rune[0], in.Rune[0]}
				for r := unicode.SimpleFold(in.Rune[0]); fold && r != in.Rune[0]; r = unicode.SimpleFold(r) {
					set = append(set, r, r)
				}
				slices.Sort(set)
			}
		case syntax.InstRuneAnyNotNL:
			set = []rune{'\n', '\n'}
			if m.how == search {
				set = []rune{'\n', '\n', '\r', '\r', '\u2028', '\u2029'}
				in.Op, in.Rune = syntax.InstRune, []rune{0, '\t', '\v', '\f', '\r' + 1, '\u2027', '\u202a', utf8.MaxRune}
			}
		default:
			continue
		}
		if len(set) > 0 && !known[string(set)] {
			known[string(set)] = true
			al = al.cut(b, set)
		}
	}
	return al
}

func (m *matcher) step(k string, r rune) (string, bool) {
	switch {
	case k == anything:
		return k, true
	case r == 0 && m.how == whole: // it stands beside the names of control tokens, which match by nothing else
		return "", false
	}
	var seeds []uint32
	for i := 1; i < len(k); i += 4 {
		in := &m.prog.Inst[binary.BigEndian.Uint32([]byte(k[i:i+4]))]
		if in.MatchRune(r) {
			seeds = append(seeds, in.Out)
		}
	}
	if m.how == search {
		seeds = append(seeds, uint32(m.prog.Start))
	}
	k = m.close(seeds, false)
	return k, len(k) > 1 || k[0] != 0
}

// close follows the instructions that read nothing. begin: no character was read before.
func (m *matcher) close(seeds []uint32, begin bool) string {
	m.now++
	var wait []uint32
	accept := byte(0)
	var visit func(pc uint32, ended int)
	visit = func(pc uint32, ended int) {
		if m.seen[ended][pc] == m.now {
			return
		}
		m.seen[ended][pc] = m.now
		switch in := &m.prog.Inst[pc]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			visit(in.Out, ended)
			visit(in.Arg, ended)
		case syntax.InstCapture, syntax.InstNop:
			visit(in.Out, ended)
		case syntax.InstEmptyWidth:
			switch syntax.EmptyOp(in.Arg) {
			case syntax.EmptyBeginText:
				if begin {
					visit(in.Out, ended)
				}
			case syntax.EmptyEndText:
				visit(in.Out, 1)
			default:
				panic(unsupported(`\b, \B, and ^ and $ at the ends of lines`))
			}
		case syntax.InstMatch:
			if accept = max(accept, 1); m.how == search && ended == 0 {
				accept = 2
			}
		case syntax.InstFail:
		default:
			if ended == 0 {
				wait = append(wait, pc)
			}
		}
	}
	for _, pc := range seeds {
		visit(pc, 0)
	}
	if accept == 2 {
		return anything
	}
	slices.Sort(wait)
	k := []byte{accept}
	for _, pc := range wait {
		k = binary.BigEndian.AppendUint32(k, pc)
	}
	return string(k)
}

// fromECMA writes an expression of ECMA-262 so that RE2 reads it: \uXXXX, and \S, which leaves out more kinds of white space.
func fromECMA(e string) string {
	var out strings.Builder
	class := false
	for i := 0; i < len(e); i++ {
		switch c := e[i]; {
		case c == '\\' && i+1 < len(e):
			i++
			switch {
			case e[i] == 'u' && i+4 < len(e) && isHex(e[i+1:i+5]):
				out.WriteString(`\x{` + e[i+1:i+5] + `}`)
				i += 4
			case e[i] == 'S' && !class:
				out.WriteString(`[^\s\v\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}]`)
			default:
				out.WriteString(e[i-1 : i+1])
			}
		default:
			class = c == '[' || class && c != ']'
			out.WriteByte(c)
		}
	}
	return out.String()
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }
