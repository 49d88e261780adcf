package enlist

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/token"
)

const (
	listTime  = 10 * time.Second // for fetching a vocabulary; a large one has 4 MB, over a network
	listPause = time.Second      // before a drafter that did not answer is asked again
)

// vocabularies finds out, in the background, which drafters of another vocabulary can draft for the target. Safe for concurrent use, where
// nothing else is said.
type vocabularies struct {
	cfg    *MembersConfig
	ctx    context.Context // of work
	work   sync.WaitGroup  // goroutines that compare
	judged func()          // a drafter can be used that could not before; mu is held

	mu       *sync.Mutex
	compared map[key]*comparison // for vocabularies of another fingerprint
}

// comparison is the result of comparing a drafter's vocabulary, whose fingerprint is another, with the target's. It counts for that drafter
// alone, because it depends on what the drafter says about itself.
type comparison struct {
	instance    uint64 // of its process
	vocab       int
	fingerprint string
	good        bool // it can draft for the target
	translates  bool // with the tokenizer that its process was sent
}

// holds reports whether v is still valid for d of p. A good verdict outlives the process, because the model is the same.
func (v *comparison) holds(p Process, d Drafter) bool {
	return v != nil && v.fingerprint == d.Fingerprint && v.vocab == d.Vocab && (v.good && !v.translates || v.instance == p.Instance)
}

// translating is a drafter whose sessions are opened in the target's tokens, which are not its own.
type translating struct{ tandem.Drafter }

// Open implements tandem.Drafter.
func (t translating) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	o.Translate = true
	return t.Drafter.Open(ctx, o)
}

// translates reports whether d translates. m.mu must be held.
func (m *vocabularies) translates(at key, d Drafter) bool {
	v := m.compared[at]
	return d.Fingerprint != m.cfg.Fingerprint && v != nil && v.good && v.translates
}

// usable reports whether d can draft for the target: its vocabulary is the target's, or it has none, or all ids that
// both have mean the same, or it translates. The last two are found out once, in the background; then judged is called. m.mu must be held.
func (m *vocabularies) usable(p Process, d Drafter) bool {
	if d.Fingerprint == m.cfg.Fingerprint || d.Fingerprint == "" && d.Vocab == 0 {
		return true
	}
	at := key{p.Addr, d.Name}
	if v := m.compared[at]; v.holds(p, d) {
		return v.good
	}
	v := &comparison{instance: p.Instance, vocab: d.Vocab, fingerprint: d.Fingerprint}
	m.compared[at] = v
	m.work.Go(func() { m.judge(at, p, d, v) })
	return false
}

// judge completes v. It asks again while the drafter does not answer, and gives up when the drafter is gone.
func (m *vocabularies) judge(at key, p Process, d Drafter, v *comparison) {
	for {
		note, err := m.compare(p, d)
		translates := false
		if errors.As(err, new(differs)) && m.cfg.Tokenizer != nil {
			switch e := m.tell(p, d); tandem.KindOf(e) {
			case tandem.OK:
				note, err, translates = err.Error(), nil, true
			case tandem.Unavailable, tandem.Deadline, tandem.Canceled:
				err = e
			default:
				err = tandem.Errorf("", tandem.KindOf(e), "%w; and it does not translate: %w", err, e)
			}
		}
		switch tandem.KindOf(err) {
		case tandem.Unavailable, tandem.Deadline, tandem.Canceled:
			select {
			case <-time.After(listPause):
			case <-m.ctx.Done():
				return
			}
			if m.current(at, v) {
				continue
			}
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.compared[at] != v {
			return
		}
		if err != nil {
			m.cfg.Counters.Add("drafters.other_vocabulary", 1)
			m.cfg.Log.Warn("drafter is not used: it does not speak the target's vocabulary", "drafter", d.Name, "address", p.Addr,
				"difference", err)
			return
		}
		if translates {
			m.cfg.Counters.Add("drafters.translated", 1)
			if !slices.Contains(m.cfg.Compared, p.Addr) {
				m.cfg.Log.Warn("drafter has another vocabulary than the target: "+token.TranslationCosts, "drafter", d.Name, "address",
					p.Addr,
					"difference", note)
			}
			v.good, v.translates = true, true
			m.judged()
			return
		}
		m.cfg.Counters.Add("drafters.near_vocabulary", 1)
		if note != "" && !slices.Contains(m.cfg.Compared, p.Addr) {
			m.cfg.Log.Warn("drafter's vocabulary is not quite the target's, which costs acceptance at most",
				"drafter", d.Name, "address", p.Addr, "difference", note)
		}
		v.good = true
		m.judged()
		return
	}
}

// current reports whether v is still wanted.
func (m *vocabularies) current(at key, v *comparison) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.compared[at] == v
}

// compare fetches d's vocabulary up to the target's size and compares it with the target's.
func (m *vocabularies) compare(p Process, d Drafter) (note string, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, listTime)
	defer cancel()
	target := m.cfg.Vocab.Listing()
	draft, err := p.Link.Vocabulary(ctx, d.Name, len(target.Pieces))
	switch want := min(d.Vocab, len(target.Pieces)); {
	case tandem.KindOf(err) == tandem.Unsupported:
		return "", tandem.Errorf("", tandem.Unsupported, "fingerprint %.50s there, %s here: %w", d.Fingerprint, m.cfg.Fingerprint, err)
	case err != nil:
		return "", err
	case draft.Tokenizer == "":
		return "", tandem.Errorf("", tandem.Unsupported,
			"fingerprint %.50s there, %s here, and a drafter of this version of tandem drafts for its own vocabulary alone: want a "+
				"newer one",
			d.Fingerprint, m.cfg.Fingerprint)
	case len(draft.Pieces) != want:
		return "", tandem.Errorf("", tandem.Corrupt, "it lists %d tokens of its %d: want %d", len(draft.Pieces), d.Vocab, want)
	}
	draft.Size = d.Vocab
	if note, err = token.Compare(target, draft); err != nil {
		return "", differs{err}
	}
	return note, nil
}

// differs is the error of a vocabulary whose ids mean other texts.
type differs struct{ error }

func (d differs) Unwrap() error { return d.error }

// tell sends d the target's tokenizer.
func (m *vocabularies) tell(p Process, d Drafter) error {
	file, err := m.cfg.Tokenizer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.ctx, listTime)
	defer cancel()
	return p.Link.Target(ctx, d.Name, m.cfg.Fingerprint, file)
}
