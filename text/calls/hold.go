package calls

import (
	"slices"
	"strings"
)

// opens begins to read what may be a call: a mark is next.
func (r *Reader) opens() {
	r.at, r.lead, r.closers, r.fenced, r.begun, r.call, r.ready = opener{}, 0, nil, "", false, call{}, nil
	r.pos, r.seen, r.found, r.reading, r.state = 0, 0, 0, true, (*Reader).leads
}

// leads is the state within the marks that open a call: one may be written twice, or within another, or within a fence.
func (r *Reader) leads() bool {
	rest := r.rest()
	if r.lead > 0 {
		if rest = r.skip(); rest == "" && !r.ended {
			return false
		}
	}
	m, part := r.match(rest)
	switch {
	case part:
		return false
	case m.is == fenceMark && r.fenced == "":
		run, n, wait := r.info(rest)
		if wait {
			return false
		}
		if r.lead = r.pos + len(run); n < 0 {
			return r.no()
		}
		if r.fenced = run; n == 0 {
			return r.no()
		}
		r.pos += n
		r.closers = append(r.closers, r.fenced)
	case m.is == openMark, m.is == leadMark:
		r.pos += len(m.text)
		r.lead = r.pos
		if m.is == openMark {
			r.at = m.opener
			if m.close != "" && !slices.Contains(r.closers, m.close) {
				r.closers = append(r.closers, m.close)
			}
		}
		if m.is == openMark && m.syntax != object && m.syntax != pairs {
			r.reads(m.syntax)
		}
	case r.at.mark != "":
		if r.past && r.emptied(rest) {
			return true
		}
		r.reads(r.at.syntax)
	case r.fenced != "":
		r.at.soft = true
		r.state = (*Reader).inObject
	case r.past: // a mark between calls, or behind them
		r.drop(r.lead)
		r.state = (*Reader).text
	default:
		return r.no()
	}
	return true
}

// emptied drops marks of a call behind another one, between which nothing stands.
func (r *Reader) emptied(rest string) bool {
	n := 0
	if r.at.close != "" && strings.HasPrefix(rest, r.at.close) {
		n = len(r.at.close)
	}
	if n == 0 && rest != "" {
		return false
	}
	r.drop(r.pos + n)
	r.state = (*Reader).text
	return true
}

// info returns the backquotes or tildes of a fence, and the length of its first line up to what may be a call; 0 if none can stand in the
// fence, below 0 if it is no fence but code within a line. wait: more of it is needed.
func (r *Reader) info(s string) (run string, n int, wait bool) {
	run = s[:len(s)-len(strings.TrimLeft(s, s[:1]))]
	at := strings.IndexAny(s[len(run):], "\n{[<`")
	switch {
	case at < 0 && len(s) < maxInfo:
		return run, 0, !r.ended
	case at < 0:
		return run, 0, false
	case s[len(run)+at] == '`':
		return run, -1, false
	case s[len(run)+at] == '\n':
		at++
	}
	return run, len(run) + at, false
}

const maxInfo = 100 // bytes of a fence's first line

// reads sets the state in which a call of a syntax is read.
func (r *Reader) reads(s syntax) {
	r.state = [...]func(*Reader) bool{object: (*Reader).inObject, named: (*Reader).inNamed, xml: (*Reader).inXML, pairs: (*Reader).inPairs,
		braces: (*Reader).inQuoted, python: (*Reader).inQuoted}[s]
}

// take begins to read a call without a mark, behind which marks may stand.
func (r *Reader) take(o opener, closers []string) {
	r.opens()
	r.at, r.closers = o, closers
	r.reads(o.syntax)
}

// begin takes the name of a tool, and reports whether a call may have it.
func (r *Reader) begin(name string) bool {
	tool := r.tools.find(name)
	switch {
	case tool != nil:
		name = tool.Name
	case name == "" || r.at.soft:
		return false
	}
	r.call.name, r.begun = name, true
	return true
}

// no says that what is read is no call: it is text.
func (r *Reader) no() bool {
	r.state, r.reading = (*Reader).text, false
	if r.spoiled = r.begun; r.spoiled {
		r.until = r.at.close
		if r.fenced != "" && (r.at.mark == "" || r.until == "") {
			r.until = r.fenced
		}
		if r.until == "" {
			r.until = r.at.mark
		}
	}
	n := r.lead
	if n == 0 { // an object without a mark
		n = min(1, len(r.buf))
	}
	if r.fenced != "" && !r.spoiled {
		r.fence = r.fenced
	}
	r.ready = nil
	r.say(n)
	return true
}

