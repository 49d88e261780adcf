package calls

import "strings"

const space = " \t\r\n"

// Reader takes one output apart. Not safe for concurrent use.
//
// Text and thoughts are told as they come. A call is held back, in buf, until it is complete: pos is how far its parser has read. If it
// turns out to be none, its opening mark is text, and what is behind the mark is searched again. Where a call had begun, all up to its
// closing mark is text, for calls that its arguments quote are none. So each byte is read a bounded number of times, however it comes.
type Reader struct {
	f      *Format
	tools  Tools
	single bool
	firsts string // the bytes with which marks begin
	roots  map[string]*schema

	in    strings.Builder // ends with buf
	buf   string          // what is not decided yet
	pos   int             // what the parser of a call has read of it
	seen  int             // what has been searched of it for the end of a thought
	found int             // and for a mark by find
	ended bool            // no more comes
	cut   bool            // and the model did not end by itself
	state func(*Reader) bool
	out   []Piece

	kind    Kind   // of text that is no call: Text or Thought
	last    bool   // the thought is not closed, the model has ended: its calls count
	spoiled bool   // a call has broken off: no others are looked for up to the mark until, which belongs to it if it closes
	until   string // "": up to the end
	fence   string // of code, that is open: its backquotes or tildes
	blank   bool   // of the line only space has come
	space   []byte // that belongs to the text if more text follows
	skips   bool   // space at the beginning of a thought and behind it is not told
	answer  bool   // text of the answer has come
	thought bool   // a thought has come
	behind  bool   // a thought has ended
	past    bool   // calls have ended here: space before further text is not told

	reading bool     // a call, or what may be one
	at      opener   // of the call that is read
	lead    int      // bytes of the marks that opened it
	closers []string // marks that may stand behind it
	fenced  string   // the fence that is all around it
	begun   bool     // it names a tool, or has the keys of a call
	call    call
	ready   []whole // calls that are complete but not told
	calls   int     // that have been told
}

// Options say how one output is read.
type Options struct {
	Tools    Tools // that may be called; none: calls are not looked for
	Thinking bool  // the output begins within a thought: see Format.Thinks
	Text     bool  // the output begins within a text, which no thought begins, and no call without a mark: see Format.Within
	Single   bool  // calls after the first are dropped
}

// Reader returns a reader of one output.
func (f *Format) Reader(o Options) *Reader {
	r := &Reader{f: f, tools: o.Tools, single: o.Single, roots: map[string]*schema{}, blank: true, state: (*Reader).first}
	for _, m := range append(f.marks(), f.think[1], "```", "~~~") {
		if m != "" && strings.IndexByte(r.firsts, m[0]) < 0 {
			r.firsts += m[:1]
		}
	}
	switch {
	case f.channel:
		r.state = (*Reader).header
	case o.Thinking:
		r.think()
	case o.Text:
		r.answer, r.blank, r.state = true, false, (*Reader).text
	}
	return r
}

// marks returns the marks of calls.
func (f *Format) marks() (all []string) {
	for _, o := range f.openers {
		all = append(all, o.mark, o.close)
	}
	return append(all, f.dropped...)
}

// Calls returns how many calls have been told so far.
func (r *Reader) Calls() int { return r.calls }

// Read takes the next part of the output, and returns what it adds. The pieces are valid until the next call.
func (r *Reader) Read(s string) []Piece {
	if r.in.Len() > 2*len(r.buf)+1<<12 {
		r.in.Reset()
		r.in.WriteString(r.buf)
	}
	r.in.WriteString(s)
	all := r.in.String()
	r.buf = all[len(all)-len(r.buf)-len(s):]
	return r.run()
}

// End says that no more comes, and returns what is left. cut: the model did not end the output by itself, it was ended by a limit or by a
// stop sequence of the client.
func (r *Reader) End(cut bool) []Piece {
	r.ended, r.cut = true, cut
	return r.run()
}

// run returns the pieces of what is decided. Neighbours of one kind are one piece.
func (r *Reader) run() []Piece {
	r.out = r.out[:0]
	for r.closed() || r.state(r) {
	}
	merged := r.out[:0]
	for i := 0; i < len(r.out); {
		p, j := r.out[i], i+1
		var texts []string
		for ; j < len(r.out) && p.Kind != Begin && r.out[j].Kind == p.Kind && r.out[j].Call == p.Call; j++ {
			texts = append(texts, r.out[j].Text)
		}
		if texts != nil {
			p.Text += strings.Join(texts, "")
		}
		merged = append(merged, p)
		i = j
	}
	r.out = merged
	return r.out
}

