package pair

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// answer is one answer and its times, or the sum of several.
type answer struct {
	texts    []string
	key      string // of the tenant of the last one
	tokens   int
	accepted int           // tokens that were drafted; of a server that does not tell: 0
	decode   time.Duration // from the first piece of text to the last; of an answer in one piece: whole
	whole    time.Duration // from the request to the last piece of text
}

// and returns the sum of a and b.
func (a answer) and(b answer) answer {
	return answer{append(a.texts, b.texts...), b.key, a.tokens + b.tokens, a.accepted + b.accepted, a.decode + b.decode,
		a.whole + b.whole}
}

// mostLine bounds a line of a stream in bytes.
const mostLine = 4 << 20

// event is what is read of an event of a stream. Chats have a delta, texts that are continued a text.
type event struct {
	Choices []struct {
		Text  string
		Delta struct{ Content string }
	}
	Usage *struct {
		Tokens int `json:"completion_tokens"`
	}
	Timings struct {
		Accepted int `json:"draft_n_accepted"`
	}
	Error *struct{ Message string }
}

// ask sends one request of the tenant with a key, and reads its answer.
func (r *runner) ask(ctx context.Context, w Way, p prompts.Prompt, tokens int, key string) (a answer, err error) {
	defer func() {
		if a.key = key; err != nil {
			err = fmt.Errorf("prompt %s, %s: %w", p.ID, w.Name, err)
		}
	}()
	model, err := r.model(ctx, w.URL, key)
	if err != nil {
		return a, err
	}
	body := map[string]any{"model": model, "max_tokens": tokens, "temperature": r.Temperature, "seed": r.Seed, "stream": true,
		"stream_options": map[string]bool{"include_usage": true}}
	path := "/v1/chat/completions"
	if r.Raw {
		path, body["prompt"] = "/v1/completions", p.Prompt
	} else {
		body["messages"] = []map[string]string{{"role": "user", "content": p.Prompt}}
	}
	maps.Copy(body, w.Body)
	sent, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	began := time.Now()
	reply, err := call(ctx, &r.client, http.MethodPost, w.URL+path, key, bytes.NewReader(sent))
	if err != nil {
		return a, err
	}
	defer reply.Close()
	return read(reply, began)
}

// read reads a stream of events to its end.
func read(stream io.Reader, began time.Time) (a answer, err error) {
	var text strings.Builder
	var first, last time.Time
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, mostLine)
	for lines.Scan() {
		data, is := strings.CutPrefix(lines.Text(), "data:")
		if data = strings.TrimSpace(data); !is || data == "[DONE]" {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return a, fmt.Errorf("event %.200q: %w", data, err)
		}
		if e.Error != nil {
			return a, errors.New(e.Error.Message)
		}
		if e.Usage != nil {
			a.tokens, a.accepted = e.Usage.Tokens, e.Timings.Accepted
		}
		for _, c := range e.Choices {
			if piece := c.Text + c.Delta.Content; piece != "" {
				if last = time.Now(); first.IsZero() {
					first = last
				}
				text.WriteString(piece)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return a, err
	}
	if a.tokens < 2 || first.IsZero() {
		return a, tandem.Errorf("", tandem.Unavailable, "%d tokens, %q: too short to be timed", a.tokens, shown(text.String()))
	}
	a.texts, a.decode, a.whole = []string{text.String()}, last.Sub(first), last.Sub(began)
	if a.decode <= 0 { // a text that the tenant's drafters know
		a.decode = a.whole
	}
	return a, nil
}

// model returns the name of a server's model.
func (r *runner) model(ctx context.Context, url, key string) (string, error) {
	if name, known := r.models[url]; known {
		return name, nil
	}
	var list struct{ Data []struct{ ID string } }
	if err := get(ctx, &r.client, url+"/v1/models", key, &list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 {
		return "", tandem.Errorf("", tandem.Unavailable, "%s names no model", url)
	}
	r.models[url] = list.Data[0].ID
	return list.Data[0].ID, nil
}

// call sends a request and returns the body of its answer, which the caller closes.
func call(ctx context.Context, client *http.Client, method, url, key string, body io.Reader) (io.ReadCloser, error) {
	q, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Authorization", "Bearer "+key)
	reply, err := client.Do(q)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		says, _ := io.ReadAll(io.LimitReader(reply.Body, 1<<10))
		reply.Body.Close()
		return nil, tandem.Errorf("", tandem.Unavailable, "%s answers %s: %s", url, reply.Status, bytes.TrimSpace(says))
	}
	return reply.Body, nil
}

// get reads a JSON document.
func get(ctx context.Context, client *http.Client, url, key string, to any) error {
	body, err := call(ctx, client, http.MethodGet, url, key, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(to); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}

// Drafters returns the names of the drafters of the tandem server at url, which must know key.
func Drafters(ctx context.Context, url, key string) ([]string, error) {
	var said struct{ Drafters []string }
	err := get(ctx, http.DefaultClient, url+"/tandem/v1/describe", key, &said)
	return said.Drafters, err
}
