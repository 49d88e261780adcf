package test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// finish runs r to its end.
func finish(t *testing.T, c *client.Client, r client.Request) (tokens []uint32, done client.Finished, err error) {
	t.Helper()
	for e, err := range c.Generate(t.Context(), r) {
		switch {
		case err != nil:
			return tokens, done, err
		case e.Delta != nil:
			tokens = append(tokens, e.Delta.Tokens...)
		case e.Finished != nil:
			done = *e.Finished
		}
	}
	return tokens, done, nil
}

// TestDrafterProcesses has four drafter processes that only NATS tells of: all draft, one ends in order and
// comes back, a second of its name joins, and the text stays the same.
func TestDrafterProcesses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, clusterConfig{})
	start := func(socket, draft string) *process {
		draft = "../models/" + draft + ".gguf"
		p := c.tandem(t, "drafter", "--listen", "unix://"+filepath.Join(c.dir, socket), "--pool", c.natsURL, "--threads", "1", "--draft",
			draft)
		c.drafters = append(c.drafters, p)
		p.start()
		return p
	}
	tokens := 96
	request := client.Request{Prompt: "func (r *Reader) Read(", MaxTokens: &tokens, Temperature: new(0.0), NoDraft: true}
	want, _, err := finish(t, c.client, request)
	if err != nil {
		t.Fatal(err)
	}
	request.NoDraft = false
	var processes []*process
	for _, e := range experts[:3] { // the gateway has lookup
		processes = append(processes, start(e+".s", e))
	}
	run := func(strategy string, drafters ...string) client.Statistics {
		t.Helper()
		r := request
		r.Strategy, r.Drafters = strategy, drafters
		got, done, err := finish(t, c.client, r)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s of %v: tokens %v, %v: want %v", strategy, drafters, got, err, want)
		}
		return done.Statistics
	}
	known := func(drafters ...string) func() bool {
		return func() bool {
			r := request
			r.Strategy, r.Drafters = "fixed", drafters
			_, _, err := finish(t, c.client, r)
			if err != nil && !strings.Contains(err.Error(), "is not there") {
				t.Fatal(err)
			}
			return err == nil
		}
	}
	testkit.Eventually(t, "all four drafters", known(experts...))
	for _, strategy := range []string{"planner", "fixed", "llmcad", "minions"} {
		if s := run(strategy, experts...); s.Drafted == 0 {
			t.Errorf("%s drafted nothing: %+v", strategy, s.Choices)
		}
	}
	first := experts[0]
	if s := run("fixed", first); len(s.Drafters) != 1 || s.Drafters[0].Name != first || s.Drafters[0].Accepted == 0 {
		t.Errorf("%s alone: %+v", first, s.Drafters)
	}
	processes[0].stop()
	if s := run("fixed", first); s.Drafted != 0 {
		t.Errorf("a drafter that has ended drafted %d nodes", s.Drafted)
	}
	processes[0].start()
	testkit.Eventually(t, first+" to be back", func() bool { return run("fixed", first).Drafted > 0 })
	start("twin.s", first)
	testkit.Eventually(t, "a second drafter of one name", known(first+"#2"))
	if s := run("fixed", first+"#2"); len(s.Drafters) != 1 || s.Drafters[0].Name != first+"#2" || s.Drafters[0].Accepted == 0 {
		t.Errorf("the second %s alone: %+v", first, s.Drafters)
	}
}
