package console

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
)

// unsaid is how long a prompt is read before anything is said of it: most take less.
const unsaid = 500 * time.Millisecond

// Reading returns what shows on to how far a prompt has been read, in one line that is overwritten, and removed at the end; nil if to is
// no terminal.
func Reading(to io.Writer) talk.Reading {
	f, ok := to.(*os.File)
	if !ok || !terminal.Is(f) {
		return nil
	}
	drawn := false
	return func(p *client.PromptProgress) {
		switch {
		case p != nil && p.Time >= unsaid:
			fmt.Fprintf(to, "\r\x1b[Kreading the prompt: %s", howFar(*p))
			drawn = true
		case p == nil && drawn:
			fmt.Fprint(to, "\r\x1b[K")
			drawn = false
		}
	}
}

// howFar says how far a prompt has been read and, if anything has been read, how long it will still take.
func howFar(p client.PromptProgress) string {
	out := fmt.Sprintf("%d of %d tokens, %d %%", p.Processed, p.Total, 100*p.Processed/max(p.Total, 1))
	if done := p.Processed - p.Cached; done > 0 {
		left := time.Duration(float64(p.Time) * float64(p.Total-p.Processed) / float64(done))
		out += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	return out
}