// say tells the first n bytes of the buffer, which are no call. Space at their end waits for what follows.
func (r *Reader) say(n int) {
	s := r.buf[:n]
	r.buf, r.pos, r.seen, r.found = r.buf[n:], 0, 0, 0
	if line := strings.LastIndexByte(s, '\n'); line >= 0 {
		r.blank = strings.Trim(s[line:], space) == ""
	} else {
		r.blank = r.blank && strings.Trim(s, space) == ""
	}
	if r.skips {
		if s = strings.TrimLeft(s, space); s == "" {
			return
		}
		r.skips = false
	}
	body := strings.TrimRight(s, space)
	if body == "" {
		r.space = append(r.space, s...)
		return
	}
	if r.past && r.kind == Text {
		r.space, r.past = r.space[:0], false
		if r.answer {
			r.space = append(r.space, '\n')
		}
		body = strings.TrimLeft(body, space)
	}
	if r.kind == Text {
		r.answer = true
	} else {
		r.thought = true
	}
	r.out = append(r.out, Piece{r.kind, 0, string(r.space) + body})
	r.space = append(r.space[:0], s[len(strings.TrimRight(s, space)):]...)
}

// finish tells space at the end of an answer.
func (r *Reader) finish() bool {
	if r.kind == Text && !r.past && len(r.space) > 0 {
		r.out = append(r.out, Piece{Text, 0, string(r.space)})
	}
	r.space = nil
	return false
}

// drop forgets the first n bytes of the buffer.
func (r *Reader) drop(n int) { r.buf, r.pos, r.seen, r.found = r.buf[n:], 0, 0, 0 }

// rest returns what the parser of a call has not read yet.
func (r *Reader) rest() string { return r.buf[r.pos:] }

// skip reads space, and returns what is behind it.
func (r *Reader) skip() string {
	r.pos = len(r.buf) - len(strings.TrimLeft(r.rest(), space))
	return r.rest()
}

// think begins a thought. Behind another one an empty line keeps them apart.
func (r *Reader) think() {
	r.kind, r.skips, r.space, r.state = Thought, true, r.space[:0], (*Reader).thinks
	if r.thought {
		r.space = append(r.space, "\n\n"...)
	}
}

// thinks is the state at the beginning of a thought: models repeat the mark with which the template has opened it.
func (r *Reader) thinks() bool {
	rest, open := r.skip(), strings.TrimSpace(r.f.think[0])
	switch {
	case strings.HasPrefix(rest, open):
		r.drop(r.pos + len(open))
	case !r.ended && strings.HasPrefix(open, rest):
		return false
	}
	r.state = (*Reader).text
	return true
}

// first is the state before the answer: a thought, calls, or text may come.
func (r *Reader) first() bool {
	rest, open := r.skip(), r.f.think[0]
	offered := len(r.tools) > 0
	switch {
	case !r.ended && (rest == "" || strings.HasPrefix(open, rest) && rest != open):
		return false
	case open != "" && strings.HasPrefix(rest, open):
		r.drop(r.pos + len(open))
		r.think()
		return true
	case !r.ended && r.begins(rest):
		return false
	case r.f.all != "" && strings.HasPrefix(rest, r.f.all):
		r.drop(r.pos + len(r.f.all))
	case offered && r.f.lead && r.names(rest):
		r.take(opener{syntax: named, soft: true}, nil)
		return true
	case offered && r.f.bare && strings.HasPrefix(rest, "{"):
		r.take(opener{soft: true}, nil)
		return true
	case offered && (r.f.bare || r.f.python) && strings.HasPrefix(rest, "["):
		inner := strings.TrimLeft(rest[1:], space)
		switch {
		case inner == "" && !r.ended && len(rest) < maxName:
			return false
		case strings.HasPrefix(inner, "{"):
			r.take(opener{soft: true}, nil)
			return true
		case r.f.python:
			r.take(opener{syntax: python, soft: true}, nil)
			return true
		}
	}
	if r.behind { // space behind a thought is the template's
		r.drop(r.pos)
	}
	r.pos, r.state = 0, (*Reader).text
	return true
}

