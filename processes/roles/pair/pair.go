// Package pair finds out, before any process is started, whether models can run together.
package pair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/text/token"
)

// Pair is a target and its drafts, each to be run by a process on this machine.
type Pair struct {
	Target string   // GGUF file
	Drafts []string // GGUF files, or lookup.Name
	Heads  []string // side files of the target
	// side files of drafts: see Sides
	DraftHeads []string
	Sizes      settings.Sizes
	Options    engine.Options // options that all models have in common

	KVMemory int64 // for the keys and values of all; 0: a share of what is free
	Features int64 // memory for hidden states that drafts read, if any does
	Lends    bool  // drafts map what they borrow of the target from its memory, if that is not streamed
	Own      int64 // GPUs' own memory, which the models may take in addition; each process checks its own need of it

	Streaming *roles.Streaming // how the target is streamed; nil: all must fit
	Budget    int64            // memory for the target's process, as Check finds it; 0: none
	Streamed  bool             // the target's weights do not fit into that, as Check finds
	Borrows   bool             // a draft multiplies by all of the target's output matrix, as Check finds
	Inside    bool             // the only draft runs in the target's process, as Check finds
	Reads     int64            // bytes of them that a pass reads from the disk
	Rows      int              // of a tree that a pass of the target verifies; 0: as many as a tree may have

	Same    bool    // a draft of another vocabulary is refused
	Weigher Weigher // predicts what drafts bring; nil: every draft is loaded, and it is an error if there is no memory for one

	// What Check finds out about keys and values; zero if models are on GPUs, where each process checks for itself.
	Fit               roles.Fit
	TargetKV, DraftKV int64 // bytes of the target's pool, and of all drafts'
	Free              int64 // memory that all may take, weights included
}

// Taps returns the hidden states of the target that drafts read, each once, in the order of the drafts. Errors: Invalid, Corrupt.
func Taps(drafts []string) (taps []int, err error) {
	for _, d := range drafts {
		if d == lookup.Name {
			continue
		}
		side, err := engine.SideOf(d)
		if err != nil {
			return nil, err
		}
		for _, n := range side.Taps {
			if side.Kind.IsDraft() && !slices.Contains(taps, n) {
				taps = append(taps, n)
			}
		}
	}
	if len(taps) > tandem.MostTaps {
		return nil, tandem.Errorf("", tandem.Invalid, "the drafts read the hidden states %v: at most %d are handed out", taps,
			tandem.MostTaps)
	}
	return taps, nil
}

// Sides returns the side files of each draft. A single draft gets all of them; else each belongs to the draft of its lineage, for
// which the drafts' files are read. Errors: Invalid for a file that is not of kind ppd or belongs to none of the drafts, Corrupt.
func Sides(drafts, files []string) (map[string][]string, error) {
	if len(files) == 0 {
		return nil, nil
	}
	models := slices.DeleteFunc(slices.Clone(drafts), func(d string) bool { return d == lookup.Name })
	if len(models) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--draft-heads %s without a draft model: want its own as --draft", files[0])
	}
	lineages := map[string]string{} // of models, if there are several
	for _, d := range models {
		if len(models) == 1 {
			break
		}
		if side, err := engine.SideOf(d); err != nil || side.Kind != "" {
			continue // a draft with states has no side files; what else is wrong is said when it is opened
		}
		names, err := engine.Identify(context.Background(), d, engine.Options{})
		if err != nil {
			return nil, err
		}
		lineages[d] = names.Lineage
	}
	out := map[string][]string{}
	for _, file := range files {
		spec, err := engine.SideOf(file)
		if err != nil {
			return nil, err
		}
		if spec.Kind != side.PPD {
			return nil, tandem.Errorf("", tandem.Invalid, "--draft-heads %s is %s: want a side file of kind ppd", file,
				cmp.Or(string(spec.Kind), "a model"))
		}
		of := models[0]
		if len(models) > 1 {
			i := slices.IndexFunc(models, func(d string) bool { return lineages[d] == spec.Lineage })
			if i < 0 {
				return nil, tandem.Errorf("", tandem.Invalid,
					"--draft-heads %s was made for a model of lineage %s, and the drafts have %s: want the file of one of them", file,
					spec.Lineage, strings.Join(slices.Sorted(maps.Values(lineages)), ", "))
			}
			of = models[i]
		}
		out[of] = append(out[of], file)
	}
	return out, nil
}

