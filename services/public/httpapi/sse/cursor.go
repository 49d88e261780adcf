package sse

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
)

// A stream that broke off can be taken up again, at this gateway or at another one of the same model: each event of OpenAI's and
// Anthropic's APIs has an id, and the same request with this id as Last-Event-ID is answered with what comes behind it. The text is made
// again, which its request and seed determine, and what the client has is left out. So nothing of a request is kept anywhere.

// Cursor says where a stream stands. Its text is the id of an event.
type Cursor struct {
	Digest  string // the request's, as Digest makes it
	Created int64  // Unix time
	Seed    uint64 // the first choice's
	Resumed bool   // it was parsed

	identity string // the beginning of its digest; "" before a choice has started
	sent     []sent
}

// sent is how much of a choice was sent, in a measure that does not depend on how the text was divided into events.
type sent struct {
	text   int // bytes, and 1 for each of: a chat's first chunk, the beginning of a call, the last chunk; every event that is no delta
	tokens int // tokens in log-probabilities and reports; in a numbered stream, events
}

const (
	digestChars   = 12 // hexadecimal digits of a request's digest
	identityChars = 8
	mostChoices   = 1 << 16 // most choices in an id
)

func hashed(chars int, format string, args ...any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return hex.EncodeToString(sum[:])[:chars]
}

// Digest returns a short digest of a request: of its path and the digest of its body.
func Digest(path string, body []byte) string { return hashed(digestChars, "%s\n%s", path, body) }

// Made returns 24 hexadecimal digits that follow from a name and a number.
func Made(name string, n int) string { return hashed(24, "%s %d", name, n) }

// String returns the cursor as the id of an event.
func (c *Cursor) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s-%x-%x-%s-", c.Digest, c.Created, c.Seed, c.identity)
	for i, p := range c.sent {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(p.text))
		if p.tokens > 0 {
			b.WriteString("." + strconv.Itoa(p.tokens))
		}
	}
	return b.String()
}

// ParseCursor is the inverse of String.
func ParseCursor(id string) (*Cursor, bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 5 || len(parts[0]) != digestChars || len(parts[3]) != 0 && len(parts[3]) != identityChars {
		return nil, false
	}
	c := &Cursor{Digest: parts[0], identity: parts[3], Resumed: true}
	created, err := strconv.ParseInt(parts[1], 16, 64)
	seed, err2 := strconv.ParseUint(parts[2], 16, 64)
	if err != nil || err2 != nil || strings.Count(parts[4], ",") >= mostChoices {
		return nil, false
	}
	c.Created, c.Seed = created, seed
	for p := range strings.SplitSeq(parts[4], ",") {
		text, tokens, both := strings.Cut(p, ".")
		if !both {
			tokens = "0"
		}
		t, err := strconv.ParseUint(text, 10, 31)
		n, err2 := strconv.ParseUint(tokens, 10, 31)
		if err != nil || err2 != nil {
			return nil, false
		}
		c.sent = append(c.sent, sent{int(t), int(n)})
	}
	return c, true
}

// Choices returns the number of choices of the stream that is taken up again; 0 for a new one.
func (c *Cursor) Choices() int { return len(c.sent) }

// Name returns the part of the answer's id that means nothing. It follows from the cursor, so a stream that is taken up again has the same
// id.
func (c *Cursor) Name() string { return hashed(24, "%s %d %d", c.Digest, c.Created, c.Seed) }

// Stream sends the events of an answer, without those that the client has of each choice. Each choice has a goroutine of its own.
type Stream struct {
	*Writer
	mu       sync.Mutex // guards cursor, which moves while events are written
	cursor   *Cursor    // where the stream stands; nil: events have no ids, and all are sent
	had      []answer.Had
	numbered bool
}

// NewStream returns the stream of an answer with so many choices that goes on behind a cursor, which must have as many or be new. Nil: it
// cannot be taken up again. numbered: there is one choice, and its cursor counts events in place of tokens.
func NewStream(w http.ResponseWriter, stall, ping time.Duration, c *Cursor, choices int, numbered bool) *Stream {
	s := &Stream{Writer: New(w, stall, ping), cursor: c, had: make([]answer.Had, choices), numbered: numbered}
	if c != nil && !c.Resumed {
		c.sent = make([]sent, choices)
	}
	for i := range s.had {
		if c != nil {
			s.had[i] = answer.Had{Text: c.sent[i].text, Tokens: c.sent[i].tokens}
		}
	}
	return s
}

// Resumed reports whether the client has the beginning of the stream.
func (s *Stream) Resumed() bool { return s.cursor != nil && s.cursor.Resumed }

// Events returns how many events the client has of the only choice of a numbered stream.
func (s *Stream) Events() int { return s.had[0].Tokens }

// Output returns an output of a choice without the tokens that the client has.
func (s *Stream) Output(choice int, d tandem.Delta) tandem.Delta { return s.had[choice].Output(d) }

// id returns what moves the cursor when an event of a choice is written, and returns the event's id; nil if events have none.
func (s *Stream) id(choice, text, tokens int) func() string {
	if s.cursor == nil {
		return nil
	}
	if s.numbered {
		tokens = 1
	}
	return func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := &s.cursor.sent[choice]
		at.text, at.tokens = at.text+text, at.tokens+tokens
		return s.cursor.String()
	}
}

// Step sends an event of a choice that is no delta and has so many tokens. It sends nothing if the client has the event.
func (s *Stream) Step(choice, tokens int, kind string, e any) (sent bool, err error) {
	if s.had[choice].Skip(1) == 1 {
		return false, nil
	}
	return true, s.SendAt(kind, e, s.id(choice, 1, tokens))
}

// Final is Step of an event behind which nothing comes.
func (s *Stream) Final(kind string, e any) error {
	if s.had[0].Skip(1) == 1 {
		return nil
	}
	return s.Last(kind, e, s.id(0, 1, 0))
}

// Beat sends an event that is neither text nor one that the client counts as such: it shows that the stream is alive.
func (s *Stream) Beat(kind string, e any) error { return s.SendAt(kind, e, s.id(0, 0, 0)) }

// Delta sends what the client does not have of a piece of a choice's text, which has so many tokens; event makes the event. It sends
// nothing if the client has all of the text and there is no token, unless both the text and what the client has are empty.
func (s *Stream) Delta(choice, tokens int, kind, text string, event func(rest string) any) (sent bool, err error) {
	h := &s.had[choice]
	empty := text == "" && h.Text == 0 && !s.numbered
	rest := h.Rest(text)
	if rest == "" && tokens == 0 && !empty {
		return false, nil
	}
	return true, s.SendAt(kind, event(rest), s.id(choice, len(rest), tokens))
}

// By refuses a choice that another model or other arithmetic computes than the stream's beginning. Errors: Invalid.
func (s *Stream) By(identity tandem.Identity) error {
	if s.cursor == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := hashed(identityChars, "%s", identity)
	if s.cursor.identity != "" && s.cursor.identity != mine {
		return tandem.Errorf("http", tandem.Invalid, "Last-Event-ID is of a stream that other arithmetic or another model computed "+
			"(this is %s): ask without it, for a new text", identity)
	}
	s.cursor.identity = mine
	return nil
}
