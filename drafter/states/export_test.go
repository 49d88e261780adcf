package states

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
)

func feedsOf(d *grow.Draft) *Feeds { return d.Traits.Gate.(*Feeds) }

// Came waits until all features that were asked for in the background have come.
func Came(d *grow.Draft) { feedsOf(d).background.running.Wait() }

// Hold sets how many features of a prompt are kept at most until all have come.
func Hold(d *grow.Draft, rows int) { d.Config.FeatureRows = rows }

// Sure returns how many rows of a session's sequence are final. Call it on the schedule's goroutine.
func Sure(d *grow.Draft, id tandem.SessionID) int { return feedsOf(d).of(id).Sure() }

// Open returns how many sessions have a feed.
func Open(d *grow.Draft) int {
	fs := feedsOf(d)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.open)
}
