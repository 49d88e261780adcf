package tandem

// Preset is what somebody other than a request says about sampling: a model file, or whoever runs a server. nil: nothing.
type Preset struct {
	Temperature, TopP, MinP                          *float64
	RepeatPenalty, FrequencyPenalty, PresencePenalty *float64
	TopK, RepeatLast                                 *int
}

// Over returns s with what p says in its place.
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

// ServerSampling is how tokens are drawn over HTTP where nobody says how: as llama.cpp's server does.
var ServerSampling = Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1, RepeatLast: DefaultRepeatLast}
