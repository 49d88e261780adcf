package settings

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Sampling are the settings of one request of the command line.
type Sampling struct {
	MaxTokens   int     `help:"Largest number of tokens to generate." default:"128" group:"Text"`
	Temperature float64 `help:"0 takes the likeliest token; more is more random." default:"0" group:"Text"`
	TopK        int     `help:"Draw among the K likeliest tokens; 0 or -1 = all." default:"0" group:"Text"`
	TopP        float64 `help:"Draw among the likeliest that reach this probability." default:"1" group:"Text"`
	Seed        uint64  `help:"Seed of the draws: the same seed gives the same text." default:"0" group:"Text"`
	Shape
	Speculation
	NoDraft   bool `help:"Decode without speculation." group:"Speculation"`
	IgnoreEOS bool `name:"ignore-eos" help:"Go on beyond the end of the text." more:"" group:"Text"`
	FullTrace bool `help:"Record every round in the trace, not one in 32." more:"" group:"Serving"`
}

// ClientKeys hold the key for a gateway that runs elsewhere.
type ClientKeys struct {
	APIKey  []string `name:"api-key" help:"Key for the gateway at --addr, if it wants one; the first of several is used. Others on this machine can read flags, but not TANDEM_API_KEY or --api-keys." placeholder:"KEY" sep:"none" secret:"x" more:"" group:"Security"`
	APIKeys string   `name:"api-keys" help:"File with the key for --addr; the first line counts." placeholder:"FILE" group:"Security"`
}

// Shape changes the probabilities of tokens and where the output ends.
type Shape struct {
	MinP             float64  `help:"Draw among tokens with at least this share of the likeliest one's probability; 0 = all." default:"0" more:"" group:"Text"`
	RepeatPenalty    float64  `help:"Divide the logits of the latest tokens by this, up to 10; 1 = do not." default:"1" more:"" group:"Text"`
	RepeatLast       int      `help:"How many of the latest tokens --repeat-penalty looks at, up to 4096." default:"64" more:"" group:"Text"`
	FrequencyPenalty float64  `help:"Lower a token's logit by this for each time that the output holds it, -2 to 2." default:"0" more:"" group:"Text"`
	PresencePenalty  float64  `help:"Lower a token's logit by this if the output holds it, -2 to 2." default:"0" more:"" group:"Text"`
	LogitBias        []string `help:"Add to the logit of a token, -100 to 100; may be repeated." placeholder:"ID=ADD" sep:"none" more:"" group:"Text"`
	Stop             []string `help:"End the output before this text; may be repeated. Up to 64 times." placeholder:"TEXT" sep:"none" group:"Text"`
	Accept           string   `help:"How drafted tokens are accepted: exact gives the text of plain decoding, typical takes likely tokens as well and is lossy." enum:"exact,typical" default:"exact" more:"" group:"Speculation"`
	AcceptEpsilon    float64  `help:"Typical: a token is accepted if its probability is above min(EPSILON, DELTA·exp(-entropy)); 0 = 0.09." placeholder:"EPSILON" default:"0" more:"" group:"Speculation"`
	AcceptDelta      float64  `help:"Typical: see --accept-epsilon; 0 = 0.3." placeholder:"DELTA" default:"0" more:"" group:"Speculation"`
	Logprobs         bool     `help:"Tell the log-probability of each token in the --json output." more:"" group:"Text"`
	TopLogprobs      int      `help:"Also tell the log-probabilities of this many likeliest tokens, up to 20." default:"0" more:"" group:"Text"`
}

// Request returns the request for a prompt, validated.
func (s Sampling) Request(prompt string) (tandem.Request, error) {
	r := tandem.Request{
		Prompt: prompt, MaxTokens: s.MaxTokens, IgnoreEOS: s.IgnoreEOS, FullTrace: s.FullTrace,
		Sampling: tandem.Sampling{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, Seed: s.Seed},
	}
	if err := s.shape(&r); err != nil {
		return r, err
	}
	if err := s.Speculate(&r); err != nil {
		return r, err
	}
	if s.NoDraft {
		r.Bounds = tandem.Bounds{}
	}
	return r, r.Validate(tandem.Limits{})
}

func (s Shape) shape(r *tandem.Request) (err error) {
	to := &r.Sampling
	to.MinP, to.RepeatPenalty, to.RepeatLast = s.MinP, s.RepeatPenalty, s.RepeatLast
	to.FrequencyPenalty, to.PresencePenalty = s.FrequencyPenalty, s.PresencePenalty
	to.Accept, to.Epsilon, to.Delta = tandem.Acceptance(s.Accept), s.AcceptEpsilon, s.AcceptDelta
	to.Logprobs, to.TopLogprobs, r.Stop = s.Logprobs || s.TopLogprobs > 0, s.TopLogprobs, s.Stop
	to.Bias, err = parseBias(s.LogitBias)
	return err
}

// parseBias reads a list of "id=add"; the last entry for a token counts.
func parseBias(list []string) (out []tandem.Bias, err error) {
	of := map[tandem.Token]float32{}
	for _, text := range list {
		id, add, _ := strings.Cut(text, "=")
		t, badID := strconv.ParseInt(id, 10, 32)
		v, badAdd := strconv.ParseFloat(add, 32)
		if badID != nil || badAdd != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--logit-bias %.100q: want ID=ADD, such as 42=-100", text)
		}
		of[tandem.Token(t)] = float32(v)
	}
	for t, add := range of {
		out = append(out, tandem.Bias{Token: t, Add: add})
	}
	slices.SortFunc(out, func(a, b tandem.Bias) int { return cmp.Compare(a.Token, b.Token) })
	return out, nil
}
