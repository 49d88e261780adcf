package campaign

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/lab/campaign/history"
)

// idle are the figures of a gateway that are zero, or as before, when nothing runs. They cover its verifier and drafters, too.
var idle = []string{"tandem:num_requests_running", "tandem:num_requests_waiting", "tandem_parked_sessions", "tandem_sessions",
	"tandem_pool_depth", "tandem_kv_pages", "tandem_shm_slots"}

// counted are the figures of a gateway that its clients can count as well.
var counted = []string{"tandem:prompt_tokens_total", "tandem:generation_tokens_total", `tandem_requests_total{code="ok"}`}

// guessed returns how many accepted tokens draft models have guessed.
func guessed(all map[string]float64) (n float64) {
	for key, v := range all {
		if strings.HasPrefix(key, `tandem_drafter_tokens_total{drafter="gopher-`) && strings.HasSuffix(key, `result="accepted"}`) {
			n += v
		}
	}
	return n
}

// metrics returns a gateway's figures, by their names with labels.
func metrics(ctx context.Context, g *gate) (map[string]float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+apiKey)
	answer, err := httpClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics of %s: %s", g.name, answer.Status)
	}
	all := map[string]float64{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			all[line[:at]] = v
		}
	}
	return all, nil
}

// levels writes down what gateways and processes hold while nothing runs. A figure may need a while to fall: leases end after two seconds.
func (h *hub) levels(ctx context.Context, gates []*gate, when string) error {
	for _, g := range gates {
		all, err := settled(ctx, g)
		if err != nil {
			return err
		}
		for name, v := range all {
			h.log.Add(history.Record{Kind: history.Level, When: when, Process: g.name, What: name, Value: v})
		}
	}
	for _, m := range h.layout.Members {
		if s, ok := h.sample(m.Name); ok {
			h.log.Add(history.Record{Kind: history.Level, When: when, Process: m.Name, What: "descriptors", Value: float64(s.Files)})
		}
	}
	return nil
}

// settled returns the idle figures of a gateway, when they have been the same for three seconds, or after twenty.
func settled(ctx context.Context, g *gate) (now map[string]float64, err error) {
	since := time.Now()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(500 * time.Millisecond) {
		all, err := metrics(ctx, g)
		if err != nil {
			return nil, err
		}
		before := now
		now = map[string]float64{}
		for key, v := range all {
			name, _, _ := strings.Cut(key, "{")
			for _, want := range idle {
				if name == want {
					now[key] = v
				}
			}
		}
		if fmt.Sprint(before) != fmt.Sprint(now) {
			since = time.Now()
		}
		if time.Since(since) > 3*time.Second || time.Now().After(end) {
			return now, nil
		}
	}
}

// sample reads what a process uses. It reports whether there is such a process.
func (h *hub) sample(name string) (history.Record, bool) {
	pid := h.pid(name)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if pid == 0 || err != nil {
		return history.Record{}, false
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return history.Record{}, false
	}
	number := func(name string) int {
		n, _ := strconv.Atoi(strings.Fields(field(status, name) + " 0")[0]) // a process that is ending has none
		return n
	}
	return history.Record{Kind: history.Sample, Process: name, Role: h.members[name].Role, PID: pid, Bytes: int64(number("VmRSS:")) << 10,
		Threads: number("Threads:"), Files: len(files)}, true
}

// watch samples all processes until ctx ends.
func (h *hub) watch(ctx context.Context) {
	for {
		for _, m := range h.layout.Members {
			if s, ok := h.sample(m.Name); ok {
				h.log.Add(s)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Second):
		}
	}
}
