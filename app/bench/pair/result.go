package pair

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// answers are the answers to one prompt in one round, by way.
type answers map[string]answer

// crowd are the runs of one round with many requests at once, by way.
type crowd map[string]run

// run is many requests at once, or several times as many.
type run struct {
	answers []answer
	tokens  int
	took    time.Duration // until the last was answered
	waited  time.Duration // by all requests
}

// Result is what was measured.
type Result struct {
	Ways    []string      `json:"ways"`
	Peers   []peerResult  `json:"peers,omitempty"`
	Rounds  int           `json:"rounds"`
	Ended   string        `json:"ended"`             // in words: the number of rounds, how near the interval is, what ended them
	Prompts []promptRow   `json:"prompts,omitempty"` // the last is all of them
	Crowds  []crowdRow    `json:"crowds,omitempty"`
	Suites  []suiteResult `json:"suites"` // one, as test/scripts/bench-bars reads it
	Differ  []string      `json:"differ,omitempty"`

	prompts []promptRounds
	crowds  []crowdRounds
}

// suiteResult holds the figures.
type suiteResult struct {
	Name    string   `json:"name"`
	Figures []figure `json:"figures"`
}

// figure is a number that the measurement is about. test/scripts/bench-bars compares it with what is wanted.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Note  string  `json:"note,omitempty"`
}

// peerResult says how often a peer's text was the same.
type peerResult struct {
	Name  string `json:"name"`
	Texts int    `json:"texts"`
	Equal int    `json:"equal"`
}

// promptRow is a prompt, or all of them, in all ways.
type promptRow struct {
	Prompt string            `json:"prompt"`
	Cells  map[string][]cell `json:"cells"`          // by way; one for each clock
	Best   []bestCell        `json:"best,omitempty"` // one for each clock
}

// bestCell is the subject over the best fixed way of a prompt. It is chosen on the even rounds and compared on the odd ones, and the
// other way round: a way that is the best of the same rounds by luck would be favoured.
type bestCell struct {
	Clock string         `json:"clock"`
	Ways  []string       `json:"ways,omitempty"` // those chosen for even and for odd rounds; of all prompts: none
	Ratio figures.Spread `json:"ratio"`
}

// cell is one way's speed by one clock.
type cell struct {
	Clock string         `json:"clock"`
	TokS  float64        `json:"tok_s"` // median
	Ratio figures.Spread `json:"ratio"` // to plain decoding, of the rounds
	Round float64        `json:"tokens_a_round"`
}

// crowdRow is a number of requests at once in all ways.
type crowdRow struct {
	AtOnce int                  `json:"at_once"`
	Cells  map[string]crowdCell `json:"cells"`
}

// crowdCell is one way's speed with many requests at once.
type crowdCell struct {
	TokS   float64        `json:"tok_s"`           // median
	Ratio  figures.Spread `json:"ratio"`           // of tokens per second to plain decoding
	WaitS  float64        `json:"request_seconds"` // mean time of a request; median
	Waits  figures.Spread `json:"request_ratio"`   // of plain decoding's time of a request to this
	Tokens int            `json:"tokens"`          // of a round
}

type promptRounds struct {
	id     string
	rounds []answers
}

type crowdRounds struct {
	n      int
	rounds []crowd
}

// clocks are the times that count.
var clocks = []struct {
	name string
	of   func(answer) (tokens int, took time.Duration)
}{
	{"from the first token", func(a answer) (int, time.Duration) { return a.tokens - len(a.texts), a.decode }},
	{"from the request", func(a answer) (int, time.Duration) { return a.tokens, a.whole }},
}

// add adds a round of a prompt.
func (r *Result) add(id string, round answers) {
	i := slices.IndexFunc(r.prompts, func(p promptRounds) bool { return p.id == id })
	if i < 0 {
		i, r.prompts = len(r.prompts), append(r.prompts, promptRounds{id: id})
	}
	r.prompts[i].rounds = append(r.prompts[i].rounds, round)
}

// addCrowd adds a round of n requests at once.
func (r *Result) addCrowd(n int, round crowd) {
	i := slices.IndexFunc(r.crowds, func(c crowdRounds) bool { return c.n == n })
	if i < 0 {
		i, r.crowds = len(r.crowds), append(r.crowds, crowdRounds{n: n})
	}
	r.crowds[i].rounds = append(r.crowds[i].rounds, round)
}

// peer counts a text of a peer.
func (r *Result) peer(name string, equal bool) {
	i := slices.IndexFunc(r.Peers, func(p peerResult) bool { return p.Name == name })
	if i < 0 {
		i, r.Peers = len(r.Peers), append(r.Peers, peerResult{Name: name})
	}
	if r.Peers[i].Texts++; equal {
		r.Peers[i].Equal++
	}
}

func (r *Result) measured() bool { return len(r.prompts)+len(r.crowds) > 0 }

// Err returns an error if a text was not the same in all ways, other programs' not counted.
func (r *Result) Err() error {
	if len(r.Differ) > 0 {
		return tandem.Errorf("", tandem.Internal, "%d texts differ, the first: %s", len(r.Differ), r.Differ[0])
	}
	return nil
}

// rates returns the tokens per second of each round, over several prompts tokens over time. way names the way for a prompt and a round.
func rates(all []promptRounds, clock int, way func(id string, round int) string) (out []float64) {
	for k := range len(all[0].rounds) {
		tokens, took := 0, time.Duration(0)
		for _, p := range all {
			if k >= len(p.rounds) {
				return out
			}
			n, d := clocks[clock].of(p.rounds[k][way(p.id, k)])
			tokens, took = tokens+n, took+d
		}
		out = append(out, figures.Share(float64(tokens), took.Seconds()))
	}
	return out
}

// always returns the same way for all prompts and rounds.
func always(way string) func(string, int) string { return func(string, int) string { return way } }
