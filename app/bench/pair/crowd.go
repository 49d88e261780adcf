package pair

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// crowds answers many requests at once, in all ways forwards and backwards, as often in a round for each number of requests.
func (r *runner) crowds(ctx context.Context) error {
	if err := r.warm(ctx, r.Ways); err != nil {
		return err
	}
	return r.rounds(func(k int) error {
		for _, n := range r.AtOnce {
			round := crowd{}
			for _, w := range abba(r.Ways, k) {
				run, err := r.together(ctx, w, n, r.Seed+uint64(k))
				if err != nil {
					return err
				}
				round[w.Name] = round[w.Name].and(run)
			}
			for _, w := range r.Ways {
				for i, a := range round[w.Name].answers {
					r.compare(w, r.Prompts[i%n%len(r.Prompts)], a)
				}
			}
			r.result.addCrowd(n, round)
		}
		return nil
	})
}

// and returns both runs as one.
func (a run) and(b run) run {
	return run{append(a.answers, b.answers...), a.tokens + b.tokens, a.took + b.took, a.waited + b.waited}
}

// together answers n requests, one for each of the next prompts, and begins them again with the first prompt when there are no more. They
// arrive as the seed says, the same for all ways.
func (r *runner) together(ctx context.Context, w Way, n int, seed uint64) (out run, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arrivals := rand.New(rand.NewPCG(seed, uint64(n)))
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
			if out.answers[i], errs[i] = r.ask(ctx, w, r.Prompts[i%len(r.Prompts)], r.MaxTokens, r.key()); errs[i] != nil {
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
	return out, err
}
