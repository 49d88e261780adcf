package main

import "github.com/tandem-llm/tandem/client"

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
