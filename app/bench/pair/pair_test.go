package pair

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// scripted is a server that computes nothing: a prompt has one answer, in pieces with a pause between two of them.
type scripted struct {
	t      *testing.T
	mu     sync.Mutex
	bodies []map[string]any
	at     []time.Time
	keys   []string
	broken string // requests with this drafter get another text
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/v1/models" {
		fmt.Fprint(w, `{"data":[{"id":"big"}]}`)
		return
	}
	var body struct {
		Messages    []struct{ Content string }
		Prompt      string
		MaxTokens   int `json:"max_tokens"`
		Speculation struct {
			Enabled  *bool
			Drafters []string
		}
	}
	var all map[string]any
	data := new(bytes.Buffer)
	_, _ = data.ReadFrom(q.Body)
	if err := json.Unmarshal(data.Bytes(), &body); err != nil {
		s.t.Error(err)
	}
	_ = json.Unmarshal(data.Bytes(), &all)
	s.mu.Lock()
	s.bodies, s.at, s.keys = append(s.bodies, all), append(s.at, time.Now()), append(s.keys, q.Header.Get("Authorization"))
	s.mu.Unlock()
	text := body.Prompt
	if len(body.Messages) == 1 {
		text = body.Messages[0].Content
	}
	if strings.Contains(text, "refuse") {
		http.Error(w, `{"error":{"message":"no"}}`, http.StatusBadRequest)
		return
	}
	pause, accepted := time.Millisecond, body.MaxTokens/2 // 4 of 9
	if e := body.Speculation.Enabled; e != nil && !*e {
		pause, accepted = 5*time.Millisecond, 0
	}
	if d := body.Speculation.Drafters; len(d) == 1 && d[0] == s.broken {
		text += "!"
	}
	for i := range 4 {
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", fmt.Sprintf("%s %d ", text, i))
		_ = http.NewResponseController(w).Flush()
		time.Sleep(pause)
	}
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":%d},\"timings\":{\"draft_n_accepted\":%d}}\n\ndata: [DONE]\n\n",
		body.MaxTokens, accepted)
}

func serve(t *testing.T, s *scripted) string {
	t.Helper()
	s.t = t
	type connection struct{ posts atomic.Int32 }
	type key struct{} // of a context: an address is no key, because the kernel gives a closed connection's port to the next
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodPost && q.Context().Value(key{}).(*connection).posts.Add(1) > 1 {
			t.Errorf("%s on a connection that was used before: a server may have closed it", q.URL)
		}
		s.ServeHTTP(w, q)
	}))
	web.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, key{}, new(connection))
	}
	web.Start()
	t.Cleanup(web.Close)
	return web.URL
}

func speculating(name string, fields map[string]any) Way {
	return Way{Name: name, Body: map[string]any{"speculation": fields}}
}

// scriptedBench compares plain decoding with a planner and one draft, of a server at url.
func scriptedBench(url string) Bench {
	ways := []Way{speculating("plain", map[string]any{"enabled": false}), speculating("planner", map[string]any{"strategy": "planner"}),
		speculating("chain", map[string]any{"drafters": []string{"small"}})}
	return Bench{Ways: at(ways, url), Subject: "planner", Rounds: 2, MaxTokens: 9, Seed: 3, Progress: func(string, ...any) {},
		Prompts: []prompts.Prompt{{ID: "one", Domain: "a", Prompt: "say one"}, {ID: "two", Domain: "b", Prompt: "say two"}}}
}

