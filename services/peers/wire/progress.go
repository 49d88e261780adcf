package wire

import (
	"time"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// FromProgress encodes a progress.
func FromProgress(p tandem.Progress) *peerv1.Progress {
	return &peerv1.Progress{Held: int32(p.Held), Cached: int32(p.Cached), Steps: p.Steps, PassNs: int64(p.Pass)}
}

// ToProgress decodes a progress. Its values are whatever the sender wrote, except that a negative number of tokens becomes 0.
func ToProgress(p *peerv1.Progress) tandem.Progress {
	return tandem.Progress{Held: int(max(p.GetHeld(), 0)), Cached: int(max(p.GetCached(), 0)), Steps: p.GetSteps(),
		Pass: time.Duration(p.GetPassNs())}
}
