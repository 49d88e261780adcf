package settings

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// Sampling are the settings of one request of the command line.
type Sampling struct {
	MaxTokens   int     `help:"Most tokens to generate; 0 or -1 = no limit. Then the text ends where the model ends it or the context is full." default:"128" group:"Text"`
	Temperature float64 `help:"0 takes the likeliest token; more is more random." default:"0" group:"Text"`
	TopK        int     `help:"Draw among the K likeliest tokens; 0 or -1 = all." default:"0" group:"Text"`
	TopP        float64 `help:"Draw among the likeliest that reach this probability." default:"1" group:"Text"`
	Seed        uint64  `help:"Seed of the draws: the same seed gives the same text." default:"0" group:"Text"`

	MinP             float64 `help:"Draw among tokens with at least this share of the likeliest one's probability; 0 = all." default:"0" more:"" group:"Text"`
	RepeatPenalty    float64 `help:"Divide the logits of the latest tokens by this, up to 10; 1 = do not." default:"1" more:"" group:"Text"`
	RepeatLast       int     `help:"How many of the latest tokens --repeat-penalty looks at, up to 4096." default:"64" more:"" group:"Text"`
	FrequencyPenalty float64 `help:"Lower a token's logit by this for each time that the output holds it, -2 to 2." default:"0" more:"" group:"Text"`
	PresencePenalty  float64 `help:"Lower a token's logit by this if the output holds it, -2 to 2." default:"0" more:"" group:"Text"`
	Shape
	Speculation
	Decoding
}

// Decoding says how a request of the command line is decoded.
type Decoding struct {
	NoDraft   bool `help:"Decode without speculation." group:"Speculation"`
	IgnoreEOS bool `name:"ignore-eos" help:"Go on beyond the end of the text." more:"" group:"Text"`
	FullTrace bool `help:"Record every round in the trace, not one in 32." more:"" group:"Serving"`
}

// Talking are the settings of the answers in a conversation on a terminal. nil: as the gateway answers over HTTP.
type Talking struct {
	MaxTokens   int      `help:"Largest number of tokens of an answer; 0 or -1 = no limit. An answer without one ends where the model ends it or the context is full." default:"0" group:"Text"`
	Temperature *float64 `help:"0 takes the likeliest token; more is more random. Default: the model file's, else 0.8." placeholder:"T" group:"Text"`
	TopK        *int     `help:"Draw among the K likeliest tokens; 0 = all. Default: the model file's, else 40." placeholder:"K" group:"Text"`
	TopP        *float64 `help:"Draw among the likeliest that reach this probability. Default: the model file's, else 0.95." placeholder:"P" group:"Text"`
	MinP        *float64 `help:"Draw among tokens with at least this share of the likeliest one's probability; 0 = all. Default: the model file's, else 0.05." placeholder:"P" more:"" group:"Text"`
	Seed        *uint64  `help:"Seed of the draws: the same seed gives the same text. Default: a random one for each answer." placeholder:"SEED" group:"Text"`

	RepeatPenalty    *float64 `help:"Divide the logits of the latest tokens by this, up to 10; 1 = do not. Default: the model file's, else 1." placeholder:"X" more:"" group:"Text"`
	RepeatLast       *int     `help:"How many of the latest tokens --repeat-penalty looks at, up to 4096. Default: the model file's, else 64." placeholder:"N" more:"" group:"Text"`
	FrequencyPenalty *float64 `help:"Lower a token's logit by this for each time that the output holds it, -2 to 2. Default: 0." placeholder:"X" more:"" group:"Text"`
	PresencePenalty  *float64 `help:"Lower a token's logit by this if the output holds it, -2 to 2. Default: 0." placeholder:"X" more:"" group:"Text"`
	Shape
	Speculation
	Decoding
}

