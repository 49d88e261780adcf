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
)

type generateCmd struct {
	Prompt     *string `help:"Text to continue." setting:"-"`
	PromptFile string  `help:"File with the text to continue. Without --prompt and --prompt-file: stdin." placeholder:"FILE" setting:"-"`
	Addr       string  `help:"Use the gateway at this address, with its models, instead of starting processes." placeholder:"ADDR"`
	samplingFlags
	groupFlags
	output
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
	if c.Addr != "" {
		return c.generate(a.ctx, a, c.Addr, r)
	}
	l, err := c.launch(r.Policy.Plain())
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
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() { // a process that is gone for good ends the request
		defer close(watched)
		select {
		case err := <-p.group.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err = c.generate(ctx, a, p.addr, r)
	if gone := context.Cause(ctx); err != nil && gone != nil {
		err = gone
	}
	cancel(nil)
	<-watched
	return errors.Join(err, p.stop(a.force))
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
	if err := token.Diff(target, vocab); err != nil {
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
	FinishReason   string         `json:"finish_reason"`
	Stats          statistics     `json:"stats"`
}

// statistics sums up one generation.
type statistics struct {
	Rounds          int     `json:"rounds"`
	Drafted         int     `json:"drafted"`
	DraftedDepth    int     `json:"drafted_depth"`
	Accepted        int     `json:"accepted"`
	PlainRounds     int     `json:"plain_rounds"`
	Reopened        int     `json:"reopened"`
	TokensPerRound  float64 `json:"tokens_per_round"`
	NodeAcceptance  float64 `json:"acceptance_per_node"`
	DepthAcceptance float64 `json:"acceptance_per_depth"`
	PrefillMS       float64 `json:"prefill_ms"`
	DecodeMS        float64 `json:"decode_ms"`
	DraftMS         float64 `json:"draft_ms"`
	VerifyMS        float64 `json:"verify_ms"`
	CoordinationP50 float64 `json:"coordination_p50_us"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	FirstTokenMS    float64 `json:"first_token_ms"` // from the request, the processes being up

	Choices       map[string]int     `json:"choices"`         // rounds by what the strategy chose
	Drafters      []drafterStatistic `json:"drafters"`        // what each contributed
	AheadHits     int                `json:"ahead_hits"`      // rounds whose tree had been begun ahead, while the target verified
	AheadTries    int                `json:"ahead_tries"`     // rounds after which a drafter went on ahead
	AheadMS       float64            `json:"ahead_ms"`        // draft arithmetic ahead of the rounds
	AheadUsefulMS float64            `json:"ahead_useful_ms"` // the part of it that went into trees
	PlanningMS    float64            `json:"planning_ms"`     // spent on votes, weights, lengths and choices
	PlanningShare float64            `json:"planning_share"`  // of the time to decode
}

// drafterStatistic is what one drafter contributed to a generation.
type drafterStatistic struct {
	Name     string  `json:"name"`
	Rounds   int     `json:"rounds"`
	Drafted  int     `json:"drafted"`
	Accepted int     `json:"accepted"`
	Weight   float64 `json:"weight"`
}

// summarise computes the statistics of a generation of n tokens.
func summarise(s client.Statistics, n int, first time.Duration) statistics {
	out := statistics{
		Rounds: s.Rounds, Drafted: s.Drafted, DraftedDepth: s.DraftedDepth, Accepted: s.Accepted,
		PlainRounds: s.PlainRounds, Reopened: s.Reopened,
		TokensPerRound:  share(float64(n), float64(s.Rounds)),
		NodeAcceptance:  share(float64(s.Accepted), float64(s.Drafted)),
		DepthAcceptance: share(float64(s.Accepted), float64(s.DraftedDepth)),
		PrefillMS:       ms(s.Prefill), DecodeMS: ms(s.Decode), DraftMS: ms(s.DraftBusy), VerifyMS: ms(s.VerifyBusy),
		CoordinationP50: us(quantile(s.Coordination, 0.5)),
		TokensPerSecond: share(float64(n), s.Decode.Seconds()),
		FirstTokenMS:    ms(first),

		Choices: s.Choices, Drafters: []drafterStatistic{}, AheadHits: s.AheadHits, AheadTries: s.AheadTries,
		AheadMS: ms(s.AheadBusy), AheadUsefulMS: ms(s.AheadUseful), PlanningMS: ms(s.Planning),
		PlanningShare: share(s.Planning.Seconds(), s.Decode.Seconds()),
	}
	for _, d := range s.Drafters {
		out.Drafters = append(out.Drafters, drafterStatistic(d))
	}
	if out.Choices == nil {
		out.Choices = map[string]int{}
	}
	return out
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