// more asks for more of a call; at the end of the output it has broken off.
func (r *Reader) more() bool { return r.ended && r.no() }

// complete takes the calls that are ready. In a thought they wait for its end, which says whether they count.
func (r *Reader) complete() bool {
	if r.kind == Thought && !r.last {
		r.state = (*Reader).held
		return true
	}
	if r.fenced != "" && r.at.mark == "" {
		r.state = (*Reader).fenceEnds
		return true
	}
	r.tell()
	r.drop(r.pos)
	r.state = (*Reader).over
	return true
}

// tell tells calls.
func (r *Reader) tell() {
	for _, c := range r.ready {
		if r.calls++; r.single && r.calls > 1 {
			continue
		}
		r.out = append(r.out, Piece{Begin, r.calls - 1, c.name}, Piece{Arguments, r.calls - 1, c.arguments})
	}
	r.ready, r.past, r.blank, r.space = nil, true, true, r.space[:0]
}

// held is the state within a thought that holds a call. If it is never closed, and the model has ended by itself, the call counts.
func (r *Reader) held() bool {
	switch {
	case !r.ended:
		return false
	case r.cut:
		r.reading = false
		r.say(len(r.buf))
		return false
	}
	r.last, r.reading = true, false
	r.pos, r.state = 0, (*Reader).text
	return true
}

// fenceEnds is the state behind a call in a fence: the fence holds nothing else.
func (r *Reader) fenceEnds() bool {
	rest := r.skip()
	switch {
	case strings.HasPrefix(rest, "}"): // a brace too many is a common slip
		r.pos++
		return true
	case strings.HasPrefix(rest, r.fenced), rest == "" && r.ended && !r.cut:
		r.tell()
		r.drop(r.pos)
		r.state = (*Reader).over
		return true
	case rest == "" || strings.HasPrefix(r.fenced, rest):
		return r.more()
	}
	if n, wait := r.next(rest); n > 0 {
		r.pos += n - 1
		r.call, r.state = call{}, (*Reader).inObject
		return true
	} else if wait {
		return r.more()
	}
	return r.no()
}

// next returns how many bytes of s lead to another object, and include its brace; 0 for none. wait: more of s may lead to one.
func (r *Reader) next(s string) (n int, wait bool) {
	rest := strings.TrimLeft(s, space)
	if rest != "" && (rest[0] == ';' || rest[0] == ',') { // Llama 3 writes "; " between calls
		rest = strings.TrimLeft(rest[1:], space)
	}
	if strings.HasPrefix(rest, "{") {
		return len(s) - len(rest) + 1, false
	}
	return 0, rest == "" && len(s) < maxName
}

// over is the state behind a call: its closing marks, another object that names a tool, or text.
func (r *Reader) over() bool {
	rest := r.skip()
	if rest == "" {
		if r.ended {
			r.ends()
			return true
		}
		return false
	}
	marks := slices.Concat(r.closers, r.f.dropped)
	if r.at.syntax == named && !r.call.shut {
		marks = append(marks, "```") // a fence is around DeepSeek's arguments
	}
	for i, m := range marks {
		switch {
		case strings.HasPrefix(rest, m):
			r.drop(r.pos + len(m))
			r.call.shut = r.call.shut || i < len(r.closers)
			if m == r.fenced { // another one opens a fence
				r.closers = slices.Delete(slices.Clone(r.closers), i, i+1)
			}
			return true
		case !r.ended && strings.HasPrefix(m, rest):
			return false
		}
	}
	if rest[0] == '}' && (len(r.closers) > 0 || r.call.double) { // a brace too many is a common slip
		r.drop(r.pos + 1)
		return true
	}
	if r.at.syntax == object && !r.call.list && !r.call.shut {
		n, wait := r.next(rest)
		switch {
		case n > 0:
			at := r.pos
			r.take(opener{close: r.at.close, soft: true}, r.closers)
			r.pos = at + n - 1
			r.lead = r.pos
			return true
		case wait && !r.ended:
			return false
		case wait:
			r.pos = len(r.buf)
		}
	}
	r.ends()
	return true
}

// ends leaves a call.
func (r *Reader) ends() {
	r.drop(r.pos)
	r.state = (*Reader).text
}

// find returns where mark stands in what is not read yet, -1 if it does not. Another search goes on where this one ended.
func (r *Reader) find(mark string) int {
	r.found = max(r.found, r.pos)
	i := strings.Index(r.buf[r.found:], mark)
	if i < 0 {
		r.found = max(r.found, len(r.buf)-len(mark)+1)
		return -1
	}
	r.found += i
	return r.found - r.pos
}
