package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
)

// Gateway is a gateway's HTTP server, as a program uses it. Its methods wait askTime at most for each answer.
type Gateway struct {
	URL, Key string
	Held     *Held // keeps what its processes say while the program runs; may be nil
}

// Description is the part of the answer of /tandem/v1/describe that this package uses.
type Description struct {
	Model    string           `json:"model"`
	Context  int              `json:"context"`
	Chat     bool             `json:"chat"`
	Drafters []string         `json:"drafters"`
	Counters map[string]int64 `json:"counters"`
	Defaults struct {
		Accept      string `json:"accept"`
		Speculation struct {
			Enabled bool `json:"enabled"`
		} `json:"speculation"`
	} `json:"defaults"`
}

const (
	askTime   = 10 * time.Second // for one question to the server
	quietTime = 2 * time.Second  // for requests to end whose client has gone
	maxAnswer = 1 << 20          // bytes
)

// Describe asks the server about itself. Errors: Unavailable.
func (s Gateway) Describe(ctx context.Context) (d Description, err error) {
	body, err := s.ask(ctx, http.MethodGet, "/tandem/v1/describe", nil)
	if err == nil {
		err = json.Unmarshal(body, &d)
	}
	if err != nil {
		if why := client.Unreachable(s.URL, err.Error()); why != "" {
			return d, tandem.Errorf("", tandem.Unavailable, "%s", why)
		}
		return d, tandem.Errorf("", tandem.Unavailable, "the server %s does not answer as tandem does: %w", s.URL, err)
	}
	return d, nil
}

// quiet is Describe once no request runs, for quietTime at most.
func (s Gateway) quiet(ctx context.Context) (Description, error) {
	late := time.Now().Add(quietTime)
	for {
		d, err := s.Describe(ctx)
		if err != nil || d.Counters["requests.running"] == 0 || time.Now().After(late) {
			return d, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ask sends one request and returns the body of an answer of status 200.
func (s Gateway) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.Key)
	r.Header.Set("Content-Type", "application/json")
	asks := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := asks.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, tandem.Errorf("", tandem.Unavailable, "%s %s: status %s", method, path, answer.Status)
	}
	return io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
}

func micro(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Told returns what a program with the folder dir is told of the server. The server takes any model's name, so an awkward one is "tandem".
func (s Gateway) Told(d Description, dir string) Server {
	name := d.Model
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:", r))
	}) {
		name = "tandem"
	}
	return Server{URL: s.URL, Key: s.Key, Model: name, Context: d.Context, Dir: dir}
}

// Used returns what the program had of the server since before. The result is zero if the server does not answer.
func (s Gateway) Used(ctx context.Context, before Description) Use {
	after, err := s.quiet(ctx)
	if err != nil {
		return Use{}
	}
	diff := func(name string) int64 { return after.Counters[name] - before.Counters[name] }
	return Use{Tokens: diff(gateway.RoundTokens), Time: micro(diff(gateway.RoundTime)), Plain: micro(diff(gateway.PlainTime)),
		Drafts: after.Defaults.Speculation.Enabled && len(after.Drafters) > 0, Exact: after.Defaults.Accept == string(tandem.AcceptExact)}
}
