package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
)

type generateCmd struct {
	Prompt     *string  `help:"Text to continue." setting:"-"`
	PromptFile string   `help:"File with the text to continue. Without --prompt and --prompt-file: stdin." placeholder:"FILE" setting:"-"`
	Addr       string   `help:"Use the gateway at this address, with its models, instead of starting processes." placeholder:"ADDR"`
	APIKey     []string `name:"api-key" help:"Key for the gateway at --addr, if it wants one; of several the first." placeholder:"KEY" sep:"none"`
	samplingFlags
	groupFlags
	output
	seen func(*outcome) error `kong:"-"` // called at the end of a request that reports its rounds; nil: it does not
}

// Run continues one prompt.
func (c *generateCmd) Run(a *app) error {
	prompt, err := c.prompt(a)
	if err != nil {
		return err
	}
	r, err := c.request(prompt)
	if err != nil {
		return err
	}
	r.Report = c.seen != nil
	if c.Addr != "" {
		return c.generate(a.ctx, a, c.Addr, r)
	}
	l, err := c.launch(r.Bounds.Plain())
	if err != nil {
		return err
	}
	if l, err = a.checked(l, r); err != nil {
		return err
	}
	p, err := a.startProcesses(l)
	if err != nil {
		return err
	}
	return p.during(a, func(ctx context.Context) error { return c.generate(ctx, a, p.addr, r) })
}

// launch returns the processes that one generation needs. It has nothing to finish when it is told to
// stop, so they get no time for it.
func (c *generateCmd) launch(plain bool) (launch, error) {
	target, drafts, err := c.pair(plain)
	l := launch{groupFlags: c.groupFlags, target: target, drafts: drafts, sessions: c.sessionsOr(1)}
	l.Grace = 0
	return l, err
}

// prompt returns the text to continue.
func (c *generateCmd) prompt(a *app) (string, error) {
	switch {
	case c.Prompt != nil && c.PromptFile != "":
		return "", tandem.Errorf("", tandem.Invalid, "--prompt and --prompt-file together: want one")
	case c.Prompt != nil:
		return *c.Prompt, nil
	case c.PromptFile != "":
		f, err := os.Open(c.PromptFile)
		if err != nil {
			return "", tandem.Errorf("", tandem.Invalid, "--prompt-file %s: %w", c.PromptFile, reason(err))
		}
		defer f.Close()
		return readAll(f, "--prompt-file "+c.PromptFile)
	case isTerminal(a.stdin):
		return "", tandem.Errorf("", tandem.Invalid, "no prompt: give --prompt TEXT, --prompt-file FILE, or text on stdin")
	}
	return readAll(a.stdin, "stdin")
}

// checked returns l without drafts of another vocabulary than the target's, if others are left, saying which
// are left out and why; and refuses what checkPair refuses.
func (a *app) checked(l launch, r tandem.Request) (launch, error) {
	if len(l.drafts) > 1 {
		vocab, err := readVocab(l.target)
		if err != nil {
			return l, err
		}
		var good []string
		var bad []error
		for _, d := range l.drafts {
			err := checkDraft(l, d, vocab)
			switch {
			case err == nil:
				good = append(good, d)
			case errors.As(err, new(otherVocabulary)):
				bad = append(bad, err)
			default:
				return l, err
			}
		}
		if len(good) > 0 {
			l.drafts = good
			for _, err := range bad {
				fmt.Fprintln(a.stderr, "tandem: left out: "+oneLine(err.Error()))
			}
		}
	}
	return l, checkPair(l, r)
}

// checkPair refuses, before any process is started, models that cannot run, do not belong together or
// do not fit into memory, and a prompt that does not fit.
func checkPair(l launch, r tandem.Request) error {
	for _, f := range []struct {
		name string
		n    int
	}{{"drafter-threads", l.DrafterThreads}, {"verifier-threads", l.VerifierThreads}} {
		if err := checkThreads(f.name, f.n); err != nil {
			return err
		}
	}
	if _, err := l.prefixFlags.pages(); err != nil {
		return err
	}
	if l.InlineLimit < 0 {
		return tandem.Errorf("", tandem.Invalid, "--inline-limit is %d: want 0 or more bytes", l.InlineLimit)
	}
	if err := (sizeFlags{l.Ctx, l.sessions}).check(); err != nil {
		return err
	}
	if err := l.kvFlags.check(); err != nil {
		return err
	}
	vocab, err := readVocab(l.target)
	if err != nil {
		return err
	}
	room := room{sessions: l.sessions, ctx: l.Ctx, kvType: l.KVType}
	if err := room.add(l.target, treeRows); err != nil {
		return err
	}
	for _, d := range l.drafts {
		if err := checkDraft(l, d, vocab); err != nil {
			return err
		}
		if d == lookupDraft {
			continue
		}
		if err := room.add(d, drafter.DefaultTreeRows); err != nil {
			return err
		}
	}
	if _, err := l.rules(); err != nil {
		return err
	}
	if err := room.check(engine.AvailableMemory()); err != nil {
		return err
	}
	if r.Prompt == "" {
		return nil
	}
	limits := tandem.Limits{Context: l.context(room.models[0].context), Vocab: vocab.Size()}
	return tandem.ValidatePromptTokens(vocab.Encode(r.Prompt, true), limits)
}

