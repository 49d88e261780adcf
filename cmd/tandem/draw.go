package main

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
)

// drawing tells how requests over HTTP are answered that do not say how.
func drawing(f settings.Drawing, info *engine.Info) string {
	s := gateway.HTTPSampling(f.Preset(), info.Sampling)
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
	switch told := f.Preset() != (tandem.Preset{}) || f.Seed != nil; {
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
