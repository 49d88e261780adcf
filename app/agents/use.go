package agents

import (
	"fmt"
	"time"
)

// Use is what a program had of a server.
type Use struct {
	Tokens      int64         // of answers
	Time        time.Duration // of the rounds that made them; prompts are not in it
	PlainRounds int64         // rounds of one token without a draft, which are a sample of plain decoding
	PlainTime   time.Duration
	Sampled     bool // the plain rounds were asked for at the end, since there were too few
	Drafts      bool // there is something that drafts
	Exact       bool // drafts are accepted only where plain decoding gives the same
}

// LeastPlain is how many plain rounds it takes to know what plain decoding takes.
const LeastPlain = 8

// Line sums the use up in one line for a person: tokens, their rate, and that rate over plain decoding's if it was measured.
func (u Use) Line() string {
	if u.Tokens == 0 || u.Time <= 0 {
		return "no tokens were generated"
	}
	rate := float64(u.Tokens) / u.Time.Seconds()
	out := fmt.Sprintf("%d tokens in %.1f s of decoding, %.1f tokens/s", u.Tokens, u.Time.Seconds(), rate)
	if !u.Drafts {
		return out + ", without drafts"
	}
	switch {
	case u.PlainRounds < LeastPlain || u.PlainTime <= 0:
		out += "; plain decoding was not measured"
	default:
		each := u.PlainTime.Seconds() / float64(u.PlainRounds)
		where := "among them"
		if u.Sampled {
			where = "with a short prompt at the end"
		}
		out += fmt.Sprintf(", %.2f times plain decoding (%.1f tokens/s, by %d rounds without drafts %s)", rate*each, 1/each, u.PlainRounds,
			where)
	}
	if u.Exact {
		return out + "; the same bits as without drafts"
	}
	return out + "; drafts were accepted by a lossy rule"
}
