package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// shapeFlags change the probabilities of tokens and where the output ends.
type shapeFlags struct {
	MinP             float64  `help:"Draw among tokens with at least this share of the likeliest one's probability; 0 = all." default:"0"`
	RepeatPenalty    float64  `help:"Divide the logits of the latest tokens by this, up to 10; 1 = do not." default:"1"`
	RepeatLast       int      `help:"How many of the latest tokens --repeat-penalty looks at, up to 4096." default:"64"`
	FrequencyPenalty float64  `help:"Lower a token's logit by this for each time that the output holds it, -2 to 2." default:"0"`
	PresencePenalty  float64  `help:"Lower a token's logit by this if the output holds it, -2 to 2." default:"0"`
	LogitBias        []string `help:"Add to the logit of a token, -100 to 100; may be repeated." placeholder:"ID=ADD" sep:"none"`
	Stop             []string `help:"End the output before this text; may be repeated, up to 64 times." placeholder:"TEXT" sep:"none"`
	Accept           string   `help:"How drafted tokens are accepted: exact gives the text of plain decoding, typical takes likely tokens as well and is lossy." enum:"exact,typical" default:"exact"`
	AcceptEpsilon    float64  `help:"Typical: a token is accepted if its probability is above min(EPSILON, DELTA·exp(-entropy)); 0 = 0.09." placeholder:"EPSILON" default:"0"`
	AcceptDelta      float64  `help:"Typical: see --accept-epsilon; 0 = 0.3." placeholder:"DELTA" default:"0"`
	Logprobs         bool     `help:"Tell the log-probability of each token in the --json output."`
	TopLogprobs      int      `help:"Also tell the log-probabilities of this many likeliest tokens, up to 20." default:"0"`
}

// shape puts the flags into r.
func (f shapeFlags) shape(r *tandem.Request) (err error) {
	s := &r.Sampling
	s.MinP, s.RepeatPenalty, s.RepeatLast = f.MinP, f.RepeatPenalty, f.RepeatLast
	s.FrequencyPenalty, s.PresencePenalty = f.FrequencyPenalty, f.PresencePenalty
	s.Accept, s.Epsilon, s.Delta = tandem.Acceptance(f.Accept), f.AcceptEpsilon, f.AcceptDelta
	s.Logprobs, s.TopLogprobs, r.Stop = f.Logprobs || f.TopLogprobs > 0, f.TopLogprobs, f.Stop
	s.Bias, err = parseBias(f.LogitBias)
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

// logprob is the log-probability of one token as --json prints it.
type logprob struct {
	LogProb float32      `json:"logprob"`
	Top     []topLogprob `json:"top,omitempty"`
}

// topLogprob is the log-probability of one of the likeliest tokens.
type topLogprob struct {
	Token   uint32  `json:"token"`
	LogProb float32 `json:"logprob"`
}

func fromLogprobs(list []client.Logprob) (out []logprob) {
	for _, l := range list {
		p := logprob{LogProb: l.LogProb}
		for _, t := range l.Top {
			p.Top = append(p.Top, topLogprob(t))
		}
		out = append(out, p)
	}
	return out
}
