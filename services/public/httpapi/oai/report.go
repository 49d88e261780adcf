package oai

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Account describes how output came about: how its tokens were drawn and, for calls that ask for a report, all the rest.
type Account struct {
	Sampling *Drawn `json:"sampling,omitempty"` // how a complete choice was drawn
	// Repeated is how many tokens the piece has that a choice repeated until it was ended for that.
	Repeated int `json:"repeated_piece,omitempty"`

	Tokens []OriginToken `json:"tokens,omitempty"`
	Round  *Round        `json:"round,omitempty"`  // in a chunk
	Rounds []Round       `json:"rounds,omitempty"` // in a whole answer
	Stats  *Stats        `json:"stats,omitempty"`
}

// Repeated says, in an API that has no Account, that an answer was ended because it repeated itself; nil if it was not.
func Repeated(r tandem.Result) *Account {
	if r.Repeated == 0 {
		return nil
	}
	return &Account{Repeated: r.Repeated}
}

// Drawn is how the tokens of a choice were drawn: sent back, it gives the same choice.
type Drawn struct {
	Seed uint64 `json:"seed"`
	Sampling
}

// Sampling is how tokens are drawn, named as in a request.
type Sampling struct {
	Temperature      float64 `json:"temperature"`
	TopK             int     `json:"top_k"`
	TopP             float64 `json:"top_p"`
	MinP             float64 `json:"min_p"`
	RepeatPenalty    float64 `json:"repeat_penalty"`
	RepeatLast       int     `json:"repeat_last_n"`
	FrequencyPenalty float64 `json:"frequency_penalty"`
	PresencePenalty  float64 `json:"presence_penalty"`
}

// NewDrawn returns s as an answer tells it.
func NewDrawn(s tandem.Sampling) *Drawn { return &Drawn{s.Seed, NewSampling(s)} }

// NewSampling returns s with values in the place of those that stand for a default.
func NewSampling(s tandem.Sampling) Sampling {
	return Sampling{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, RepeatPenalty: cmp.Or(s.RepeatPenalty, 1),
		RepeatLast: cmp.Or(s.RepeatLast, tandem.DefaultRepeatLast), FrequencyPenalty: s.FrequencyPenalty,
		PresencePenalty: s.PresencePenalty}
}

// OriginToken is a token, what it adds to the text, and who guessed it: "target" or "draft".
type OriginToken struct {
	ID     tandem.Token `json:"id"`
	Text   string       `json:"text"`
	Origin string       `json:"origin"`
}

// Round is tandem.Round as JSON.
type Round struct {
	Index    int      `json:"index"`
	Base     int      `json:"base"`
	Choice   string   `json:"choice"`
	Why      string   `json:"why"`
	Drafters []string `json:"drafters"`
	Nodes    []Node   `json:"nodes"`
	Lanes    []Lane   `json:"lanes"`
}

// Node is a node of the round's tree; node 0 is the token before the round.
type Node struct {
	ID       tandem.Token `json:"id"`
	Text     string       `json:"text"`
	Parent   int32        `json:"parent"`
	LogProb  float64      `json:"logprob"`
	Votes    []int        `json:"votes"` // indices into Drafters
	Accepted bool         `json:"accepted"`
}

// Lane is the time interval of one stage, from the request's admission.
type Lane struct {
	Stage string  `json:"stage"`
	By    string  `json:"by"`
	From  float64 `json:"from_ms"`
	To    float64 `json:"to_ms"`
}

// OriginTokens returns d's tokens.
func OriginTokens(d tandem.Delta, word func(tandem.Token) Word) []OriginToken {
	out := make([]OriginToken, len(d.Tokens))
	for i, t := range d.Tokens {
		out[i] = OriginToken{t, tandem.Lossy(word(t).Bytes), "target"}
		if i < len(d.Origins) && d.Origins[i] == tandem.OriginDraft {
			out[i].Origin = "draft"
		}
	}
	return out
}

// NewRound returns r as JSON tells it; nil for nil.
func NewRound(r *tandem.Round, word func(tandem.Token) Word) *Round {
	if r == nil {
		return nil
	}
	out := &Round{Index: r.Index, Base: int(r.Base), Choice: r.Choice, Why: r.Why,
		Drafters: append([]string{}, r.Drafters...), Nodes: make([]Node, len(r.Tree.Tokens)), Lanes: make([]Lane, len(r.Lanes))}
	for i, t := range r.Tree.Tokens {
		n := Node{ID: t, Text: word(t).Text, Parent: -1, Votes: []int{}, Accepted: i == 0 || slices.Contains(r.Path, int32(i))}
		if i < len(r.Tree.Parents) {
			n.Parent = int32(r.Tree.Parents[i])
		}
		if i < len(r.Tree.LogProbs) {
			n.LogProb = Finite(r.Tree.LogProbs[i])
		}
		if i < len(r.Votes) {
			for bit := range r.Drafters {
				if r.Votes[i]>>bit&1 == 1 {
					n.Votes = append(n.Votes, bit)
				}
			}
		}
		out.Nodes[i] = n
	}
	for i, l := range r.Lanes {
		out.Lanes[i] = Lane{l.Stage, l.By, milliseconds(l.From), milliseconds(l.To)}
	}
	return out
}

