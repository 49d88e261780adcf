package main

import "testing"

// TestPoolLine: ps says what waits in the pool, and whose it is.
func TestPoolLine(t *testing.T) {
	told := map[string]int64{"pool.depth": 3, "pool.limit": 3, "pool.oldest_us": 1240, "pool.of.first": 1, "pool.of.gateway": 1,
		"pool.of.go": 1}
	for want, all := range map[string][]psProcess{
		"pool: 3 of 3 tickets (first 1, gateway 1, go 1), the oldest for 1.2 ms; 2 drafts wait for room": {
			{Role: "verifier", Counters: told}, {Role: "drafter", Counters: map[string]int64{"pool.paused": 2}}},
		"pool: 0 of 3 tickets": {{Role: "verifier", Counters: map[string]int64{"pool.limit": 3}}},
		"":                     {{Role: "verifier"}, {Role: "drafter", Counters: map[string]int64{"pool.paused": 2}}},
	} {
		if line := poolLine(all); line != want {
			t.Errorf("ps says %q: want %q", line, want)
		}
	}
}