// Request returns the request for a prompt, validated; over says how tokens are drawn where t does not. A seed that nobody gives is random.
func (t Talking) Request(prompt string, over tandem.Sampling) (tandem.Request, error) {
	preset := tandem.Preset{Temperature: t.Temperature, TopP: t.TopP, MinP: t.MinP, RepeatPenalty: t.RepeatPenalty,
		FrequencyPenalty: t.FrequencyPenalty, PresencePenalty: t.PresencePenalty, TopK: t.TopK, RepeatLast: t.RepeatLast}
	sampling := preset.Over(over)
	if t.Seed != nil {
		sampling.Seed = *t.Seed
	} else {
		sampling.Seed = rand.Uint64() >> 12 // as over HTTP
	}
	return request(prompt, t.MaxTokens, sampling, t.Shape, t.Speculation, t.Decoding)
}

// ClientKeys hold the key for a gateway that runs elsewhere.
type ClientKeys struct {
	APIKey  []string `name:"api-key" help:"Key for the gateway at --addr, if it wants one; the first of several is used. Others on this machine can read flags, but not TANDEM_API_KEY or --api-keys." placeholder:"KEY" sep:"none" secret:"x" more:"" group:"Security"`
	APIKeys string   `name:"api-keys" help:"File with the key for --addr; the first line counts." placeholder:"FILE" group:"Security"`
}

// Shape changes the probabilities of tokens and where the output ends.
type Shape struct {
	LogitBias     []string `help:"Add to the logit of a token, -100 to 100; may be repeated." placeholder:"ID=ADD" sep:"none" more:"" group:"Text"`
	Stop          []string `help:"End the output before this text; may be repeated. Up to 64 times." placeholder:"TEXT" sep:"none" group:"Text"`
	Accept        string   `help:"How drafted tokens are accepted: exact gives the text of plain decoding, typical takes likely tokens as well and is lossy." enum:"exact,typical" default:"exact" more:"" group:"Speculation"`
	AcceptEpsilon float64  `help:"Typical: a token is accepted if its probability is above min(EPSILON, DELTA·exp(-entropy)); 0 = 0.09." placeholder:"EPSILON" default:"0" more:"" group:"Speculation"`
	AcceptDelta   float64  `help:"Typical: see --accept-epsilon; 0 = 0.3." placeholder:"DELTA" default:"0" more:"" group:"Speculation"`
	Logprobs      bool     `help:"Tell the log-probability of each token in the --json output." more:"" group:"Text"`
	TopLogprobs   int      `help:"Also tell the log-probabilities of this many likeliest tokens, up to 20." default:"0" more:"" group:"Text"`
}

// NoLimit is the largest number of tokens of an answer that goes on until the model ends it or the context is full.
const NoLimit = math.MaxInt32

// Request returns the request for a prompt, validated.
func (s Sampling) Request(prompt string) (tandem.Request, error) {
	return request(prompt, s.MaxTokens, tandem.Sampling{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, Seed: s.Seed,
		RepeatPenalty: s.RepeatPenalty, RepeatLast: s.RepeatLast, FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty},
		s.Shape, s.Speculation, s.Decoding)
}

// request returns the request for a prompt, validated. most is the largest number of tokens; 0 and -1, as Ollama has it, and -2, which is
// llama.cpp's for the end of the context, are no limit.
func request(prompt string, most int, sampling tandem.Sampling, shape Shape, by Speculation, how Decoding) (tandem.Request, error) {
	if most <= 0 && most >= -2 {
		most = NoLimit
	}
	if most < 0 {
		return tandem.Request{}, tandem.Errorf("", tandem.Invalid, "max_tokens is %d: want 1 or more, or 0 or -1 for no limit", most)
	}
	r := tandem.Request{Prompt: prompt, MaxTokens: most, IgnoreEOS: how.IgnoreEOS, FullTrace: how.FullTrace, Sampling: sampling}
	if err := shape.shape(&r); err != nil {
		return r, err
	}
	if err := by.Speculate(&r); err != nil {
		return r, err
	}
	if how.NoDraft {
		r.Bounds = tandem.Bounds{}
	}
	return r, r.Validate(tandem.Limits{Strategies: strategy.Names()})
}

func (s Shape) shape(r *tandem.Request) (err error) {
	to := &r.Sampling
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
