package ask

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// Defaults fill in what a request leaves out. A missing seed is drawn at random.
type Defaults struct {
	MaxTokens int
	MaxOutput int             // bounds what a request may ask for; 0: the context does
	Repeats   int             // tandem.Request.Repeats of a request that sets no limit and lets the model end its answer
	Sampling  tandem.Sampling // Seed is not used
	Seed      *uint64         // of draws, over HTTP alone; nil: a random one
	Stop      []string        // over HTTP alone
	System    string          // the system message of a chat without one, over HTTP alone; "": none
	Bounds    tandem.Bounds   // plain: no speculation unless a request describes a tree
	Strategy  tandem.Strategy
	Vote      tandem.Vote
	Drafters  []string // names of drafters that may draft; nil: all that are alive
	Without   tandem.Technique
}

// Speculate sets req's fields about speculation from s, and from d where s leaves something out. Bounds in s bound the strategy that
// runs without them; only s.Strategy names another one, which begins with its own default bounds. An explicit zero does not mean "none".
func (d Defaults) Speculate(req *tandem.Request, s *tandemv1.Speculation) (err error) {
	req.Strategy, req.Vote, req.Drafters, req.Without = d.Strategy, d.Vote, d.Drafters, d.Without
	if s.Enabled != nil && !s.GetEnabled() {
		return nil
	}
	req.Bounds = d.Bounds
	if s.Strategy != nil {
		if req.Strategy = tandem.Strategy(s.GetStrategy()); req.Strategy != d.Strategy {
			req.Bounds = tandem.DefaultBounds(req.Strategy)
		}
	}
	p := &req.Bounds
	asked := false
	for _, f := range []struct {
		from *int32
		to   *int
	}{{s.Nodes, &p.Nodes}, {s.Depth, &p.Depth}, {s.Width, &p.Width}} {
		if f.from != nil {
			*f.to, asked = int(*f.from), true
		}
	}
	if asked && *p == (tandem.Bounds{}) {
		return wrong("nodes", "tree 0/0/0: want at least 2/1/1, or speculation not enabled")
	}
	if s.Vote != nil {
		req.Vote = tandem.Vote(s.GetVote())
	}
	if len(s.GetDrafters()) > 0 {
		req.Drafters = s.GetDrafters()
	}
	if len(s.GetWithout()) > 0 {
		req.Without, err = tandem.ParseTechniques(s.GetWithout())
	}
	return err
}

// RandomSeed returns a seed that also JavaScript can send back: with those of further choices it stays below 2⁵³.
func RandomSeed() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) >> 12
}

// name returns the client's name of an option.
func (r *Request) name(option string) string {
	if name := r.said[option]; name != "" {
		return name
	}
	if r.OptionName != nil {
		return r.OptionName(option)
	}
	return option
}

// InItsWords returns err with the option that it blames, if any, under the client's name.
func (r *Request) InItsWords(err error) error {
	var e *tandem.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	name, text := r.name(e.Field), e.Err.Error()
	if at := strings.Index(text, e.Field+" is "); at >= 0 { // the text before is the place in a Go value
		text = name + text[at+len(e.Field):]
	}
	return &tandem.Error{Kind: e.Kind, Field: name, RetryAfter: e.RetryAfter, Err: errors.New(text)}
}
