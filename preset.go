package tandem

// Preset holds sampling options that come not from a request but from a model file, or from whoever runs a server. A nil field sets
// nothing.
type Preset struct {
	Temperature, TopP, MinP                          *float64
	RepeatPenalty, FrequencyPenalty, PresencePenalty *float64
	TopK, RepeatLast                                 *int
}

// Over returns s with the options that p sets in place of its own.
func (p Preset) Over(s Sampling) Sampling {
	for _, f := range []struct {
		from *float64
		to   *float64
	}{{p.Temperature, &s.Temperature}, {p.TopP, &s.TopP}, {p.MinP, &s.MinP}, {p.RepeatPenalty, &s.RepeatPenalty},
		{p.FrequencyPenalty, &s.FrequencyPenalty}, {p.PresencePenalty, &s.PresencePenalty}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if p.TopK != nil {
		s.TopK = *p.TopK
	}
	if p.RepeatLast != nil {
		s.RepeatLast = *p.RepeatLast
	}
	return s
}

// ServerSampling holds the sampling options over HTTP that neither the request nor a Preset sets: llama.cpp's.
var ServerSampling = Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1, RepeatLast: DefaultRepeatLast}