// Check refuses models that cannot run, do not match or do not fit into memory, and a prompt ("": none) that is too long. It calls
// say with differences between a draft's vocabulary and the target's, and with what the target's tokenizer lacks.
func (p *Pair) Check(prompt string, say func(note string)) error {
	if err := p.Sizes.Check(); err != nil {
		return err
	}
	vocab, err := token.Open(p.Target)
	if err != nil {
		return err
	}
	for _, note := range vocab.Notes() {
		say(fmt.Sprintf("target %s: %s", p.Target, note))
	}
	room := roles.Room{Sizes: p.Sizes.OrDefault(), Options: p.Options, Target: p.Target, KVMemory: p.KVMemory,
		Asked: p.Sizes.Sessions, Lends: p.Lends}
	taps, err := Taps(p.Drafts)
	if err != nil {
		return err
	}
	if err := p.addTarget(&room, taps); err != nil {
		return err
	}
	for _, part := range room.Models[0].LeftOut {
		say(fmt.Sprintf("target %s holds %v, which is left out: tandem continues text, which does not depend on it", p.Target, part))
	}
	longest := room.Models[0].Context
	if p.Sizes.Ctx > longest {
		say(fmt.Sprintf("--ctx %d is more than the context of target %s: its %d are used", p.Sizes.Ctx, p.Target, longest))
	}
	longest = p.Sizes.ContextOf(longest)
	sides, err := Sides(p.Drafts, p.DraftHeads)
	if err != nil {
		return err
	}
	for _, d := range p.Drafts {
		note, foreign, err := p.compare(d, vocab)
		if err == nil && foreign && p.Same {
			err = tandem.Errorf("", tandem.Invalid, "it has another vocabulary than the target: %s", note)
		}
		if err == nil && foreign && len(sides[d]) > 0 {
			err = tandem.Errorf("", tandem.Invalid,
				"--draft-heads %s: draft model %s has another vocabulary than the target, and prompt tokens "+
					"are not translated: want it without them", strings.Join(sides[d], " "), d)
		}
		if err != nil {
			return err
		}
		if foreign {
			say(fmt.Sprintf("draft model %s has another vocabulary than the target: %s (%s)", d, token.TranslationCosts, note))
		} else if note != "" {
			say(fmt.Sprintf("draft model %s has not quite the target's vocabulary, which costs acceptance at most: %s", d, note))
		}
		if d == lookup.Name {
			continue
		}
		if err := room.Add(d, drafter.DefaultTreeRows, roles.DraftRows(room.Sizes), sides[d]...); err != nil {
			return err
		}
		if own := room.Models[len(room.Models)-1].Context; own < longest {
			say(fmt.Sprintf("draft model %s has a context of %d tokens, and the target %d: behind position %d it guesses nothing", d, own,
				longest,
				own))
		}
	}
	if err := p.plan(&room, say); err != nil || prompt == "" {
		return err
	}
	if p.Fit.One > 0 {
		longest = p.Fit.One
	}
	return checkPrompt(prompt, vocab, longest)
}

// checkPrompt refuses a prompt that a context does not hold. It encodes none that is short enough however it is cut.
func checkPrompt(prompt string, vocab *token.Vocab, context int) error {
	if len(prompt) < context/tokensPerByte {
		return nil
	}
	return tandem.ValidatePromptTokens(vocab.Encode(prompt, true), tandem.Limits{Context: context, Vocab: vocab.Size()})
}

// tokensPerByte is how many tokens, at most, a byte of a prompt becomes: composing characters makes a text up to 3 times as long in UTF-8
// (Unicode's UAX #15), each byte may be a token, and a fourth is for spaces and tokens that are added.
const tokensPerByte = 4

// addTarget plans the target, which is to hand out these hidden states.
func (p *Pair) addTarget(room *roles.Room, taps []int) error {
	if len(taps) > 0 {
		room.Options.Taps, room.Beside = taps, p.Features
	}
	err := room.Add(p.Target, tandem.DefaultLimits.Nodes, 0, p.Heads...)
	if room.Options.Taps = nil; err != nil {
		return err
	}
	return engine.CheckTarget("target "+p.Target, room.Models[0].Config)
}

// plan refuses models that do not fit into memory, and divides it. Drafts that are not worth their memory are left out: see weigh.
func (p *Pair) plan(room *roles.Room, say func(note string)) (err error) {
	available := memory.Free()
	if p.Own > 0 {
		available.Bytes, available.By = available.Bytes+min(p.Own, math.MaxInt64-available.Bytes), available.By+" and GPUs' memory together"
	}
	switch {
	case p.Streaming != nil:
		var chosen choice
		if chosen, err = p.weigh(room, available, say); err == nil {
			room, p.Budget, p.Streamed, p.Inside = chosen.room, chosen.Budget, chosen.Streamed(), chosen.inside
			p.Reads = chosen.Streams.Streamed
			p.keep(chosen.drafts)
		}
	case p.Own > 0 && p.KVMemory == 0:
		err = room.Check(available)
	default:
		err = room.Plan(available, 1)
	}
	p.Borrows = slices.ContainsFunc(room.Models, func(t roles.Tenant) bool { return t.Borrows() })
	if err != nil || p.Own > 0 && p.KVMemory == 0 {
		return err
	}
	p.Fit, p.Free, p.Rows = room.Fit(), available.Bytes, room.Models[0].Wanted()
	p.TargetKV, p.DraftKV = room.Pools()
	return nil
}

// Same returns Invalid if a draft model has another vocabulary than the target, beyond what costs acceptance at most.
func Same(target, draft string) error {
	vocab, err := token.Open(target)
	if err != nil {
		return err
	}
	note, foreign, err := (&Pair{}).compare(draft, vocab)
	if err == nil && foreign {
		err = tandem.Errorf("", tandem.Invalid, "it has another vocabulary than the target: %s", note)
	}
	return err
}

// compare refuses a draft model that cannot run. note describes a difference between its vocabulary and the target's, "" for none; if it is
// foreign, ids mean other texts.
func (p *Pair) compare(draft string, target *token.Vocab) (note string, foreign bool, err error) {
	if draft == lookup.Name {
		return "", false, nil
	}
	if side, err := engine.SideOf(draft); err != nil || side.Kind.IsDraft() {
		return "", false, err // it has no vocabulary of its own; whose it is is compared when its memory is measured
	}
	vocab, err := token.Open(draft)
	if err != nil {
		return "", false, err
	}
	if note, err = token.Compare(target.Listing(), vocab.Listing()); err != nil {
		return strings.Join(append([]string{cmp.Or(errors.Unwrap(err), err).Error()}, vocab.Notes()...), "; "), true, nil
	}
	return note, false, nil
}
