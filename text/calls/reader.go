package calls

import "strings"

const space = " \t\r\n"

// Reader takes one output apart. Not safe for concurrent use.
type Reader struct {
	f      *Format
	tools  Tools
	single bool

	buf   string // what is not decided yet
	ended bool   // no more comes
	state func(*Reader) bool
	out   []Piece

	at     opener // of the call that is read
	mark   string // that opened it
	behind string // what was read since, in case that it is no call
	broken string // the closing marker of a call that has broken off
	calls  int    // that have begun
	begun  bool   // the call that is read has
	space  string // that belongs to the text if more text follows
	answer bool   // text of the answer has come
	past   bool   // calls have ended here: space before further text is not told

	call call
}

// Options are those of one output.
type Options struct {
	Tools    Tools // that may be called; none: calls are not looked for
	Thinking bool  // the output begins within a thought: see Format.Thinks
	Single   bool  // calls after the first are dropped
}

// Reader returns a reader of one output.
func (f *Format) Reader(o Options) *Reader {
	r := &Reader{f: f, tools: o.Tools, single: o.Single, state: (*Reader).first}
	switch {
	case f.channel:
		r.state = (*Reader).header
	case o.Thinking:
		r.state = (*Reader).inThought
		r.call.lead = true
	}
	return r
}

// Calls returns how many calls have begun so far.
func (r *Reader) Calls() int { return r.calls }

// Read takes the next part of the output, and returns what it adds. The pieces are valid until the next call.
func (r *Reader) Read(s string) []Piece {
	r.buf += s
	return r.run()
}

// End says that no more comes, and returns what is left.
func (r *Reader) End() []Piece {
	r.ended = true
	return r.run()
}

func (r *Reader) run() []Piece {
	r.out = r.out[:0]
	for r.state(r) {
	}
	return r.out
}

// emit adds a piece, to the last one if it is of the same kind.
func (r *Reader) emit(k Kind, s string) {
	if s == "" && k != Begin {
		return
	}
	call := 0
	if k == Begin || k == Arguments {
		if call = r.calls - 1; r.single && call > 0 {
			return
		}
	}
	if n := len(r.out); n > 0 && k != Begin && r.out[n-1].Kind == k && r.out[n-1].Call == call {
		r.out[n-1].Text += s
		return
	}
	r.out = append(r.out, Piece{k, call, s})
}

// say adds text or a thought. Space at its end waits for what follows.
func (r *Reader) say(k Kind, s string) {
	if r.call.lead { // space at the beginning of a thought, and behind one, is the template's
		if s = strings.TrimLeft(s, space); s == "" {
			return
		}
		r.call.lead = false
	}
	body := strings.TrimRight(s, space)
	if body == "" {
		r.space += s
		return
	}
	if r.past && k == Text {
		r.space, r.past = "", false
		if r.answer {
			r.space = "\n"
		}
		body = strings.TrimLeft(body, space)
	}
	if k == Text {
		r.answer = true
	}
	r.emit(k, r.space+body)
	r.space = s[len(strings.TrimRight(s, space)):]
}

// first is the state before the answer: a thought, calls, or text may come.
func (r *Reader) first() bool {
	trimmed := strings.TrimLeft(r.buf, space)
	if trimmed == "" && !r.ended {
		return false
	}
	offered := len(r.tools) > 0
	switch {
	case offered && r.f.bare && strings.HasPrefix(trimmed, "{"):
		r.take(opener{soft: true}, r.buf[:len(r.buf)-len(trimmed)], trimmed)
	case offered && r.f.bare && strings.HasPrefix(trimmed, "["), offered && r.f.python && strings.HasPrefix(trimmed, "["):
		inner := strings.TrimLeft(trimmed[1:], space)
		switch {
		case inner == "" && !r.ended:
			return false
		case strings.HasPrefix(inner, "{"):
			r.take(opener{soft: true}, r.buf[:len(r.buf)-len(trimmed)], trimmed)
		case r.f.python:
			r.take(opener{syntax: python, soft: true}, r.buf[:len(r.buf)-len(trimmed)], trimmed)
		default:
			r.state = (*Reader).text
		}
	default:
		r.state = (*Reader).text
	}
	return true
}

// text is the state within the answer.
func (r *Reader) text() bool {
	at, mark := -1, ""
	var is any
	look := func(m string, what any) {
		if i := strings.Index(r.buf, m); m != "" && i >= 0 && (at < 0 || i < at || i == at && len(m) > len(mark)) {
			at, mark, is = i, m, what
		}
	}
	look(r.f.think[0], thinkMark)
	if len(r.tools) > 0 {
		for _, o := range r.f.openers {
			look(o.mark, o)
		}
		for _, m := range r.f.dropped {
			look(m, dropMark)
		}
		look(r.broken, dropMark)
	}
	if at < 0 {
		keep := r.partial()
		r.say(Text, r.buf[:len(r.buf)-keep])
		r.buf = r.buf[len(r.buf)-keep:]
		if r.ended && !r.past {
			r.emit(Text, r.space)
			r.space = ""
		}
		return false
	}
	if keep := r.partial(); keep > 0 && !r.ended && len(r.buf)-keep <= at { // a longer marker may begin here
		return false
	}
	before, rest := r.buf[:at], r.buf[at+len(mark):]
	r.say(Text, before)
	r.buf = rest
	switch is := is.(type) {
	case opener:
		r.take(is, mark, rest)
	case marker:
		if is == thinkMark {
			r.state, r.call.lead, r.space = (*Reader).inThought, true, ""
		} else {
			r.past = true
		}
	}
	return true
}

