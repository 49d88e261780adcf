package agents

import (
	"fmt"
	"time"
)

// Use is what a program had of a server.
type Use struct {
	Tokens int64         // of answers
	Time   time.Duration // of the rounds that made them; prompts are not in it
	Plain  time.Duration // what plain decoding of them would have taken; 0: not known
	Drafts bool          // there is something that drafts
	Exact  bool          // drafts are accepted only where plain decoding gives the same
}

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
	if u.Plain > 0 {
		out += fmt.Sprintf(", %.2f times plain decoding", u.Plain.Seconds()/u.Time.Seconds())
	}
	if u.Exact {
		return out + "; the same bits as without drafts"
	}
	return out + "; drafts were accepted by a lossy rule"
}