// begins reports whether an answer so far may be the beginning of what leads one.
func (r *Reader) begins(rest string) bool {
	open := r.f.all != "" && strings.HasPrefix(r.f.all, rest) && rest != r.f.all
	for _, t := range r.tools {
		open = open || r.f.lead && strings.HasPrefix(t.Name+"\n{", strings.TrimRight(rest, " \r")) && len(rest) < len(t.Name)+2
	}
	return open
}

// names reports whether an answer begins with the line of a tool's name and an object.
func (r *Reader) names(rest string) bool {
	name, object, _ := strings.Cut(rest, "\n")
	return strings.HasPrefix(object, "{") && r.tools.find(strings.TrimSpace(name)) != nil
}

// mark is one that text may hold.
type mark struct {
	text string
	is   markKind
	opener
}

type markKind uint8

const (
	noMark    markKind = iota
	thinkMark          // ends a thought
	openMark           // opens a call
	leadMark           // stands before or behind calls, and is dropped there
	closeMark          // closes a call
	fenceMark          // of code
	untilMark          // ends what a broken call has spoiled
)

// match returns the longest mark with which s begins. part: more of s is needed to say.
func (r *Reader) match(s string) (m mark, part bool) {
	look := func(text string, is markKind, o opener) {
		switch {
		case text == "":
		case strings.HasPrefix(s, text):
			if len(text) > len(m.text) {
				m = mark{text, is, o}
			}
		case !r.ended && strings.HasPrefix(text, s):
			part = true
		}
	}
	if r.kind == Thought {
		look(r.f.think[1], thinkMark, opener{})
	}
	if r.spoiled {
		look(r.until, untilMark, opener{})
	}
	if r.spoiled || len(r.tools) == 0 {
		return m, part
	}
	for _, o := range r.f.openers {
		look(o.mark, openMark, o)
		look(o.close, closeMark, opener{})
	}
	for _, d := range r.f.dropped {
		look(d, leadMark, opener{})
	}
	if r.kind == Text {
		look("```", fenceMark, opener{})
		look("~~~", fenceMark, opener{})
	}
	return m, part
}

// text is the state within the answer or a thought.
func (r *Reader) text() bool {
	m, at := mark{}, 0
	for ; ; at++ {
		i := strings.IndexAny(r.buf[at:], r.firsts)
		if i < 0 {
			r.say(len(r.buf))
			return r.ended && r.finish()
		}
		at += i
		part := false
		if m, part = r.match(r.buf[at:]); part {
			r.say(at)
			return false
		}
		if m.is != noMark {
			break
		}
	}
	r.say(at)
	switch m.is {
	case thinkMark:
		return r.thoughtEnds(len(m.text))
	case untilMark:
		r.spoiled = false
		if n := len(m.text); r.until != r.at.mark {
			r.say(n)
		}
	case closeMark:
		if r.past {
			r.drop(len(m.text))
		} else {
			r.say(len(m.text))
		}
	case fenceMark:
		return r.codeFence()
	default:
		r.opens()
	}
	return true
}

// thoughtEnds leaves a thought, whose closing mark has n bytes.
func (r *Reader) thoughtEnds(n int) bool {
	r.drop(n)
	r.kind, r.space, r.skips, r.spoiled, r.blank, r.behind, r.reading = Text, r.space[:0], false, false, true, true, false
	r.state = (*Reader).first
	return true
}

// codeFence reads a fence in the answer: its end, or the beginning of one in which a call may stand.
func (r *Reader) codeFence() bool {
	run := r.buf[:len(r.buf)-len(strings.TrimLeft(r.buf, r.buf[:1]))]
	rest := strings.TrimLeft(r.buf[len(run):], " \t\r")
	switch {
	case !r.ended && rest == "" && len(r.buf) < maxName:
		return false
	case !r.blank:
	case r.fence == "":
		r.opens()
		return true
	case strings.HasPrefix(run, r.fence) && (rest == "" || rest[0] == '\n'):
		r.fence = ""
	}
	r.say(len(run))
	return true
}

// closed leaves a thought whose end comes while what may be a call is read in it. It reports whether it has come.
func (r *Reader) closed() bool {
	if !r.reading || r.kind != Thought || r.last {
		return false
	}
	shut := r.f.think[1]
	i := strings.Index(r.buf[r.seen:], shut)
	if i < 0 {
		r.seen = max(r.seen, len(r.buf)-len(shut)+1)
		return false
	}
	r.say(r.seen + i)
	return r.thoughtEnds(len(shut))
}