// marker is a marker other than a call's.
type marker uint8

const (
	thinkMark marker = iota
	dropMark
)

// partial returns the length of the longest end of the buffer that may be the beginning of a marker.
func (r *Reader) partial() (n int) {
	if r.ended {
		return 0
	}
	look := func(m string) { n = max(n, overlap(r.buf, m)) }
	look(r.f.think[0])
	if len(r.tools) > 0 {
		for _, o := range r.f.openers {
			look(o.mark)
		}
		for _, m := range r.f.dropped {
			look(m)
		}
		look(r.broken)
	}
	return n
}

// overlap returns how many bytes at the end of s are the beginning of mark, but not all of it.
func overlap(s, mark string) int {
	for n := min(len(mark)-1, len(s)); n > 0; n-- {
		if strings.HasSuffix(s, mark[:n]) {
			return n
		}
	}
	return 0
}

// inThought is the state within a thought.
func (r *Reader) inThought() bool {
	before, rest, ends := strings.Cut(r.buf, r.f.think[1])
	if !ends {
		keep := 0
		if !r.ended {
			keep = overlap(r.buf, r.f.think[1])
		}
		r.say(Thought, r.buf[:len(r.buf)-keep])
		r.buf = r.buf[len(r.buf)-keep:]
		return false
	}
	r.say(Thought, before)
	r.buf, r.space, r.call.lead = rest, "", true
	r.state = (*Reader).behindThought
	return true
}

// behindThought is the state behind a thought: space is not the answer's, and calls may begin as at the beginning.
func (r *Reader) behindThought() bool {
	if r.buf = strings.TrimLeft(r.buf, space); r.buf == "" {
		return false
	}
	r.call.lead = false
	r.state = (*Reader).first
	if r.answer {
		r.state = (*Reader).text
	}
	return true
}

// take begins to read a call that is opened by mark, with rest behind it.
func (r *Reader) take(o opener, mark, rest string) {
	r.at, r.mark, r.behind, r.buf, r.begun = o, mark, "", rest, false
	r.call = call{}
	r.state = [...]func(*Reader) bool{object: (*Reader).inObject, named: (*Reader).inNamed, xml: (*Reader).inXML, pairs: (*Reader).inPairs,
		braces: (*Reader).inWhole, python: (*Reader).inWhole}[o.syntax]
}

// consume moves n bytes out of the buffer, and keeps them while the call may turn out to be none.
func (r *Reader) consume(n int) string {
	s := r.buf[:n]
	if !r.begun {
		r.behind += s
	}
	r.buf = r.buf[n:]
	return s
}

// skip consumes space.
func (r *Reader) skip() { r.consume(len(r.buf) - len(strings.TrimLeft(r.buf, space))) }

// begin tells the beginning of a call. It reports whether that is one.
func (r *Reader) begin(name string) bool {
	tool := r.tools.find(name)
	switch {
	case tool != nil:
		name = tool.Name
	case name == "" || r.at.soft:
		return false
	}
	r.calls++
	r.begun, r.behind = true, ""
	r.space = ""
	r.emit(Begin, name)
	return true
}

// no says that what has been read is no call, or that the rest of it is none: it is text.
func (r *Reader) no() bool {
	r.state = (*Reader).text
	if r.begun {
		r.broken, r.past, r.begun = r.at.close, true, false
		return true
	}
	r.buf, r.behind = r.behind+r.buf, ""
	n := 0
	if r.at.mark == "" { // a bare object
		n = min(1, len(r.buf))
	}
	r.say(Text, r.mark+r.buf[:n])
	r.buf = r.buf[n:]
	return true
}

// more asks for more of a call; at the end of the output the call has broken off.
func (r *Reader) more() bool { return r.ended && r.no() }

// over is the state behind a call: its closing marker, another object that names a tool, or text.
func (r *Reader) over() bool {
	rest := strings.TrimLeft(r.buf, space)
	if r.at.close == "" && r.call.double { // no marker says where the braces end
		if r.buf = strings.TrimLeft(rest, "}"+space); r.buf == "" && !r.ended {
			return false
		}
		rest = r.buf
	}
	for _, m := range []string{"}", "```", r.at.close} { // a brace too many is a common slip; a fence closes DeepSeek's arguments
		switch {
		case m == "" || r.at.close == "":
		case strings.HasPrefix(rest, m):
			rest = strings.TrimLeft(rest[len(m):], space)
			if m == "}" && strings.HasPrefix(rest, m) {
				rest = strings.TrimLeft(rest, "}"+space)
			}
			if m == r.at.close {
				r.buf = rest
				if r.at.syntax == xml && strings.HasPrefix(r.mark, hermes.mark) {
					r.at.close, r.mark = hermes.close, "" // which may be missing
					return true
				}
				return r.ends()
			}
		case !r.ended && strings.HasPrefix(m, rest):
			return false
		}
	}
	if r.buf = rest; r.at.syntax == object && !r.call.list && !r.single {
		switch {
		case rest == "" && !r.ended:
			return false
		case strings.HasPrefix(rest, "{"):
			r.past, r.space = true, ""
			r.take(opener{close: r.at.close, soft: true}, "", rest)
			return true
		}
	}
	return r.ends()
}

// ends leaves a call.
func (r *Reader) ends() bool {
	r.past, r.space, r.begun = true, "", false
	r.state = (*Reader).text
	return true
}