// Stats sums up one generation, here and in `tandem generate --json`.
type Stats struct {
	Accept          string  `json:"accept,omitempty"` // "typical" if drafts were accepted by that rule, which is lossy
	Rounds          int     `json:"rounds"`
	Drafted         int     `json:"drafted"`
	DraftedDepth    int     `json:"drafted_depth"`
	Accepted        int     `json:"accepted"`
	PlainRounds     int     `json:"plain_rounds"`
	Reopened        int     `json:"reopened"`
	TokensPerRound  float64 `json:"tokens_per_round"`
	NodeAcceptance  float64 `json:"acceptance_per_node"`
	DepthAcceptance float64 `json:"acceptance_per_depth"`
	PrefillMS       float64 `json:"prefill_ms"`
	DecodeMS        float64 `json:"decode_ms"`
	DraftMS         float64 `json:"draft_ms"`
	VerifyMS        float64 `json:"verify_ms"`
	Gain            float64 `json:"gain,omitempty"` // times as fast as plain decoding would have been; 0: not known
	CoordinationP50 float64 `json:"coordination_p50_us"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	FirstTokenMS    float64 `json:"first_token_ms"` // from the request's arrival

	Choices       map[string]int `json:"choices"`         // rounds by what the strategy chose
	Reasons       map[string]int `json:"reasons"`         // rounds by the strategy's reason
	Drafters      []DrafterStats `json:"drafters"`        // what each contributed
	AheadHits     int            `json:"ahead_hits"`      // rounds whose tree had been begun ahead, while the target verified
	AheadTries    int            `json:"ahead_tries"`     // rounds after which a drafter went on ahead
	AheadMS       float64        `json:"ahead_ms"`        // draft arithmetic ahead of the rounds
	AheadUsefulMS float64        `json:"ahead_useful_ms"` // the part of ahead_ms that went into trees
	PlanningMS    float64        `json:"planning_ms"`     // spent on votes, weights, lengths and choices
	PlanningShare float64        `json:"planning_share"`  // share of the time to decode
}

// DrafterStats is what one drafter contributed.
type DrafterStats struct {
	Name     string  `json:"name"`
	Rounds   int     `json:"rounds"`
	Drafted  int     `json:"drafted"`
	Accepted int     `json:"accepted"`
	Weight   float64 `json:"weight"`
}

// NewStats sums up a generation whose first token came after first.
func NewStats(r tandem.Result, first time.Duration) *Stats {
	s, n := r.Stats, float64(r.OutputTokens)
	out := &Stats{
		Accept: s.Accept,
		Rounds: s.Rounds, Drafted: s.Drafted, DraftedDepth: s.DraftedDepth, Accepted: s.Accepted, PlainRounds: s.PlainRounds,
		Reopened:       s.Reopened,
		TokensPerRound: share(n, float64(s.Rounds)), NodeAcceptance: share(float64(s.Accepted), float64(s.Drafted)),
		DepthAcceptance: share(float64(s.Accepted), float64(s.DraftedDepth)), PrefillMS: milliseconds(s.Prefill),
		DecodeMS: milliseconds(s.Decode),
		DraftMS:  milliseconds(s.DraftBusy), VerifyMS: milliseconds(s.VerifyBusy), CoordinationP50: median(s.Coordination),
		Gain:            share(float64(s.Plain), float64(s.Decode)),
		TokensPerSecond: share(n, s.Decode.Seconds()), FirstTokenMS: milliseconds(first), Choices: map[string]int{},
		Reasons: map[string]int{}, Drafters: []DrafterStats{},
		AheadHits: s.AheadHits, AheadTries: s.AheadTries, AheadMS: milliseconds(s.AheadBusy), AheadUsefulMS: milliseconds(s.AheadUseful),
		PlanningMS: milliseconds(s.Planning), PlanningShare: share(s.Planning.Seconds(), s.Decode.Seconds()),
	}
	for name, n := range s.Choices {
		out.Choices[name] = n
	}
	for why, n := range s.Reasons {
		out.Reasons[why] = n
	}
	for _, d := range s.Drafters {
		out.Drafters = append(out.Drafters, DrafterStats(d))
	}
	return out
}

// median returns the median in microseconds, 0 of none.
func median(all []time.Duration) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(all), cmp.Compare[time.Duration])
	return float64(sorted[len(sorted)/2]) / 1e3
}
