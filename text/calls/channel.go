package calls

import (
	"cmp"
	"strings"
)

// gpt-oss writes messages, each with a header that names its channel and, for a call, its recipient:
//
//	<|channel|>analysis<|message|>…<|end|>
//	<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

// ends are the markers behind a message; the next message's beginning ends one too.
var ends = []string{"<|end|>", "<|call|>", "<|return|>", startMark, channelMark}

const (
	startMark   = "<|start|>"
	channelMark = "<|channel|>"
	functions   = "functions."
)

// header is the state before a message's text.
func (r *Reader) header() bool {
	const message = "<|message|>"
	head, rest, ok := strings.Cut(r.buf, message)
	plain := strings.TrimLeft(r.buf, space)
	switch {
	case ok && len(head) <= maxName && headed(plain):
	case plain == "" && r.ended:
		r.drop(len(r.buf))
		return false
	case !r.ended && headed(plain) && len(r.buf) < maxName+len(message):
		return false
	case r.ended && strings.HasPrefix(plain, "<|"): // a header without a message
		r.drop(len(r.buf))
		return false
	default: // no header, or one that never ends: an answer as it is
		for _, m := range []string{startMark, channelMark} {
			if rest, ok := strings.CutPrefix(plain, m); ok {
				r.drop(len(r.buf) - len(rest)) // else message would find it, and come back here
				break
			}
		}
		r.state, r.kind = (*Reader).message, Text
		return true
	}
	r.drop(len(r.buf) - len(rest))
	_, channel, _ := strings.Cut(head, channelMark)
	recipient := ""
	if _, to, ok := strings.Cut(head, "to="); ok {
		recipient = to
		if at := strings.IndexAny(to, space+"<"); at >= 0 {
			recipient = to[:at]
		}
	}
	r.call, r.at, r.kind, r.state = call{}, opener{}, Text, (*Reader).message
	switch {
	case len(recipient) > len(functions) && strings.HasPrefix(recipient, functions) && len(r.tools) > 0:
		r.begin(recipient[len(functions):])
		r.state = (*Reader).messageArguments
	case strings.HasPrefix(strings.TrimSpace(channel), "analysis"):
		r.kind = Thought
	}
	if r.kind == Text && r.answer || r.kind == Thought && r.thought { // an empty line keeps two apart
		r.space = append(r.space[:0], "\n\n"...)
	}
	return true
}

// headed reports whether what comes may be a header.
func headed(s string) bool {
	for _, h := range []string{channelMark, startMark, "<|constrain|>", "to=", "assistant"} {
		if strings.HasPrefix(s, h) || strings.HasPrefix(h, s) {
			return true
		}
	}
	return false
}

// message is the state within a message.
func (r *Reader) message() bool {
	for at := 0; ; at++ {
		i := strings.IndexByte(r.buf[at:], ends[0][0])
		if i < 0 {
			r.say(len(r.buf))
			return r.ended && r.finish()
		}
		at += i
		mark, part := r.endMark(r.buf[at:])
		switch {
		case part:
			r.say(at)
			return false
		case mark != "":
			r.say(at)
			return r.nextMessage(mark)
		}
	}
}

// endMark returns the mark behind a message with which s begins, "" for none. part: more of s is needed to say.
func (r *Reader) endMark(s string) (mark string, part bool) {
	for _, m := range ends {
		switch {
		case strings.HasPrefix(s, m):
			return m, false
		case !r.ended && strings.HasPrefix(m, s):
			part = true
		}
	}
	return "", part
}

// nextMessage leaves a message, at whose end mark stands.
func (r *Reader) nextMessage(mark string) bool {
	n := 0
	if mark != startMark && mark != channelMark {
		n = len(mark)
	}
	r.drop(r.pos + n)
	r.space, r.state = r.space[:0], (*Reader).header
	return true
}

// messageArguments is the state within the arguments of a call: an object that is all of its message, or nothing.
func (r *Reader) messageArguments() bool {
	c := &r.call
	if c.args != "" || len(c.value) == 0 {
		rest := r.skip()
		mark, part := r.endMark(rest)
		switch {
		case part, rest == "" && !r.ended:
			return false
		case mark != "", rest == "" && (c.args != "" || !r.cut): // an empty message has no arguments
			r.ready = append(r.ready, whole{c.name, cmp.Or(c.args, "{}")})
			r.tell()
			r.past = false
			return r.nextMessage(mark)
		case c.args != "": // text behind the object
			r.pos, r.state = 0, (*Reader).message
			return true
		}
	}
	done, object := r.json(), false
	if done == valueDone {
		c.args, object = objectOf(string(c.value))
	}
	if done == valueCut && !r.ended {
		return false
	}
	if !object {
		r.pos, r.state = 0, (*Reader).message
	}
	return true
}
