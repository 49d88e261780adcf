package calls

import "strings"

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
		r.buf = ""
		return false
	case !r.ended && headed(plain) && len(r.buf) < maxName+len(message):
		return false
	case r.ended && strings.HasPrefix(plain, "<|"): // a header without a message
		r.buf = ""
		return false
	default: // no header, or one that never ends: an answer as it is
		for _, m := range []string{startMark, channelMark} {
			if rest, ok := strings.CutPrefix(plain, m); ok {
				r.buf = rest // else message would find it, and come back here
				break
			}
		}
		r.state, r.call = (*Reader).message, call{kind: Text}
		return true
	}
	r.buf = rest
	_, channel, _ := strings.Cut(head, channelMark)
	recipient := ""
	if _, to, ok := strings.Cut(head, "to="); ok {
		recipient = to
		if at := strings.IndexAny(to, space+"<"); at >= 0 {
			recipient = to[:at]
		}
	}
	r.call, r.at = call{kind: Text}, opener{}
	r.state = (*Reader).message
	switch {
	case len(recipient) > len(functions) && strings.HasPrefix(recipient, functions) && len(r.tools) > 0:
		r.begin(recipient[len(functions):])
		r.state = (*Reader).messageArguments
	case strings.HasPrefix(strings.TrimSpace(channel), "analysis"):
		r.call.kind = Thought
	}
	if r.call.kind == Text && r.answer && !r.begun {
		r.space = "\n\n"
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
	at, mark := -1, ""
	for _, m := range ends {
		if i := strings.Index(r.buf, m); i >= 0 && (at < 0 || i < at) {
			at, mark = i, m
		}
	}
	if at < 0 {
		keep := 0
		for _, m := range ends {
			if !r.ended {
				keep = max(keep, overlap(r.buf, m))
			}
		}
		r.say(r.call.kind, r.buf[:len(r.buf)-keep])
		r.buf = r.buf[len(r.buf)-keep:]
		if r.ended && r.call.kind == Text && !r.past {
			r.emit(Text, r.space)
			r.space = ""
		}
		return false
	}
	r.say(r.call.kind, r.buf[:at])
	return r.nextMessage(at, mark)
}

// nextMessage leaves a message, at whose end mark stands.
func (r *Reader) nextMessage(at int, mark string) bool {
	r.buf = r.buf[at:]
	if mark != startMark && mark != channelMark {
		r.buf = r.buf[len(mark):]
	}
	r.space, r.begun = "", false
	r.state = (*Reader).header
	return true
}

// messageArguments is the state within the arguments of a call.
func (r *Reader) messageArguments() bool {
	if r.call.told {
		r.state = (*Reader).message
		return true
	}
	more := r.arguments(func() bool { r.call.told = true; return true })
	if r.call.told || !more {
		return more
	}
	r.state, r.call.kind = (*Reader).message, Text // what follows is no JSON
	return true
}
