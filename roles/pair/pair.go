// Package pair finds out, before any process is started, whether models can run together.
package pair

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/roles"
)

// Pair is a target and its drafts, each to be run by a process on this machine.
type Pair struct {
	Target  string   // GGUF file
	Drafts  []string // GGUF files, or drafter.LookupName
	Sizes   roles.Sizes
	Options engine.Options // that all models have in common
}

// LeaveOut removes drafts of another vocabulary than the target's from Drafts, if others are left, and calls told with each and the
// reason. Other faults are errors.
func (p *Pair) LeaveOut(told func(why error)) error {
	if len(p.Drafts) < 2 {
		return nil
	}
	vocab, err := token.Open(p.Target)
	if err != nil {
		return err
	}
	var good []string
	var bad []error
	for _, d := range p.Drafts {
		_, err := p.compare(d, vocab)
		switch {
		case err == nil:
			good = append(good, d)
		case errors.As(err, new(otherVocabulary)):
			bad = append(bad, err)
		default:
			return err
		}
	}
	if len(good) > 0 {
		p.Drafts = good
		for _, err := range bad {
			told(err)
		}
	}
	return nil
}

// Check refuses models that cannot run, do not match or do not fit into memory, and a prompt ("": none) that is too long. It calls
// say with harmless differences between a draft's vocabulary and the target's.
func (p *Pair) Check(prompt string, say func(note string)) error {
	if err := p.Sizes.Check(); err != nil {
		return err
	}
	vocab, err := token.Open(p.Target)
	if err != nil {
		return err
	}
	room := roles.Room{Sizes: p.Sizes.OrDefault(), Options: p.Options}
	if err := room.Add(p.Target, tandem.DefaultLimits.Nodes); err != nil {
		return err
	}
	for _, d := range p.Drafts {
		note, err := p.compare(d, vocab)
		if err != nil {
			return err
		}
		if note != "" {
			say(fmt.Sprintf("draft model %s has not quite the target's vocabulary, which costs acceptance at most: %s", d, note))
		}
		if d == drafter.LookupName {
			continue
		}
		if err := room.Add(d, drafter.DefaultTreeRows); err != nil {
			return err
		}
	}
	if err := room.Check(engine.AvailableMemory()); err != nil || prompt == "" {
		return err
	}
	limits := tandem.Limits{Context: p.Sizes.ContextOf(room.Models[0].Context), Vocab: vocab.Size()}
	return tandem.ValidatePromptTokens(vocab.Encode(prompt, true), limits)
}

// otherVocabulary is the error of a valid draft model that does not match the target.
type otherVocabulary struct{ error }

func (e otherVocabulary) Unwrap() error { return e.error }

// compare refuses a draft model that cannot run or has another vocabulary than the target. note describes a harmless
// difference, "" for none.
func (p *Pair) compare(draft string, target *token.Vocab) (note string, err error) {
	if draft == drafter.LookupName {
		return "", nil
	}
	vocab, err := token.Open(draft)
	if err != nil {
		return "", err
	}
	note, err = token.Compare(target.Listing(), vocab.Listing())
	if err != nil {
		return "", otherVocabulary{tandem.Errorf("", tandem.Invalid,
			"draft model %s does not speak the vocabulary of target %s: %w", draft, p.Target, err)}
	}
	return note, nil
}
