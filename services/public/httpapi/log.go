package httpapi

import (
	"cmp"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/text/calls"
)

const (
	linesPerSecond = 50  // lines about requests that are logged in the long run
	linesAtOnce    = 500 // most lines without a pause

	mostTold     = 256 // ignored fields that are logged, each once
	mostIgnored  = 64  // ignored fields of one request that its answer names
	mostNameSize = 64  // bytes of a field's name there
)

// quietRoutes are asked every few seconds by machines, such as an open playground, so their usual answers are logged for debugging alone.
var quietRoutes = map[string]bool{"/health": true, "/v1/health": true, "/livez": true, "/readyz": true, "/metrics": true, "/slots": true,
	"/api/ps": true, "/tandem/v1/describe": true, "/playground/": true}

// lineLimit bounds how many lines about requests are logged, because anybody who can connect causes them. Safe for concurrent use.
type lineLimit struct {
	mu      sync.Mutex
	left    float64
	at      time.Time
	skipped int // since the last line
}

// take reports whether one more line may be logged, and how many were not since the last one.
func (l *lineLimit) take(now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() {
		l.left, l.at = linesAtOnce, now
	}
	l.left, l.at = min(linesAtOnce, l.left+linesPerSecond*now.Sub(l.at).Seconds()), now
	if l.left < 1 {
		l.skipped++
		return 0, false
	}
	l.left--
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}

// journal is where requests are logged and counted. Safe for concurrent use.
type journal struct {
	*slog.Logger
	counters *tandem.Counters
	lines    lineLimit
	told     told
}

// called counts a request that was let in, by its API.
func (j *journal) called(c *call) {
	if c.api.counted != "" {
		j.counters.Add(CountedCalls+c.api.counted, 1)
	}
}

// ended counts a request that has ended, and logs it under the name of its route.
func (j *journal) ended(c *call, name string) {
	status := cmp.Or(c.w.status, http.StatusOK)
	j.counters.Add("http.requests."+strconv.Itoa(status), 1)
	j.line(c, name, status)
}

// line logs one line about a request that has ended. It holds nothing that a client has written but the method, the path of an
// unknown address and the request's id; what a tenant is called there opens nothing.
func (j *journal) line(c *call, name string, status int) {
	now := time.Now()
	args := []any{"method", short(c.Method, 20), "path", name, "status", status, "ms", now.Sub(c.begun).Milliseconds()}
	if name == "" {
		args[3] = short(c.URL.Path, 100)
	}
	if c.promptTokens > 0 {
		args = append(args, "prompt_tokens", c.promptTokens, "output_tokens", c.outputTokens)
	}
	if c.repeated > 0 {
		args = append(args, "repeated_piece", c.repeated)
	}
	if c.tenant != "" {
		args = append(args, "tenant", access.LogName(c.tenant))
	}
	args = append(args, "request", c.id)
	if quietRoutes[name] && (status < http.StatusBadRequest || status == http.StatusServiceUnavailable) {
		j.Debug("request", args...)
		return
	}
	skipped, ok := j.lines.take(now)
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "lines_left_out", skipped)
	}
	j.Info("request", args...)
}

// short returns at most most bytes of s.
func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// names are the ignored fields of one request, each once.
type names struct {
	all  []string
	more bool
}

// add notes a name.
func (n *names) add(name string) {
	name = plainName(name)
	for _, known := range n.all {
		if known == name {
			return
		}
	}
	if len(n.all) == mostIgnored {
		n.more = true
		return
	}
	n.all = append(n.all, name)
}

// plainName returns a field's name if it fits into a header as it is, else in quotes.
func plainName(name string) string {
	plain := name != ""
	for _, r := range name {
		plain = plain && r > ' ' && r < 0x7f && r != ',' && r != '"'
	}
	if name = short(name, mostNameSize); plain && !strings.HasSuffix(name, "…") {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// told remembers which ignored fields have been logged. Safe for concurrent use.
type told struct {
	mu   sync.Mutex
	seen map[string]bool
}

// fresh returns those of names that were not logged yet, and notes them.
func (t *told) fresh(all []string) (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range all {
		if !t.seen[name] && len(t.seen) < mostTold {
			if t.seen == nil {
				t.seen = map[string]bool{}
			}
			t.seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

// ignored names the fields that a body's reader has ignored: to the client, once in the log, and in the counters.
func (j *journal) ignored(c *call) {
	if len(c.ignored.all) == 0 {
		return
	}
	text := strings.Join(c.ignored.all, ", ")
	if c.ignored.more {
		text += ", and more"
	}
	c.w.Header().Set("X-Tandem-Ignored", text)
	for _, name := range c.ignored.all {
		if c.api.counted != "" {
			j.counters.Add(countedIgnored+c.api.counted+"."+countedField(name), 1)
		}
	}
	if fresh := j.told.fresh(c.ignored.all); len(fresh) > 0 {
		j.Info("fields without an effect are ignored", "fields", strings.Join(fresh, ", "), "request", c.id)
	}
}

// looseHeader names the tools whose arguments are not held to their schema, although the request wants that.
const looseHeader = "X-Tandem-Loose-Tools"

// loose names such tools: to the client, once in the log with the reason, and in the counters.
func (j *journal) loose(c *call, all []calls.Loose) {
	var named names
	for _, l := range all {
		named.add(l.Tool)
		j.counters.Add("constraints.loose_tools", 1)
		if why := l.Tool + ": " + short(l.Why, mostNameSize); len(j.told.fresh([]string{why})) > 0 {
			j.Info("a tool's arguments are not held to its schema", "tool", l.Tool, "why", l.Why, "request", c.id)
		}
	}
	if len(named.all) > 0 {
		c.w.Header().Set(looseHeader, strings.Join(named.all, ", "))
	}
}
