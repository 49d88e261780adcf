package pair

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// crowds answers many requests at once, in all ways by turns. A round has a pair of runs for each way and number of requests.
func (r *runner) crowds(ctx context.Context) error {
	if err := r.warm(ctx, r.Ways); err != nil {
		return err
	}
	for k := range r.Rounds {
		for _, n := range r.AtOnce {
			round := crowd{}
			for i := range r.Ways {
				if k%2 == 1 {
					i = len(r.Ways) - 1 - i
				}
				run, err := r.together(ctx, r.Ways[i], n, uint64(k))
				if err != nil {
					return err
				}
				round[r.Ways[i].Name] = run
			}
			for _, w := range r.Ways {
				for i, a := range round[w.Name].answers {
					r.compare(w, r.Prompts[i%len(r.Prompts)], a)
				}
			}
			r.result.addCrowd(n, round)
			r.Progress("round %d of %d: %d requests at once in %d ways", k+1, r.Rounds, n, len(r.Ways))
		}
	}
	return nil
}

// together answers n requests, one for each of the next prompts, and begins them again with the first prompt when there are no more. They
// arrive as round says, the same for all ways.
func (r *runner) together(ctx context.Context, w Way, n int, round uint64) (out run, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arrivals := rand.New(rand.NewPCG(round, uint64(n)))
	out.answers = make([]answer, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	began := time.Now()
	due := began
	for i := range n {
		at := due
		due = due.Add(time.Duration(arrivals.ExpFloat64() * float64(r.Gap)))
		wg.Go(func() {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(at)):
			}
			if out.answers[i], errs[i] = r.ask(ctx, w, r.Prompts[i%len(r.Prompts)], r.MaxTokens); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	out.took = time.Since(began)
	for i, a := range out.answers {
		if errs[i] != nil && (err == nil || errors.Is(err, context.Canceled)) {
			err = errs[i]
		}
		out.tokens += a.tokens
		out.waited += a.whole
	}
	out.waited /= time.Duration(n)
	return out, err
}
