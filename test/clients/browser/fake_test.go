package browser

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/playground"
)

// script is what a fake gateway streams: rounds of tokens, in the form that services/public/httpapi gives reports.
type script struct {
	model    string
	drafters []string
	chat     bool   // there is a chat template
	key      string // wanted as bearer token if not ""
	words    []string
	tokens   int                    // in all, taken from words in turn
	pace     time.Duration          // between rounds
	plain    time.Duration          // the same without speculation
	differ   int                    // plain output has another token here, 0 = nowhere
	breakAt  int                    // the connection breaks before this round, once; 0 = never
	finish   func() (event, js any) // instead of the end; nil: the end
	why      string
}

// fakeGateway serves the playground and a script.
type fakeGateway struct {
	script
	t      testing.TB
	addr   string
	broken atomic.Bool
	mu     sync.Mutex
	bodies []map[string]any // of generations
	auth   []string
	server *http.Server
}

// startFake serves s on a port of its own until the test ends.
func startFake(t testing.TB, s script) *fakeGateway {
	t.Helper()
	f := &fakeGateway{script: s, t: t, addr: "127.0.0.1:0"}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fakeGateway) url() string { return "http://" + f.addr + "/" }

func (f *fakeGateway) start() {
	f.t.Helper()
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.addr = l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("/", playground.Handler(tandem.DefaultLimits.Strategies))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, `{"status":"ok"}`) })
	mux.HandleFunc("GET /tandem/v1/describe", f.guarded(f.describe))
	mux.HandleFunc("POST /v1/completions", f.guarded(f.complete))
	if f.chat {
		mux.HandleFunc("POST /v1/chat/completions", f.guarded(f.complete))
	}
	f.server = &http.Server{Handler: mux}
	go f.server.Serve(l)
}

// stop ends the server and every connection at once.
func (f *fakeGateway) stop() { f.server.Close() }

func (f *fakeGateway) guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.auth = append(f.auth, r.Header.Get("Authorization"))
		f.mu.Unlock()
		if f.key != "" && r.Header.Get("Authorization") != "Bearer "+f.key {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintln(w, `{"error":{"message":"the key is missing or wrong","type":"invalid_request_error"}}`)
			return
		}
		h(w, r)
	}
}

func (f *fakeGateway) describe(w http.ResponseWriter, _ *http.Request) {
	json.NewEncoder(w).Encode(map[string]any{"model": f.model, "context": 8192, "drafters": f.drafters, "chat": f.chat,
		"processes": []any{}, "defaults": map[string]any{"temperature": 0.8, "top_p": 0.95}})
}

// complete streams the script. Rounds accept 0 to 4 nodes of trees with 16.
func (f *fakeGateway) complete(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Speculation struct {
			Enabled bool `json:"enabled"`
		} `json:"speculation"`
	}
	raw := map[string]any{}
	dec := json.NewDecoder(r.Body)
	if err := dec.Decode(&raw); err != nil {
		f.t.Error(err)
	}
	again, _ := json.Marshal(raw)
	json.Unmarshal(again, &body)
	f.mu.Lock()
	f.bodies = append(f.bodies, raw)
	f.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, chat := raw["messages"]
	send := func(v map[string]any) {
		if choice := v["choices"].([]any)[0].(map[string]any); chat {
			choice["delta"] = map[string]any{"content": choice["text"]}
			delete(choice, "text")
		}
		b, _ := json.Marshal(v)
		fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
	}
	spec, begun := body.Speculation.Enabled, time.Now()
	rounds, accepted := 0, 0
	for at := 0; at < f.tokens; rounds++ {
		if f.breakAt > 0 && rounds == f.breakAt && f.broken.CompareAndSwap(false, true) {
			go f.server.Close() // and with it this connection
			<-r.Context().Done()
			return
		}
		take := 1
		if spec {
			take += []int{2, 0, 4, 1, 3, 2, 4}[rounds%7]
		}
		take = min(take, f.tokens-at)
		chunk := f.round(rounds, at, take, spec)
		accepted += take - 1
		at += take
		send(chunk)
		if pace := map[bool]time.Duration{true: f.pace, false: f.plain}[spec]; pace > 0 {
			select {
			case <-time.After(pace):
			case <-r.Context().Done():
				return
			}
		}
	}
	if f.finish != nil {
		event, v := f.finish()
		b, _ := json.Marshal(v)
		fmt.Fprintf(w, "event: %v\ndata: %s\n\n", event, b)
		return
	}
	took := time.Since(begun)
	send(map[string]any{"choices": []any{map[string]any{"index": 0, "text": "", "finish_reason": "length"}},
		"tandem": map[string]any{"stats": map[string]any{"rounds": rounds, "accepted": accepted, "decode_ms": float64(took) / 1e6,
			"tokens_per_second": float64(f.tokens) / took.Seconds()}}})
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// word returns the text of token i of the output and its id.
func (f *fakeGateway) word(i int, spec bool) (string, int) {
	k := i % len(f.words)
	if !spec && f.differ > 0 && i+1 == f.differ {
		k = (k + 1) % len(f.words)
	}
	return f.words[k], 100 + k
}

// text is the whole output.
func (f *fakeGateway) text() string {
	var b strings.Builder
	for i := range f.tokens {
		b.WriteString(f.words[i%len(f.words)])
	}
	return b.String()
}

func (f *fakeGateway) round(index, at, take int, spec bool) map[string]any {
	var text strings.Builder
	tokens := []any{}
	for i := at; i < at+take; i++ {
		word, id := f.word(i, spec)
		text.WriteString(word)
		origin := "draft"
		if i == at+take-1 {
			origin = "target"
		}
		tokens = append(tokens, map[string]any{"id": id, "text": word, "origin": origin})
	}
	start := float64(index) * 8
	nodes := []any{map[string]any{"id": 1, "text": "(", "parent": -1, "logprob": 0, "votes": []int{}, "accepted": true}}
	lanes := []any{}
	lane := func(stage, by string, from, to float64) {
		lanes = append(lanes, map[string]any{"stage": stage, "by": by, "from_ms": start + from, "to_ms": start + to})
	}
	choice := "plain"
	if spec {
		choice = "vote of " + strconv.Itoa(len(f.drafters))
		for i := range 15 {
			word, id := f.word(at+i, true)
			n := map[string]any{"id": id, "text": word, "parent": i, "logprob": -0.3 * float64(i+1), "votes": []int{i % len(f.drafters)},
				"accepted": i < take-1}
			if i >= take-1 { // dead branches
				n["parent"], n["id"], n["logprob"] = max(0, i-3), 900+i, -0.3*float64(max(0, i-3))-1-math.Mod(float64(i)*0.7, 2)
			}
			if i%3 == 0 {
				n["votes"] = []int{0, len(f.drafters) - 1}
			}
			nodes = append(nodes, n)
		}
		for i, d := range f.drafters {
			lane("draft", d, 0, 1.5+0.4*float64(i))
			lane("ahead", d, 3.2, 5+0.6*float64(i))
		}
		lane("pool", "", 2.8, 3)
	}
	lane("verify", "", 3, 7.5)
	lane("commit", "", 7.5, 7.8)
	return map[string]any{"choices": []any{map[string]any{"index": 0, "text": text.String(), "finish_reason": nil}},
		"tandem": map[string]any{"tokens": tokens, "round": map[string]any{"index": index, "base": 10 + at, "choice": choice, "why": f.why,
			"drafters": f.drafters, "nodes": nodes, "lanes": lanes}}}
}
