package wire

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

const (
	mostWays    = 16 // that one message names
	mostWayName = 32 // bytes of a self-draft's name
)

// toWays decodes the names of self-drafts. No process asks for more than mostWays; more are an error, because they must fit into tickets.
func toWays(names []string) ([]string, error) {
	if len(names) > mostWays || slices.ContainsFunc(names, func(s string) bool { return len(s) > mostWayName }) {
		return nil, tandem.Errorf(op, tandem.Corrupt,
			"%d self-drafts are asked for, the first %.40q: want at most %d with names of at most %d bytes", len(names), names[0], mostWays,
			mostWayName)
	}
	return names, nil
}

// toSuccessors decodes how many successors of each node are asked for.
func toSuccessors(n uint32) (int, error) {
	if n > tandem.MostSuccessors {
		return 0, tandem.Errorf(op, tandem.Corrupt, "%d successors of each node are asked for: want 0 to %d", n, tandem.MostSuccessors)
	}
	return int(n), nil
}

func fromSuccessors(tokens []tandem.Token) []uint32 {
	if len(tokens) == 0 {
		return nil
	}
	return FromTokens(tokens)
}

// successors returns a verdict's successors, whose tokens may be anything. More than its nodes can have become none, rather than an error:
// a verdict is right without them.
func successors(v *peerv1.Verdict) []tandem.Token {
	if n := len(v.GetSuccessors()); n == 0 || n > int(max(v.GetNodes(), 0))*tandem.MostSuccessors {
		return nil
	}
	return ToTokens(v.GetSuccessors())
}

// FromGuesses encodes guesses.
func FromGuesses(all []tandem.Guess) (out []*peerv1.Guess) {
	for _, g := range all {
		m := &peerv1.Guess{Way: g.SelfDraft}
		for _, level := range g.Levels {
			l := &peerv1.GuessLevel{}
			for _, c := range level {
				l.Tokens, l.LogProbs = append(l.Tokens, uint32(c.Token)), append(l.LogProbs, c.LogProb)
			}
			m.Levels = append(m.Levels, l)
		}
		out = append(out, m)
	}
	return out
}

// ToGuesses decodes guesses, which must still pass Guess.Validate. Lists that do not belong together, or that are too long, become guesses
// that do not pass it, rather than an error: a verdict is right without its guesses. Of levels and candidates beyond the bounds one is
// kept, and the others are left out.
func ToGuesses(all []*peerv1.Guess) (out []tandem.Guess) {
	for _, m := range all[:min(len(all), mostWays)] {
		g := tandem.Guess{SelfDraft: m.GetWay()}
		for _, l := range m.GetLevels()[:min(len(m.GetLevels()), tandem.MostLevels+1)] {
			level := make([]tandem.TopLogprob, min(max(len(l.GetTokens()), len(l.GetLogProbs())), tandem.MostCandidates+1))
			for i := range level {
				level[i] = tandem.TopLogprob{Token: -1, LogProb: float32(math.NaN())}
				if i < len(l.GetTokens()) {
					level[i].Token = tandem.Token(l.GetTokens()[i])
				}
				if i < len(l.GetLogProbs()) {
					level[i].LogProb = l.GetLogProbs()[i]
				}
			}
			g.Levels = append(g.Levels, level)
		}
		out = append(out, g)
	}
	return out
}

// guessing returns the time of a verdict's guesses; an impossible one is 0.
func guessing(v *peerv1.Verdict) time.Duration { return time.Duration(max(v.GetGuessingNs(), 0)) }

func fromOffers(ways []tandem.SelfDraft) (out []*peerv1.Way) {
	for _, w := range ways {
		out = append(out, &peerv1.Way{Name: w.Name, Levels: int32(w.Levels), Members: int32(w.Members), Greedy: fromLines(w.Greedy),
			Sampled: fromLines(w.Sampled), GuessNs: int64(w.Time)})
	}
	return out
}

func fromLines(lines [tandem.MostLevels]tandem.Line) (out []*peerv1.WayLine) {
	for _, l := range lines {
		if l == (tandem.Line{}) {
			break
		}
		out = append(out, &peerv1.WayLine{Slope: l.Slope, Bias: l.Bias})
	}
	return out
}

func toLines(lines []*peerv1.WayLine) (out [tandem.MostLevels]tandem.Line) {
	for i, l := range lines[:min(len(lines), len(out))] {
		out[i] = tandem.Line{Slope: l.GetSlope(), Bias: l.GetBias()}
	}
	return out
}

// toOffers decodes the self-drafts of a description; those that no verifier can have are left out.
func toOffers(ways []*peerv1.Way) (out []tandem.SelfDraft) {
	for _, m := range ways[:min(len(ways), mostWays)] {
		w := tandem.SelfDraft{Name: m.GetName(), Levels: int(m.GetLevels()), Members: int(m.GetMembers()), Greedy: toLines(m.GetGreedy()),
			Sampled: toLines(m.GetSampled()), Time: time.Duration(m.GetGuessNs())}
		if w.Valid() {
			out = append(out, w)
		}
	}
	return out
}
