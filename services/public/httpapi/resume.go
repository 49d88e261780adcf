package httpapi

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
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// A stream that broke off can be taken up again, at this gateway or at another one of the same model: each event of OpenAI's and
// Anthropic's APIs has an id, and the same request with this id as Last-Event-ID is answered with what comes behind it. The text is made
// again, which its request and seed determine, and what the client has is left out. So nothing of a request is kept anywhere.

// mark says where a stream stands. Its text is the id of an event.
type mark struct {
	digest   string // of the request
	created  int64  // Unix time
	seed     uint64 // of the first choice
	identity string // the beginning of its digest; "" before a choice has started
	at       []place
	resumed  bool
}

// place is how much of a choice was sent, in a measure that does not depend on how the text was divided into events.
type place struct {
	text   int // bytes, and 1 for each of: a chat's first chunk, the beginning of a call, the last chunk; every event that is no delta
	tokens int // in log-probabilities and reports; where an answer is one choice, events, which the Responses API numbers
}

const (
	digestChars   = 12 // of the hexadecimal form
	identityChars = 8
	mostChoices   = 1 << 16 // in an id
)

// digest returns the beginning of the digest of a path and a body's digest.
func digest(path string, body []byte) string {
	sum := sha256.Sum256(append([]byte(path+"\n"), body...))
	return hex.EncodeToString(sum[:])[:digestChars]
}

// String returns the mark as the id of an event.
func (m *mark) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s-%x-%x-%s-", m.digest, m.created, m.seed, m.identity)
	for i, p := range m.at {
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

// parseMark is the inverse of String.
func parseMark(id string) (*mark, bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 5 || len(parts[0]) != digestChars || len(parts[3]) != 0 && len(parts[3]) != identityChars {
		return nil, false
	}
	m := &mark{digest: parts[0], identity: parts[3], resumed: true}
	created, err := strconv.ParseInt(parts[1], 16, 64)
	seed, err2 := strconv.ParseUint(parts[2], 16, 64)
	if err != nil || err2 != nil || strings.Count(parts[4], ",") >= mostChoices {
		return nil, false
	}
	m.created, m.seed = created, seed
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
		m.at = append(m.at, place{int(t), int(n)})
	}
	return m, true
}

// takenUp returns the mark behind which a call goes on, with the seed that it began with, or that of a new stream.
func takenUp(c *call, o *oai.Call) (*mark, error) {
	id := c.Header.Get("Last-Event-ID")
	if id == "" {
		return &mark{digest: c.digest, created: time.Now().Unix(), seed: o.Request.Sampling.Seed}, nil
	}
	m, ok := parseMark(id)
	switch {
	case !ok:
		return nil, oai.Refusal(http.StatusBadRequest, "bad_event_id",
			"Last-Event-ID is %.100q: want the id of an event of this API, or none", id)
	case m.digest != c.digest:
		return nil, oai.Refusal(http.StatusConflict, "other_request", "Last-Event-ID %.100q is of another request: want the same path and "+
			"the same body, byte for byte, to take a stream up again", id)
	}
	o.Request.Sampling.Seed = m.seed
	return m, nil
}

// fits refuses a mark of another number of choices, and makes the places of a new stream.
func (m *mark) fits(choices int) error {
	if !m.resumed {
		m.at = make([]place, choices)
	}
	if len(m.at) != choices {
		return oai.Refusal(http.StatusConflict, "other_request", "Last-Event-ID is of a stream with %d choices: this request has %d",
			len(m.at), choices)
	}
	return nil
}

// had returns what the client has of a choice.
func (m *mark) had(choice int) public.Had {
	return public.Had{Text: m.at[choice].text, Tokens: m.at[choice].tokens}
}

// name returns the part of the answer's id that is made up: the same for all parts of a stream.
func (m *mark) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", m.digest, m.created, m.seed))
	return hex.EncodeToString(sum[:12])
}

// made returns what is made up in the n-th id of a part of an answer with that name.
func made(name string, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", name, n))
	return hex.EncodeToString(sum[:12])
}

// progress is what the choices of a stream know of what was sent of them.
type progress struct {
	mu   sync.Mutex // places change while events are written
	mark *mark
}

// id returns a function that moves a choice's place when its event is written, and returns the event's id.
func (p *progress) id(choice, text, tokens int) func() string {
	return func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		at := &p.mark.at[choice]
		at.text, at.tokens = at.text+text, at.tokens+tokens
		return p.mark.String()
	}
}

// sequel sends the events of an answer that is one choice, without those that the client has. The zero value, with events, sends all.
type sequel struct {
	events *sse.Writer
	sent   *progress
	had    public.Had
}

// newSequel returns the sequel of a stream behind a mark.
func newSequel(events *sse.Writer, m *mark) sequel {
	return sequel{events: events, sent: &progress{mark: m}, had: m.had(0)}
}

// send sends an event that is no delta, unless the client has it.
func (s *sequel) send(kind string, e any) (sent bool, err error) {
	if s.had.Skip(1) == 1 {
		return false, nil
	}
	return true, s.events.SendAt(kind, e, s.sent.id(0, 1, 1))
}

// last is send of an event behind which nothing comes.
func (s *sequel) last(kind string, e any) error {
	if s.had.Skip(1) == 1 {
		return nil
	}
	return s.events.Last(kind, e, s.sent.id(0, 1, 1))
}

// delta sends the rest of a text behind what the client has, by a function that makes its event, if there is a rest.
func (s *sequel) delta(kind, text string, event func(rest string) any) (sent bool, err error) {
	rest := s.had.RestOf(text)
	if rest == "" {
		return false, nil
	}
	return true, s.events.SendAt(kind, event(rest), s.sent.id(0, len(rest), 1))
}

// by checks that a choice is computed as the stream began.
func (p *progress) by(identity tandem.Identity) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := sha256.Sum256([]byte(identity))
	mine := hex.EncodeToString(sum[:])[:identityChars]
	if p.mark.identity != "" && p.mark.identity != mine {
		return tandem.Errorf(op, tandem.Invalid, "Last-Event-ID is of a stream that other arithmetic or another model computed "+
			"(this is %s): ask without it, for a new text", identity)
	}
	p.mark.identity = mine
	return nil
}
