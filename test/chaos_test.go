package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
)

// poolMessages are the tickets and the answers to their senders.
func poolMessages(subject string) bool {
	return strings.HasSuffix(subject, ".ticket") || strings.HasPrefix(subject, "_INBOX.")
}

// TestPoolChaos loses, doubles and reorders a tenth each of the pool's messages: the text stays the
// same, and speculation goes on. The long form does it with a target at its real cost, where
// speculation must still pay.
func TestPoolChaos(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	rough := chaos{drop: 0.1, double: 0.1, delay: 0.1, longest: 20 * time.Millisecond, subjects: poolMessages}
	var proxy *natsProxy
	cfg := clusterConfig{pool: func(url string) string { proxy = newNATSProxy(t, url, rough); return proxy.url() }}
	sessions, tokens := 8, 32
	if *long {
		cfg.target = largeTarget(t)
		sessions, tokens = 4, 200
	}
	c := newCluster(t, cfg)
	jobs := c.workload(t, sessions, tokens)
	c.once(t, jobs)

	// One request after the other, so that the times can be compared.
	var plainTime, roughTime time.Duration
	drafted, accepted := 0, 0
	timed := func(r client.Request, want []uint32) time.Duration {
		got, err := c.try(t.Context(), r)
		if err != nil || !slices.Equal(got.tokens, want) {
			t.Errorf("%v: tokens\n%v, undisturbed\n%v", err, got.tokens, want)
		}
		drafted += got.finished.Statistics.Drafted
		accepted += got.finished.Statistics.Accepted
		return got.finished.Statistics.Decode
	}
	for _, j := range jobs[:3] {
		plainTime += timed(plain(j.request), j.want)
		proxy.disturb(true)
		roughTime += timed(j.request, j.want)
		proxy.disturb(false)
	}
	if drafted == 0 || accepted == 0 {
		t.Errorf("%d nodes drafted and %d accepted: want speculation to go on", drafted, accepted)
	}
	ratio := float64(plainTime) / float64(roughTime)
	t.Logf("speculation in a rough pool: %.2f × plain decoding in a good one", ratio)
	if *long && ratio < 1 {
		t.Errorf("speculation in a rough pool is %.2f × as fast as plain decoding: want more than 1", ratio)
	}

	// All sessions at once, on and on.
	proxy.disturb(true)
	x := c.startTraffic(t, jobs)
	length := 2 * time.Second
	if *long {
		length = 2 * time.Minute
	}
	time.Sleep(length)
	x.end()
	proxy.disturb(false)
	messages, dropped, doubled, delayed := proxy.counts()
	t.Logf("%d requests; of %d messages %d were dropped, %d doubled and %d delayed", x.completed, messages, dropped, doubled, delayed)
	if dropped == 0 || doubled == 0 || delayed == 0 {
		t.Error("want some messages dropped, some doubled and some delayed")
	}
}

// largeTarget makes the shipped target as costly as a model of 0.97 billion parameters, of the same
// function.
func largeTarget(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large.gguf")
	w := newWorld(t)
	w.ok("model", "expand", targetModel, path, "--like", "1b", "--type", "q8_0")
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}
