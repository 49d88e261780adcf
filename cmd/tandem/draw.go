package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/roles/gateway"
)

// drawFlags say how a gateway draws tokens over HTTP where a request says nothing. nil: as the model's file says, else as llama.cpp's
// server does.
type drawFlags struct {
	Temperature      *float64 `help:"Over HTTP, where a request says nothing: 0 takes the likeliest token; more is more random (default: the model file's, else 0.8)." placeholder:"T"`
	TopK             *int     `help:"Likewise: draw among the K likeliest tokens; 0 = all (default: the model file's, else 40)." placeholder:"K"`
	TopP             *float64 `help:"Likewise: draw among the likeliest tokens that together have this probability (default: the model file's, else 0.95)." placeholder:"P"`
	MinP             *float64 `help:"Likewise: draw among tokens with at least this share of the likeliest one's probability; 0 = all (default: the model file's, else 0.05)." placeholder:"P"`
	RepeatPenalty    *float64 `help:"Likewise: divide the logits of the latest tokens by this; 1 = do not (default: the model file's, else 1)." placeholder:"X"`
	RepeatLast       *int     `help:"Likewise: how many of the latest tokens the repeat penalty looks at (default: the model file's, else 64)." placeholder:"N"`
	FrequencyPenalty *float64 `help:"Likewise: lower a token's logit by this for each time that the output holds it (default: 0)." placeholder:"X"`
	PresencePenalty  *float64 `help:"Likewise: lower a token's logit by this if the output holds it (default: 0)." placeholder:"X"`
	Seed             *uint64  `help:"Likewise: seed of the draws (default: a random one for each request)." placeholder:"SEED"`
}

// preset returns the flags that were given.
func (f drawFlags) preset() tandem.Preset {
	return tandem.Preset{Temperature: f.Temperature, TopP: f.TopP, MinP: f.MinP, RepeatPenalty: f.RepeatPenalty,
		FrequencyPenalty: f.FrequencyPenalty, PresencePenalty: f.PresencePenalty, TopK: f.TopK, RepeatLast: f.RepeatLast}
}

// check refuses what no request could say.
func (f drawFlags) check() error {
	return f.preset().Over(tandem.ServerSampling).Validate(tandem.Limits{})
}

// args returns these flags for a child process.
func (f drawFlags) args() (args []string) {
	for _, x := range []struct {
		name string
		v    *float64
	}{{"temperature", f.Temperature}, {"top-p", f.TopP}, {"min-p", f.MinP}, {"repeat-penalty", f.RepeatPenalty},
		{"frequency-penalty", f.FrequencyPenalty}, {"presence-penalty", f.PresencePenalty}} {
		if x.v != nil {
			args = append(args, "--"+x.name+"="+strconv.FormatFloat(*x.v, 'g', -1, 64))
		}
	}
	if f.TopK != nil {
		args = append(args, "--top-k="+strconv.Itoa(*f.TopK))
	}
	if f.RepeatLast != nil {
		args = append(args, "--repeat-last="+strconv.Itoa(*f.RepeatLast))
	}
	if f.Seed != nil {
		args = append(args, "--seed="+strconv.FormatUint(*f.Seed, 10))
	}
	return args
}

// outputFlags bound answers.
type outputFlags struct {
	MaxOutputTokens int `help:"Most tokens of an answer, whatever a request asks for; 0 = as many as the context holds." default:"0" placeholder:"N"`
}

func (f outputFlags) check() error {
	if f.MaxOutputTokens < 0 {
		return tandem.Errorf("", tandem.Invalid, "--max-output-tokens is %d: want 1 or more, or 0 for no bound", f.MaxOutputTokens)
	}
	return nil
}

func (f outputFlags) args() []string {
	return []string{"--max-output-tokens=" + strconv.Itoa(f.MaxOutputTokens)}
}

// drawing tells how requests over HTTP are answered that do not say how.
func (f drawFlags) drawing(info *engine.Info) string {
	s := gateway.HTTPSampling(f.preset(), info.Sampling)
	out := fmt.Sprintf("temperature %v, top-k %d, top-p %v, min-p %v", s.Temperature, s.TopK, s.TopP, s.MinP)
	if s.RepeatPenalty != 1 && s.RepeatPenalty != 0 {
		out += fmt.Sprintf(", repeat penalty %v of the last %d", s.RepeatPenalty, s.RepeatLast)
	}
	if s.FrequencyPenalty != 0 || s.PresencePenalty != 0 {
		out += fmt.Sprintf(", frequency penalty %v, presence penalty %v", s.FrequencyPenalty, s.PresencePenalty)
	}
	if f.Seed != nil {
		out += fmt.Sprintf(", seed %d", *f.Seed)
	}
	out += " (over HTTP, where a request says nothing"
	switch told := f != (drawFlags{}); {
	case told && info.Sampling != (tandem.Preset{}):
		out += "; from flags and the model's file"
	case told:
		out += "; from flags"
	case info.Sampling != (tandem.Preset{}):
		out += "; from the model's file"
	}
	if len(info.SamplingIgnored) > 0 {
		out += "; of the file not used: " + strings.Join(info.SamplingIgnored, ", ")
	}
	return out + ")"
}