// TestTurns: every prompt is answered in all ways, forwards and backwards, by tenants of their own; then the planner's last tenant asks
// again; requests have the way's fields; ratios are of the answers of one round.
func TestTurns(t *testing.T) {
	s := &scripted{}
	c := scriptedBench(serve(t, s))
	r, err := Run(t.Context(), c)
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	var order []string
	for _, b := range s.bodies[1:] { // the first is not timed
		if b["model"] != "big" || b["max_tokens"] != 9.0 || b["seed"] != 3.0 || b["temperature"] != 0.0 || b["stream"] != true {
			t.Errorf("asked %v", b)
		}
		f := b["speculation"].(map[string]any)
		switch {
		case f["enabled"] == false:
			order = append(order, "plain")
		case f["strategy"] == "planner":
			order = append(order, "planner")
		default:
			order = append(order, "chain")
		}
	}
	forwards, backwards := "plain planner chain chain planner plain planner", "chain planner plain plain planner chain planner"
	if got, want := strings.Join(order, " "), strings.Join([]string{forwards, backwards, backwards, forwards}, " "); got != want {
		t.Errorf("asked by %s: want %s", got, want)
	}
	last, of := map[string]string{}, map[string]int{}
	for i, key := range s.keys[1:] {
		if again := i%7 == 6; len(key) < 20 || of[key] > 0 != again || again && last["planner"] != key {
			t.Errorf("request %d by %s has the key %q, asked %d times before", i, order[i], key, of[key])
		}
		last[order[i]], of[key] = key, of[key]+1
	}
	if len(r.Prompts) != 3 || r.Prompts[2].Prompt != "all" {
		t.Fatalf("rows %+v", r.Prompts)
	}
	for _, row := range r.Prompts {
		for clock := range clocks {
			plain, planner := row.Cells["plain"][clock], row.Cells["planner"][clock]
			if plain.Ratio.Median != 1 || plain.TokS <= 0 || planner.Ratio.Median < 1.5 || planner.Ratio.N != 2 ||
				plain.Round != 1 || planner.Round != 1.8 ||
				row.Cells["planner, asked again"][clock].Ratio.N != 2 || row.Best[clock].Ratio.Median <= 0 {
				t.Errorf("%s, %s: plain %+v, planner %+v", row.Prompt, clocks[clock].name, plain, planner)
			}
		}
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "least prompt, from the first token: planner over plain") ||
		!strings.Contains(out.String(), "2 rounds, ") {
		t.Errorf("printed %v\n%s", err, out.String())
	}
}

// TestBest: the subject is set beside the best fixed way of each prompt, which is chosen on the other half of the rounds, and in all beside
// those ways' tokens over their time.
func TestBest(t *testing.T) {
	c := &Bench{Subject: "planner", Ways: []Way{{Name: "plain"}, {Name: "planner"}, {Name: "short"}, {Name: "long"},
		{Name: "other", Peer: true}}}
	seconds := func(d float64) answer {
		took := time.Duration(d * 1e9)
		return answer{texts: []string{"text"}, tokens: 101, decode: took, whole: took + time.Second}
	}
	round := func(plain, planner, short, long, other float64) answers {
		return answers{"plain": seconds(plain), "planner": seconds(planner), "short": seconds(short), "long": seconds(long),
			"other": seconds(other), "planner, asked again": seconds(planner / 2)}
	}
	r := &Result{}
	r.add("easy", round(4, 2, 2, 1, 8)) // long is the best way of this round, short of the next: each is compared on the other round
	r.add("easy", round(4, 2, 1, 5, 8))
	r.add("hard", round(4, 4, 3, 8, 4))
	r.add("hard", round(4, 4, 3, 8, 4))
	if r.below(c) != 0 {
		t.Errorf("equal ratios are %v near", r.below(c))
	}
	r.judge(c)
	got := map[string]float64{}
	for _, f := range r.Suites[0].Figures {
		got[f.Name] = f.Value
	}
	for name, want := range map[string]float64{
		"easy, from the first token: planner over plain":                       2,
		"easy, from the first token: planner over the best fixed way":          (2.0/2 + 5.0/2) / 2,
		"hard, from the first token: planner over the best fixed way":          0.75,
		"all, from the first token: planner over plain":                        8.0 / 6,
		"all, from the first token: planner over the best fixed way":           (5.0/6 + 8.0/6) / 2,
		"median prompt, from the first token: planner over plain":              1.5,
		"least prompt, from the first token: planner over plain":               1,
		"median prompt, from the first token: planner over the best fixed way": 1.25,
		"least prompt, from the first token: planner over the best fixed way":  0.75,
		"all, from the first token: planner over the best peer of each prompt": 12.0 / 6,
		"all, from the first token: planner, asked again over asked once":      2,
		"hard, from the request: planner over the best fixed way":              4.0 / 5,
		"all, from the request: planner, asked again over asked once":          8.0 / 5,
	} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s is %v: want %v", name, got[name], want)
		}
	}
	if best := r.Prompts[0].Best[0].Ways; fmt.Sprint(best) != "[short long]" {
		t.Errorf("the even and the odd rounds are compared with %v: want the best of the others", best)
	}
}

