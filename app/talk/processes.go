package talk

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// Processes are a gateway and the processes behind it, as packages app/bench/system and lab/devices measure them.
type Processes struct {
	Gateway *client.Client
	Of      func() map[string]int // process ids by name
	Draft   []string              // paths of the drafts
}

// Generate runs r to its end and calls show with the tokens as they come. Errors: the gateway's, as by Error.
func (p Processes) Generate(ctx context.Context, r tandem.Request, show func([]tandem.Token)) (out tandem.Result, err error) {
	for event, err := range p.Gateway.Generate(ctx, Wire(r)) {
		switch {
		case err != nil:
			return out, Error(err)
		case event.Delta != nil:
			show(Tokens(event.Delta.Tokens))
		case event.Finished != nil:
			out = Result(*event.Finished)
		}
	}
	return out, nil
}

// Counters returns the sums of the processes' counters by role; nil if the gateway cannot tell.
func (p Processes) Counters(ctx context.Context) map[string]map[string]int64 {
	d, err := p.Gateway.Describe(ctx)
	if err != nil {
		return nil
	}
	out := map[string]map[string]int64{}
	for _, p := range d.GetProcesses() {
		if out[p.GetRole()] == nil {
			out[p.GetRole()] = map[string]int64{}
		}
		for name, n := range p.GetCounters() {
			out[p.GetRole()][name] += n
		}
	}
	return out
}

// PIDs returns the process ids by name.
func (p Processes) PIDs() map[string]int { return p.Of() }

// Drafts returns the paths of the drafts.
func (p Processes) Drafts() []string { return p.Draft }
