package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/lab/campaign/history"
)

// Config is one campaign.
type Config struct {
	Layout  Layout
	Length  time.Duration // of the faults and the load
	Seed    uint64
	Kinds   []string      // of faults
	Beat    time.Duration // between kills
	Clients int           // that ask at the same time
	Tandem  string        // the program
	Other   string        // the program of another release, "" for none
	Lab     string        // this program
	Models  string        // the folder of the shipped models
	Dir     string        // an empty folder for the history, the logs and the files of the boxes
	Say     io.Writer     // what goes on
	// Strategies that requests name in turn: also those that ask a drafter where the planner would ask nobody. At least one.
	Strategies []string
}

const (
	startTime   = 60 * time.Second // for all processes to be ready
	recoverTime = 90 * time.Second // behind the last fault, for all to be well
	askTime     = 5 * time.Minute  // of one request; one that has no end by then is lost
	closeTime   = 2 * time.Minute  // behind the faults, for requests under way
)

// Validate refuses values that no campaign can have.
func (c Config) Validate() error {
	switch {
	case c.Layout.Boxes < 1 || c.Layout.Boxes > 26:
		return fmt.Errorf("%d boxes: want 1 to 26", c.Layout.Boxes)
	case c.Length <= 0:
		return fmt.Errorf("a campaign of %v: want more than 0", c.Length)
	case c.Beat < 100*time.Millisecond:
		return fmt.Errorf("a kill every %v: want at least 100ms between them", c.Beat)
	case c.Clients < 1:
		return fmt.Errorf("%d clients: want at least one", c.Clients)
	}
	return nil
}

// Run runs a campaign in the hub's namespaces, which Enter has made, and judges it.
func Run(ctx context.Context, c Config) (_ *history.Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(c.Dir, "history.jsonl"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	bin, err := c.programs()
	if err != nil {
		return nil, err
	}
	h, err := newHub(ctx, c.Layout, c.Dir, history.NewLog(file))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if h.limits, err = newLimits(); err != nil {
		fmt.Fprintln(c.Say, "without memory limits:", err)
	}
	for n := range c.Layout.Boxes {
		if err := h.start(ctx, n+1, bin, c.Models); err != nil {
			return nil, err
		}
	}
	if err := h.await(ctx, startTime); err != nil {
		return nil, err
	}
	gates, err := h.dial()
	if err != nil {
		return nil, err
	}
	for _, g := range gates {
		defer g.grpc.Close()
	}
	k := &campaign{Config: c, hub: h, gates: gates}
	if err := k.run(ctx); err != nil {
		return nil, err
	}
	all, err := h.log.Records()
	return history.Check(all), err
}

// programs puts the programs into one folder, which the boxes see.
func (c Config) programs() (dir string, err error) {
	dir = filepath.Join(c.Dir, "bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for name, from := range map[string]string{"tandem": c.Tandem, "tandem-lab": c.Lab, "other": c.Other} {
		if from == "" {
			continue
		}
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o755)
		}
		if err != nil {
			return "", fmt.Errorf("program for the boxes: %w", err)
		}
	}
	return dir, nil
}

// campaign is a campaign under way.
type campaign struct {
	Config
	hub   *hub
	gates []*gate
	ids   atomic.Int64
}

// run has four parts: references and levels in peace, faults under load, rest, and the same requests and levels again.
func (k *campaign) run(ctx context.Context) error {
	watched, end := context.WithCancel(ctx)
	defer end()
	go k.hub.watch(watched)
	if err := k.references(ctx); err != nil {
		return err
	}
	if err := k.peace(ctx); err != nil {
		return err
	}
	if err := k.hub.levels(ctx, k.gates, "before"); err != nil {
		return err
	}
	if err := k.disturbed(ctx); err != nil {
		return err
	}
	fmt.Fprintln(k.Say, "the faults are over")
	if err := k.hub.await(ctx, recoverTime); err != nil {
		return err
	}
	if err := k.recovered(ctx); err != nil {
		return err
	}
	if err := k.peace(ctx); err != nil {
		return err
	}
	return k.hub.levels(ctx, k.gates, "after")
}

// references computes every answer once by plain decoding over gRPC, one after another.
func (k *campaign) references(ctx context.Context) error {
	for _, a := range asks(k.Strategies) {
		a.plain = true
		r := a.run(ctx, "grpc", k.gates, 0, 0)
		if r.Outcome != history.Whole {
			return fmt.Errorf("reference of %s: %s %s", a.name, r.Code, r.Message)
		}
		r.Kind, r.Outcome = history.Reference, ""
		k.hub.log.Add(r)
	}
	fmt.Fprintf(k.Say, "%d references\n", len(asks(k.Strategies)))
	return nil
}