// TestRounds: there are as many rounds as bring the interval near enough, and no more than --rounds and --budget say.
func TestRounds(t *testing.T) {
	for _, test := range []struct {
		planner func(k int) time.Duration // of an answer in round k; plain decoding takes a second
		budget  time.Duration
		rounds  int
		ended   string
	}{
		{func(int) time.Duration { return time.Second }, 0, 2, "is 0.000 below the ratio, wanted 0.020"},
		{func(k int) time.Duration { return time.Second + 25*time.Millisecond*time.Duration(k%2) }, 0, 4, "wanted 0.020"},
		{func(k int) time.Duration { return time.Second << (k % 2) }, 0, 5, ": ended by --rounds"},
		{func(k int) time.Duration { return time.Second << (k % 2) }, 1, 1, ": ended by --budget"},
	} {
		c := &Bench{Subject: "planner", Rounds: 5, Budget: test.budget, Ways: []Way{{Name: "plain"}, {Name: "planner"}},
			Progress: func(string, ...any) {}}
		r := &runner{Bench: c, began: time.Now().Add(-time.Minute)}
		did := 0
		if err := r.rounds(func(k int) error {
			answer := func(took time.Duration) answer {
				return answer{texts: []string{""}, tokens: 101, decode: took, whole: took}
			}
			r.result.add("one", answers{"plain": answer(time.Second), "planner": answer(test.planner(k))})
			did++
			return nil
		}); err != nil || did != test.rounds || r.result.Rounds != did || !strings.HasSuffix(r.result.Ended, test.ended) {
			t.Errorf("%v, %d rounds, %q: want %d and %q", err, did, r.result.Ended, test.rounds, test.ended)
		}
	}
}

// TestTextsDiffer: another text of an own way is an error, one of a peer is counted.
func TestTextsDiffer(t *testing.T) {
	s := &scripted{broken: "small"}
	c := scriptedBench(serve(t, s))
	r, err := Run(t.Context(), c)
	if err != nil || r.Err() == nil || len(r.Differ) != 8 || !strings.Contains(r.Differ[0], "by chain") {
		t.Errorf("%v, %v, %q", err, r.Err(), r.Differ)
	}
	c.Ways[2].Peer = true
	r, err = Run(t.Context(), c)
	if err != nil || r.Err() != nil || len(r.Peers) != 1 || r.Peers[0] != (peerResult{"chain", 8, 0}) {
		t.Errorf("%v, %v, %+v", err, r.Err(), r.Peers)
	}
}

// TestCrowds: so many requests run at once, or arrive at random at the same times in all ways.
func TestCrowds(t *testing.T) {
	s := &scripted{}
	c := scriptedBench(serve(t, s))
	c.Ways, c.AtOnce, c.Gap, c.Rounds = c.Ways[:2], []int{1, 5}, 10*time.Millisecond, 1
	r, err := Run(t.Context(), c)
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	if len(s.bodies) != 1+4*(1+5) || len(r.Crowds) != 2 || r.Crowds[1].AtOnce != 5 {
		t.Fatalf("%d requests, crowds %+v", len(s.bodies), r.Crowds)
	}
	gap := func(from int) (gaps [4]time.Duration) {
		for i := range gaps {
			gaps[i] = s.at[from+i+1].Sub(s.at[from])
		}
		return gaps
	}
	if plain, planner := gap(5), gap(10); plain[3] < 10*time.Millisecond || plain[3]-planner[3] > 8*time.Millisecond {
		t.Errorf("arrived after %v and %v: want the same random times", plain, planner)
	}
	cell := r.Crowds[1].Cells["planner"]
	if cell.Tokens != 2*5*9 || cell.TokS <= 0 || cell.Waits.Median < 1.2 {
		t.Errorf("planner %+v", cell)
	}
	if f := r.Suites[0].Figures; len(f) != 4 || f[2].Name != "5 arriving every 10ms: tokens/s of planner over plain" {
		t.Errorf("figures %+v", f)
	}
}

// TestErrors: what cannot be measured is refused, and a server's refusal is told with the prompt and the way.
func TestErrors(t *testing.T) {
	url := serve(t, &scripted{})
	for want, change := range map[string]func(*Bench){
		"--rounds is 0":     func(c *Bench) { c.Rounds = 0 },
		"--max-tokens is 1": func(c *Bench) { c.MaxTokens = 1 },
		`"planner"`:         func(c *Bench) { c.Ways = append(c.Ways, c.Ways[1]) },
		"--subject":         func(c *Bench) { c.Subject = "best" },
		"--at-once is [0]":  func(c *Bench) { c.AtOnce = []int{0} },
		"--gap is 1s":       func(c *Bench) { c.Gap = time.Second },
		"1 keys: want":      func(c *Bench) { c.Keys = []string{"one"} },
		"--budget -1ns":     func(c *Bench) { c.Budget = -1 },
		"no prompts":        func(c *Bench) { c.Prompts = nil },
		"1 ways":            func(c *Bench) { c.Ways = c.Ways[:1] },
	} {
		c := scriptedBench(url)
		change(&c)
		if r, err := Run(t.Context(), c); r != nil || tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	c := scriptedBench(url)
	c.Prompts[1].Prompt = "refuse"
	r, err := Run(t.Context(), c)
	if r != nil || err == nil || !strings.Contains(err.Error(), "prompt two, chain") || !strings.Contains(err.Error(), "400 Bad Request") {
		t.Errorf("%v, %v", r, err)
	}
}
