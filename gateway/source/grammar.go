package source

import (
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/text/grammar"
)

// Words is what drafting by a constraint needs of the target's tokenizer: see package token. Safe for concurrent use.
type Words interface {
	// AppendMarked appends the bytes by which a grammar knows a token; ok is false if it cannot know it.
	AppendMarked(dst []byte, t tandem.Token) (out []byte, ok bool)
	// EncodeMarked returns the tokens of such bytes behind a text; more: without those that what follows may change.
	EncodeMarked(text string, more bool) []tandem.Token
}

// forced drafts what a session's constraint leaves no choice about: the bytes that must come next, as the tokens that the model's tokenizer
// makes of them. That is a guess, the less certain at its end, where a longer token may cross the boundary. Other tokens may hold the same
// bytes, and where a blank is allowed and not forced, it is guessed by what the output had there before. It is ready in the rounds in which
// something is forced.
type forced struct {
	instant
	ends    []tandem.Token
	at      grammar.State // behind the first read tokens of the text
	read    int
	over    bool // the output has ended, or is none that the constraint allows: nothing is forced
	bytes   []byte
	colon   bool // the latest bytes end a key, so that the next says whether the model writes a blank there
	tight   bool // it does not
	next    []tandem.Token
	sure    int  // of next; a longer token may take the place of those behind
	end     bool // the output must end behind next
	nextFor int  // tokens of the text that next follows
}

// newForced returns the source of an entry for it, nil for another entry. A constraint that the gateway cannot compile forces nothing.
func newForced(c common, _ <-chan struct{}) Source {
	if !c.entry.Grammar {
		return nil
	}
	d := &forced{}
	d.instant = instant{common: c, draft: d.draw}
	limits := c.session.Sampling.Constraint
	var of grammar.Spec
	if limits == nil || c.Words == nil || json.Unmarshal([]byte(limits.Spec), &of) != nil {
		d.state = off
		return d
	}
	g, err := c.grammars.Compile(c.session.Tenant, of, grammar.Limits{})
	if err != nil {
		d.state = off
		return d
	}
	d.at, d.ends, d.read, d.nextFor = g.Start(), limits.Ends, c.session.Text.Prompt, -1
	return d
}

// Ready implements Source.
func (d *forced) Ready() bool {
	if d.state != ready || d.aside() {
		return false
	}
	d.follow()
	return len(d.next) > 0 || d.end
}

// follow reads what was committed, and finds what is forced behind it.
func (d *forced) follow() {
	tokens := d.session.Text.Tokens
	for ; d.read < len(tokens) && !d.over; d.read++ {
		bytes, ok := d.Words.AppendMarked(d.bytes[:0], tokens[d.read])
		d.bytes = bytes
		if ok = ok && len(bytes) > 0; ok {
			d.at, ok = d.at.Next(bytes)
			d.style(bytes)
		}
		d.over = !ok
	}
	if d.nextFor == len(tokens) {
		return
	}
	d.next, d.end, d.nextFor = nil, false, len(tokens)
	if d.over {
		return
	}
	text, end := d.guess()
	d.next = d.Words.EncodeMarked(text, false)
	if d.sure, d.end = len(d.next), end; !end {
		d.sure = len(d.Words.EncodeMarked(text, true))
	}
}

// mostEnds is how many of the tokens that may end the output are guessed: a model has one for texts, and one or two for turns.
const mostEnds = 3

// crossing is the logarithm of the chance that a token at the end of what is forced is drawn and not a longer one with what follows it, to
// begin with: rounds show how often it is.
const crossing = -0.5

// style notes whether the model writes blanks behind the colons of keys.
func (d *forced) style(bytes []byte) {
	if d.colon && len(bytes) > 0 {
		d.tight = bytes[0] != ' '
	}
	s := string(bytes)
	if i := strings.Index(s, `":`); i >= 0 && i+2 < len(s) {
		d.tight = s[i+2] != ' '
	}
	d.colon = strings.HasSuffix(s, ":")
}

const mostForced = 256 // bytes that are guessed at once: more tokens than a tree is deep

// guess returns the bytes that are to come, as far as they are forced but for blanks. end: then the output must end.
func (d *forced) guess() (text string, end bool) {
	var out []byte
	for s := d.at; len(out) < mostForced; {
		must := s.Forced()
		if must == nil && !s.Ended() {
			blanks := " "
			if d.tight {
				blanks = `"{[`
			}
			if must = likely(s, blanks); must == nil {
				break
			}
		}
		out = append(out, must...)
		next, ok := s.Next(must)
		if s = next; !ok || s.Ended() {
			return string(out), ok
		}
	}
	return string(out), false
}

// likely returns the one byte of several that s allows and that leads to forced bytes, where s allows a blank as well.
func likely(s grammar.State, bytes string) (out []byte) {
	if _, ok := s.Next([]byte{' '}); !ok || s.Done() {
		return nil
	}
	for i := range len(bytes) {
		b := []byte{bytes[i]}
		if next, ok := s.Next(b); ok && (len(next.Forced()) > 0 || bytes[i] != ' ') {
			if out != nil {
				return nil
			}
			out = b
		}
	}
	return out
}

// draw makes a tree for a proposal: a chain, and behind it the tokens that may end the output.
func (d *forced) draw(root tandem.Token, p tandem.Proposal) tandem.Proposed {
	begun := time.Now()
	d.follow()
	t := tandem.Tree{Tokens: []tandem.Token{root}, Parents: []int32{-1}, LogProbs: []float32{0}}
	for i, token := range d.next[:min(len(d.next), max(p.Bounds.Depth, 0), max(p.Bounds.Nodes-1, 0))] {
		t.Tokens, t.Parents = append(t.Tokens, token), append(t.Parents, int32(i))
		t.LogProbs = append(t.LogProbs, crossing*float32(max(i+1-d.sure, 0)))
	}
	if last := t.Len() - 1; d.end && last == len(d.next) && last < p.Bounds.Depth {
		ends := d.ends[:max(min(len(d.ends), mostEnds, p.Bounds.Nodes-t.Len(), p.Bounds.Width), 0)]
		for _, token := range ends {
			t.Tokens, t.Parents = append(t.Tokens, token), append(t.Parents, int32(last))
			t.LogProbs = append(t.LogProbs, -float32(math.Log(float64(len(ends)))))
		}
	}
	t, _ = spec.Cut(t, p.Plan, time.Since(begun))
	_, depth := t.Depths()
	return tandem.Proposed{Nodes: t.Len(), Depth: depth, Busy: time.Since(begun), Tree: t}
}
