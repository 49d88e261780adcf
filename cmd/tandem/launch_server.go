package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/agents"
	"github.com/tandem-llm/tandem/client"
)

// served is a gateway's HTTP server, as a program uses it.
type served struct {
	url, key string
	ours     bool         // started by this process
	held     *agents.Held // keeps what its processes say while the program runs; may be nil
}

// description is what is used of the answer of /tandem/v1/describe.
type description struct {
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
	samples   = 16               // tokens that show what plain decoding takes
	// tokens of answers that are worth a comparison: fewer show how busy the machine was
	leastTokens = 32
	maxAnswer   = 1 << 20 // bytes
)

// describe asks the server about itself. Errors: Unavailable.
func (s served) describe(ctx context.Context) (d description, err error) {
	body, err := s.ask(ctx, http.MethodGet, "/tandem/v1/describe", nil)
	if err == nil {
		err = json.Unmarshal(body, &d)
	}
	if err != nil {
		if why := client.Unreachable(s.url, err.Error()); why != "" {
			return d, tandem.Errorf("", tandem.Unavailable, "%s", why)
		}
		return d, tandem.Errorf("", tandem.Unavailable, "the server %s does not answer as tandem does: %w", s.url, err)
	}
	return d, nil
}

// quiet is describe once no request runs, for quietTime at most.
func (s served) quiet(ctx context.Context) (description, error) {
	late := time.Now().Add(quietTime)
	for {
		d, err := s.describe(ctx)
		if err != nil || d.Counters["requests.running"] == 0 || time.Now().After(late) {
			return d, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// plain has the server decode some tokens plainly.
func (s served) plain(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"prompt": "Once upon a time", "max_tokens": samples, "temperature": 0, "ignore_eos": true,
		"speculation": map[string]bool{"enabled": false}})
	if err != nil {
		return err
	}
	_, err = s.ask(ctx, http.MethodPost, "/v1/completions", body)
	return err
}

// ask sends one request and returns the body of an answer of status 200.
func (s served) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
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