// peace puts every request to every gateway by every API, and compares what gateways and clients counted.
func (k *campaign) peace(ctx context.Context) error {
	for i, g := range k.gates {
		before, err := metrics(ctx, g)
		if err != nil {
			return err
		}
		told := map[string]float64{}
		for n, a := range asks(k.Strategies) {
			r := k.ask(ctx, a, []string{"grpc", "http"}[n%2], i, 0)
			if r.Outcome != history.Whole || len(r.Errors) > 0 {
				return fmt.Errorf("%s by %s at %s, undisturbed: %s %s %s, errors %v", a.name, r.Via, g.name, r.Outcome, r.Code, r.Message,
					r.Errors)
			}
			told[counted[0]] += float64(r.Prompt)
			told[counted[1]] += float64(r.Output)
			told[counted[2]]++
		}
		after, err := metrics(ctx, g)
		if err != nil {
			return err
		}
		if guessed(after) == guessed(before) {
			return fmt.Errorf("no token of a draft model was accepted at %s, undisturbed: its drafters do not draft", g.name)
		}
		for _, what := range counted {
			k.hub.log.Add(history.Record{Kind: history.Counts, Process: g.name, What: what, Value: after[what] - before[what],
				Told: told[what]})
		}
	}
	return nil
}

// ask puts one request and writes down what came of it: nothing, if it has no end. first is the gateway that is asked first.
func (k *campaign) ask(ctx context.Context, a ask, via string, first, enough int) history.Record {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	id := int(k.ids.Add(1))
	k.hub.log.Add(history.Record{Kind: history.Request, ID: id, Ask: a.name, Via: via})
	r := a.run(ctx, via, k.gates, first, enough)
	if r.ID = id; r.Outcome != "" {
		k.hub.log.Add(r)
	}
	return r
}

// disturbed runs faults and load beside each other. Requests under way when the faults end have a while to end.
func (k *campaign) disturbed(ctx context.Context) error {
	kinds, storms := k.possible(ctx)
	loaded, stop := context.WithTimeout(ctx, k.Length+closeTime)
	defer stop()
	over := time.Now().Add(k.Length)
	var clients, faults sync.WaitGroup
	all := asks(k.Strategies)
	for i := range k.Clients {
		clients.Go(func() {
			for r := rand.New(rand.NewPCG(k.Seed, uint64(i))); time.Now().Before(over) && loaded.Err() == nil; {
				k.ask(loaded, all[r.IntN(len(all))], []string{"grpc", "http"}[r.IntN(2)], r.IntN(len(k.gates)), 0)
			}
		})
	}
	failed := make(chan error, 1)
	begun := time.Now()
	for n, f := range schedule(k.hub.layout, kinds, k.Length, k.Beat, k.Seed) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(begun.Add(f.at))):
		}
		if f.kind == Cancel && storms {
			faults.Go(func() { k.storm(loaded, n, f) })
			continue
		}
		faults.Go(func() {
			if err := k.hub.inject(ctx, n+1, f); err != nil {
				select {
				case failed <- err:
				default: // one is enough
				}
			}
		})
	}
	faults.Wait()
	clients.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

// possible returns the kinds of faults that can be had here, and writes down the others.
func (k *campaign) possible(ctx context.Context) (kinds []string, storms bool) {
	for _, kind := range k.Kinds {
		if why := k.hub.unsupported(ctx, kind); why != "" {
			k.hub.log.Add(history.Record{Kind: history.Skipped, What: kind, Message: why})
			fmt.Fprintf(k.Say, "skipped: %s, %s\n", kind, why)
			continue
		}
		kinds = append(kinds, kind)
		storms = storms || kind == Cancel
	}
	fmt.Fprintf(k.Say, "%v of %s\n", k.Length, strings.Join(append(kinds, "load"), ", "))
	return kinds, storms
}

// storm lets many clients come at once, each of which leaves after a few events.
func (k *campaign) storm(ctx context.Context, n int, f fault) {
	k.hub.log.Add(history.Record{Kind: history.Fault, ID: n + 1, What: f.kind, Target: "clients"})
	r := rand.New(rand.NewPCG(f.seed, 2))
	var clients sync.WaitGroup
	for range 3 * k.Clients {
		all := asks(k.Strategies)
		a, via, first, enough := all[r.IntN(len(all))], []string{"grpc", "http"}[r.IntN(2)], r.IntN(len(k.gates)), 1+r.IntN(12)
		clients.Go(func() { k.ask(ctx, a, via, first, enough) })
	}
	clients.Wait()
	k.hub.log.Add(history.Record{Kind: history.Healed, ID: n + 1, What: f.kind, Target: "clients"})
}

// recovered waits until every gateway answers at the first attempt, with drafts.
func (k *campaign) recovered(ctx context.Context) error {
	for _, g := range k.gates {
		for end := time.Now().Add(recoverTime); ; time.Sleep(time.Second) {
			err := k.well(ctx, g)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("gateway %s is not well %v after the faults: %w", g.name, recoverTime, err)
			}
		}
	}
	return nil
}

// well returns nil if a gateway answers, and its draft models have guessed a token of one of the answers.
func (k *campaign) well(ctx context.Context, g *gate) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	before, err := metrics(ctx, g)
	if err != nil {
		return err
	}
	for _, a := range asks(k.Strategies) {
		if err := a.post(ctx, g, &progress{}); err != nil {
			return err
		}
		after, err := metrics(ctx, g)
		if err != nil || guessed(after) > guessed(before) {
			return err
		}
	}
	return errors.New("no token of a draft model was accepted")
}