// otherVocabulary is the error of a draft model that is sound, but not for this target.
type otherVocabulary struct{ error }

func (e otherVocabulary) Unwrap() error { return e.error }

// checkDraft refuses a draft model that cannot run or speaks another vocabulary than the target.
func checkDraft(l launch, draft string, target *token.Vocab) error {
	if draft == lookupDraft {
		return nil
	}
	vocab, err := readVocab(draft)
	if err != nil {
		return err
	}
	note, err := token.Compare(target.Listing(), vocab.Listing())
	if err == nil && note != "" {
		err = errors.New(note) // drafters cannot stand in for tokens that they lack yet
	}
	if err != nil {
		return otherVocabulary{tandem.Errorf("", tandem.Invalid, "draft model %s does not speak the vocabulary of target %s: %w", draft, l.target, err)}
	}
	return nil
}

// generation is the result of generate as --json prints it.
type generation struct {
	Text           string         `json:"text"`
	Tokens         []tandem.Token `json:"tokens"`
	PromptTokens   int            `json:"prompt_tokens"`
	PromptTokenIDs []tandem.Token `json:"prompt_token_ids"`
	CachedTokens   int            `json:"cached_prompt_tokens"` // found in the verifier's memory
	Logprobs       []logprob      `json:"logprobs,omitempty"`   // of --logprobs: one per token
	FinishReason   string         `json:"finish_reason"`
	Stopped        string         `json:"stopped,omitempty"` // the stop sequence that ended it
	Stats          statistics     `json:"stats"`
}

// statistics sums up one generation, as the answers over HTTP do.
type statistics struct{ oai.Stats }

// summarise computes the statistics of a generation of n tokens, the first of which came so long after the request, the
// processes being up.
func summarise(s client.Statistics, n int, first time.Duration) statistics {
	r := tandem.Result{OutputTokens: n, Stats: tandem.Stats{
		Rounds: s.Rounds, Drafted: s.Drafted, DraftedDepth: s.DraftedDepth, Accepted: s.Accepted, PlainRounds: s.PlainRounds, Reopened: s.Reopened,
		Prefill: s.Prefill, Decode: s.Decode, DraftBusy: s.DraftBusy, VerifyBusy: s.VerifyBusy, Coordination: s.Coordination,
		AheadHits: s.AheadHits, AheadTries: s.AheadTries, AheadBusy: s.AheadBusy, AheadUseful: s.AheadUseful,
		Choices: s.Choices, Reasons: s.Reasons, Planning: s.Planning}}
	for _, d := range s.Drafters {
		r.Stats.Drafters = append(r.Stats.Drafters, tandem.DrafterStats(d))
	}
	return statistics{*oai.NewStats(r, first)}
}

// line words the statistics for the end of a generation of n tokens.
func (s statistics) line(n int) string {
	out := fmt.Sprintf("%d tokens, %.1f tokens/s, %d rounds, %.2f tokens per round", n, s.TokensPerSecond, s.Rounds, s.TokensPerRound)
	if s.Drafted == 0 {
		return out + ", no drafts"
	}
	return out + fmt.Sprintf(", accepted %d: %.0f %% of the levels drafted, %.0f %% of the nodes", s.Accepted, 100*s.DepthAcceptance, 100*s.NodeAcceptance)
}

// share returns a/b, 0 for b = 0.
func share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
func us(d time.Duration) float64 { return float64(d) / 1e3 }

// isTerminal reports whether f is a terminal: a character device that is not /dev/null.
func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}

// endLine ends the last line of text on a terminal.
func endLine(a *app, text string) {
	if f, ok := a.stdout.(*os.File); ok && isTerminal(f) && !strings.HasSuffix(text, "\n") {
		fmt.Fprintln(a.stdout)
	}
}
