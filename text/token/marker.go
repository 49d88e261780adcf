package token

import (
	"slices"
	"strings"
	"unicode"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// A marker is a token that says who speaks or where a turn ends. Control tokens are markers. Many files give their markers the type
// user-defined, which ordinary text that is always one token also has: runs of spaces, HTML's tags. Three kinds of user-defined
// tokens are markers: those with a special id (bos, eos, eot, eom), those with a marker's shape (shaped), and those that the chat
// template writes, unless they are a plain word, a number, or only space and punctuation.
//
// A marker without a token of its own cannot be told from text: if a template writes "[INST]" and no token stands for it, a
// message with "[INST]" becomes the same tokens.

// html are the names of HTML's elements, whose tags count as text.
var html = func() map[string]bool {
	names := map[string]bool{}
	for _, name := range strings.Fields(`a abbr address area article aside audio b base bdi bdo big blockquote body br button canvas caption
		center cite code col colgroup data datalist dd del details dfn dialog div dl dt em embed fieldset figcaption figure font footer form
		frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html i iframe img input ins kbd label legend li link main map mark math menu
		meta meter nav noscript object ol optgroup option output p param picture pre progress q rp rt ruby s samp script section select
		slot small source span strike strong style sub summary sup svg table tbody td template textarea tfoot th thead time title tr
		track tt u ul var video wbr`) {
		names[name] = true
	}
	return names
}()

// shaped reports whether a user-defined token is written as a marker is: <|anything|> with bars at either end, plain or
// full-width; <name> or </name>, but for the names of HTML; [NAME] or [/NAME] with at least two capitals.
func shaped(piece string) bool {
	p := strings.Trim(piece, " \t\r\n_"+space)
	if inner, ok := within(p, "<", ">"); ok {
		const bars = "|｜"
		if name := strings.Trim(inner, bars); name != inner {
			return name != ""
		}
		inner = strings.Trim(inner, "<>/")
		return named(inner) && !html[strings.ToLower(inner)]
	}
	if inner, ok := within(p, "[", "]"); ok {
		capitals := 0
		for _, c := range inner {
			if unicode.IsUpper(c) {
				capitals++
			}
		}
		return capitals >= 2 && named(strings.TrimPrefix(inner, "/"))
	}
	return false
}

// within returns the text between open and shut, unless that is empty.
func within(s, open, shut string) (inner string, ok bool) {
	if len(s) <= len(open)+len(shut) || !strings.HasPrefix(s, open) || !strings.HasSuffix(s, shut) {
		return "", false
	}
	return s[len(open) : len(s)-len(shut)], true
}

// named reports whether s is a name: a letter, and nothing but letters, digits and what joins them.
func named(s string) bool {
	letter := false
	for _, c := range s {
		letter = letter || unicode.IsLetter(c)
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_-.:|@"+space, c) {
			return false
		}
	}
	return letter
}

// telling reports whether a text that a template writes is more than a word, a number, space or punctuation.
func telling(piece string) bool {
	letter, other := false, false
	for _, c := range piece {
		letter = letter || unicode.IsLetter(c)
		other = other || !unicode.IsLetter(c) && !unicode.IsDigit(c) && !unicode.IsSpace(c) && c != spaceRune
	}
	return letter && other
}

// divide divides the written tokens into markers and others, given a template's source; "" for none.
func (v *Vocab) divide(source string) {
	v.marks, v.others = v.control, v.user
	if v.user == nil {
		return
	}
	wrote := v.writtenIn(source)
	var marks, others []written
	if v.control != nil {
		marks = slices.Clone(v.control.list)
	}
	for _, e := range v.user.list {
		if piece := v.pieces[e.id]; shaped(piece) || e.id == v.bos || slices.Contains(v.declared, e.id) || wrote[e.id] && telling(piece) {
			marks = append(marks, e)
		} else {
			others = append(others, e)
		}
	}
	v.marks, v.others = newTexts(marks), newTexts(others)
}

// writtenIn returns the user-defined tokens that occur in a template's source.
func (v *Vocab) writtenIn(source string) map[tandem.Token]bool {
	wrote := map[tandem.Token]bool{}
	for source != "" {
		at, id, n := v.user.find(source)
		if n == 0 {
			break
		}
		wrote[id] = true
		source = source[at+n:]
	}
	return wrote
}

// isMarker reports whether t is a control or unknown token, or a user-defined marker.
func (v *Vocab) isMarker(t tandem.Token) bool {
	switch {
	case !v.has(t):
		return false
	case v.kinds[t] == control || v.kinds[t] == unknown:
		return true
	}
	return v.kinds[t] == userDefined && v.marks != nil && slices.ContainsFunc(v.marks.list, func(e written) bool { return e.id == t })
}

// readMarkers divides the user-defined tokens and finds the ends of a generation.
func (v *Vocab) readMarkers(*gguf.File) error {
	v.divide("")
	v.findEnds()
	return nil
}

// WithTemplate returns v adapted to a chat template: user-defined tokens in source become markers (see divide). after are the texts that
// the template writes behind the assistant's content, the best evidence first. The first of them that holds markers gives a further end of
// a generation: its first marker, unless a known end follows that at once. The meaning of ids and the Fingerprint stay the same.
func (v *Vocab) WithTemplate(source string, after ...string) *Vocab {
	out := *v
	out.divide(source)
	for _, text := range after {
		tokens := out.EncodeWithControl(text, false)
		from := slices.IndexFunc(tokens, out.isMarker)
		if from < 0 {
			continue
		}
		markers := tokens[from:]
		if n := slices.IndexFunc(markers, func(t tandem.Token) bool { return !out.isMarker(t) }); n > 0 {
			markers = markers[:n]
		}
		if t := markers[0]; !slices.ContainsFunc(markers, out.IsEnd) && !slices.Contains(out.inTurns, t) {
			out.ends = append(slices.Clone(out.ends), t)
		}
		break
	}
	return &out
}
