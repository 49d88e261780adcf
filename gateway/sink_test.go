package gateway

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// sink keeps what a request says.
type sink struct {
	started tandem.Started
	tokens  []tandem.Token
	text    string
	drafts  int
	deltas  int
	sizes   []int // tokens of each delta
	err     error // returned by delta number failAt, from 1 on; 0: by Started if err is set
	failAt  int
	each    func(tandem.Delta)
	told    []tandem.PromptProgress // before Started
	late    int                     // what was told after it
	slow    time.Duration           // taken by each Progress
}

func (s *sink) Progress(p tandem.PromptProgress) error {
	if s.told = append(s.told, p); s.started.Session != 0 {
		s.late++
	}
	testkit.Sleep(s.slow)
	return nil
}

func (s *sink) Started(st tandem.Started) error {
	s.started = st
	if s.failAt == 0 {
		return s.err
	}
	return nil
}

func (s *sink) Delta(d tandem.Delta) error {
	if s.deltas++; s.deltas == s.failAt {
		return s.err
	}
	if s.each != nil {
		s.each(d)
	}
	s.tokens, s.sizes = append(s.tokens, d.Tokens...), append(s.sizes, len(d.Tokens))
	s.text += d.Text
	for _, o := range d.Origins {
		if o == tandem.OriginDraft {
			s.drafts++
		}
	}
	return nil
}
