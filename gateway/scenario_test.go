package gateway

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
)

// TestScenarios plays testdata/*.txt. Above the line of dashes a file says what is asked for and what
// goes wrong, below it what happened, in virtual time:
//
//	set sessions|queue|context|eos N      the gateway's limits; the position from which the model ends its text
//	set round|stall|verifier-wait|… D      a timeout
//	drafter NAME [slower D]               one more drafter from the start
//	request NAME at D max N [tree T] [strategy S] [vote V] [drafters A,B] [ignore-eos]
//	on OPERATION N DO [KIND|D]            what happens to the N-th open-verifier, open-drafter, propose, ticket or verdict;
//	                                      open-NAME and propose-NAME for another drafter
//	at D restart|up verifier|drafter|NAME
//	at D enlist|dismiss drafter|NAME
//	at D cancel NAME
//	at D shutdown D
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(data), "----\n")
			var got string
			synctest.Test(t, func(t *testing.T) { got = play(t, script) })
			if *testkit.Rewrite {
				if err := os.WriteFile(file, []byte(script+"----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// play runs a script in the bubble of t and returns its story.
func play(t *testing.T, script string) string {
	w := newWorld()
	c := w.config()
	c.Limits.Context = 100
	c.Sessions = 4
	var starts []func()
	var group sync.WaitGroup
	var mu sync.Mutex
	cancels := map[string]context.CancelFunc{}
	for _, line := range strings.Split(script, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		switch f[0] {
		case "drafter":
			if len(f) > 3 {
				w.slower[f[1]] = duration(t, f[3])
			}
			c.Drafters = append(c.Drafters, w.enlisted(f[1]))
		case "set":
			set(t, w, &c, f[1], f[2])
		case "on":
			n := fault{do: f[3]}
			if len(f) > 4 {
				if d, err := time.ParseDuration(f[4]); err == nil {
					n.wait = d
				} else {
					n.kind = kind(t, f[4])
				}
			}
			w.faults[f[1]+" "+f[2]] = n
		case "at":
			d := duration(t, f[1])
			starts = append(starts, func() {
				w.later(d, func() {
					switch f[2] {
					case "restart":
						w.restart(f[3])
					case "up":
						w.log("%s is up", f[3])
						w.hint(f[3])
					case "enlist":
						w.log("%s enlists", f[3])
						w.gw.Enlist(w.enlisted(f[3]))
					case "dismiss":
						w.log("%s is dismissed", f[3])
						w.gw.Dismiss(w.enlisted(f[3]).Name)
					case "cancel":
						w.log("%s is cancelled", f[3])
						mu.Lock()
						defer mu.Unlock()
						cancels[f[3]]()
					case "shutdown":
						ctx, cancel := context.WithTimeout(context.Background(), duration(t, f[3]))
						defer cancel()
						w.log("shutdown")
						w.log("shut down: %v", w.gw.Shutdown(ctx))
					default:
						t.Errorf("at: %q unknown", f[2])
					}
				})
			})
		case "request":
			name, at, r, s := request(t, f)
			starts = append(starts, func() {
				group.Add(1)
				w.later(at, func() {
					defer group.Done()
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					mu.Lock()
					cancels[name] = cancel
					mu.Unlock()
					s.each = func(d tandem.Delta) { w.told("%s: %d tokens %s", name, len(d.Tokens), origins(d)) }
					w.log("%s asks", name)
					res, err := w.gw.Generate(ctx, r, s)
					w.log("%s ends: %s", name, verdictOn(w, r, res, s, err, c.Limits.Context))
				})
			})
		default:
			t.Fatalf("line %q: %q unknown", line, f[0])
		}
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.gw, w.began = g, time.Now()
	for _, s := range starts {
		s()
	}
	group.Wait()
	w.flights.Wait()
	if err := g.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if len(w.violations) > 0 {
		t.Errorf("the gateway broke contracts: %q", w.violations)
	}
	if w.held() > 0 {
		t.Errorf("%d sessions left in the verifier, %d in the drafter, %v in others", len(w.verifier), len(w.drafter), w.others)
	}
	if p := unsettled(g); p != "" {
		t.Error(p)
	}
	counts := c.Counters.Snapshot()
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		if counts[k] == 0 { // a state that nobody is in any more
			continue
		}
		w.lines = append(w.lines, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(w.lines, "\n") + "\n"
}

// told logs what a client gets. The session goes on beside it, so what it did in the same moment may be there already:
// the line goes to its verdict.
func (w *world) told(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logf(format, args...)
	last := len(w.lines) - 1
	line := w.lines[last]
	now := line[:strings.Index(line, "ms  ")]
	for i := last - 1; i >= 0 && strings.HasPrefix(w.lines[i], now); i-- {
		if strings.Contains(w.lines[i], "  verdict at ") {
			w.lines = slices.Insert(w.lines[:last], i+1, line)
			return
		}
	}
}

func origins(d tandem.Delta) string {
	out := make([]byte, len(d.Origins))
	for i, o := range d.Origins {
		out[i] = "td"[o]
	}
	return string(out)
}

// verdictOn sums a request up, and says whether what it said is what plain decoding says.
func verdictOn(w *world, r tandem.Request, res tandem.Result, s *sink, err error, context int) string {
	want, str, finish := w.plain(r, context)
	same := "as plain"
	switch {
	case len(s.tokens) > len(want) || !slices.Equal(s.tokens, want[:len(s.tokens)]) || !strings.HasPrefix(str, s.text):
		same = "WRONG"
	case err != nil:
		same = "a prefix of plain"
	case len(s.tokens) != len(want) || s.text != str || res.Finish != finish:
		same = "WRONG"
	case res.OutputTokens != res.Stats.Accepted+res.Stats.Rounds || s.drafts != res.Stats.Accepted || len(s.tokens) != res.OutputTokens:
		same = "MISCOUNTED"
	}
	end := string(res.Finish)
	if err != nil {
		end = tandem.KindOf(err).String()
	}
	st := res.Stats
	story := fmt.Sprintf("%s, %s: %d tokens in %d rounds, drafted %d, depth %d, accepted %d, plain %d, reopened %d",
		end, same, res.OutputTokens, st.Rounds, st.Drafted, st.DraftedDepth, st.Accepted, st.PlainRounds, st.Reopened)
	if r.Strategy != "" || r.Vote != "" {
		for _, d := range st.Drafters {
			story += fmt.Sprintf("; %s %d rounds, drafted %d, held %d, weight %.2f", d.Name, d.Rounds, d.Drafted, d.Accepted, d.Weight)
		}
		for _, k := range slices.Sorted(maps.Keys(st.Choices)) {
			story += fmt.Sprintf("; %s ×%d", k, st.Choices[k])
		}
	}
	return story
}

func set(t *testing.T, w *world, c *Config, key, value string) {
	ints := map[string]*int{"sessions": &c.Sessions, "queue": &c.Queue, "context": &c.Limits.Context, "eos": &w.eosAt}
	if p := ints[key]; p != nil {
		*p = integer(t, value)
		return
	}
	x := &c.Timeouts
	times := map[string]*time.Duration{"round": &x.Round, "stall": &x.Stall, "verifier-wait": &x.VerifierWait, "close": &x.Close,
		"propose-min": &x.ProposeMin, "propose-max": &x.ProposeMax}
	p := times[key]
	if p == nil {
		t.Fatalf("set: %q unknown", key)
	}
	*p = duration(t, value)
}

func request(t *testing.T, f []string) (name string, at time.Duration, r tandem.Request, s *sink) {
	s = &sink{}
	r = tandem.Request{Prompt: "func " + f[1], Sampling: tandem.Sampling{TopP: 1}}
	for i := 2; i < len(f); i++ {
		switch f[i] {
		case "ignore-eos":
			r.IgnoreEOS = true
			continue
		case "at":
			at = duration(t, f[i+1])
		case "max":
			r.MaxTokens = integer(t, f[i+1])
		case "tree":
			p, err := tandem.ParseBounds(f[i+1])
			if err != nil {
				t.Fatal(err)
			}
			r.Bounds = p
		case "strategy":
			r.Strategy = tandem.Strategy(f[i+1])
		case "vote":
			r.Vote = tandem.Vote(f[i+1])
		case "drafters":
			r.Drafters = strings.Split(f[i+1], ",")
		default:
			t.Fatalf("request: %q unknown", f[i])
		}
		i++
	}
	return f[1], at, r, s
}

func integer(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func duration(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func kind(t *testing.T, s string) tandem.Kind {
	for k := tandem.OK; k <= tandem.Unauthenticated; k++ {
		if k.String() == s {
			return k
		}
	}
	t.Fatalf("kind %q unknown", s)
	return 0
}
