package wire

import (
	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

func fromSampling(s tandem.Sampling) *peerv1.Sampling {
	k := int32(s.TopK)
	out := &peerv1.Sampling{Temperature: &s.Temperature, TopK: &k, TopP: &s.TopP, Seed: &s.Seed, MinP: s.MinP,
		RepeatPenalty: s.RepeatPenalty, RepeatLast: int32(s.RepeatLast), FrequencyPenalty: s.FrequencyPenalty,
		PresencePenalty: s.PresencePenalty,
		Logprobs:        s.Logprobs, TopLogprobs: int32(s.TopLogprobs), Accept: string(s.Accept), AcceptEpsilon: s.Epsilon,
		AcceptDelta: s.Delta}
	for _, b := range s.Bias {
		out.BiasTokens, out.BiasAdds = append(out.BiasTokens, uint32(b.Token)), append(out.BiasAdds, b.Add)
	}
	if c := s.Constraint; c != nil {
		out.Constraint = &peerv1.Constraint{Spec: c.Spec, Digest: c.Digest, Ends: FromTokens(c.Ends)}
	}
	return out
}

// toSampling decodes s. The fields that every version has sent must be there.
func toSampling(s *peerv1.Sampling) (tandem.Sampling, error) {
	switch {
	case s == nil || s.Temperature == nil || s.TopK == nil || s.TopP == nil || s.Seed == nil:
		return tandem.Sampling{}, tandem.Errorf(op, tandem.Invalid, "sampling is left open: want every field")
	case len(s.GetBiasTokens()) != len(s.GetBiasAdds()):
		return tandem.Sampling{}, tandem.Errorf(op, tandem.Invalid, "bias of %d tokens has %d values: want as many", len(s.GetBiasTokens()),
			len(s.GetBiasAdds()))
	}
	out := tandem.Sampling{Temperature: s.GetTemperature(), TopK: int(s.GetTopK()), TopP: s.GetTopP(), Seed: s.GetSeed(), MinP: s.GetMinP(),
		RepeatPenalty: s.GetRepeatPenalty(), RepeatLast: int(s.GetRepeatLast()), FrequencyPenalty: s.GetFrequencyPenalty(),
		PresencePenalty: s.GetPresencePenalty(), Logprobs: s.GetLogprobs(), TopLogprobs: int(s.GetTopLogprobs()),
		Accept: tandem.Acceptance(s.GetAccept()), Epsilon: s.GetAcceptEpsilon(), Delta: s.GetAcceptDelta()}
	for i, t := range s.GetBiasTokens() {
		out.Bias = append(out.Bias, tandem.Bias{Token: tandem.Token(t), Add: s.GetBiasAdds()[i]})
	}
	if c := s.GetConstraint(); c != nil {
		out.Constraint = &tandem.Constraint{Spec: c.GetSpec(), Digest: c.GetDigest(), Ends: ToTokens(c.GetEnds())}
	}
	return out, nil
}

func fromLogprobs(list []tandem.Logprob) (out []*peerv1.Logprob) {
	for _, l := range list {
		m := &peerv1.Logprob{LogProb: l.LogProb}
		for _, t := range l.Top {
			m.TopTokens, m.TopLogProbs = append(m.TopTokens, uint32(t.Token)), append(m.TopLogProbs, t.LogProb)
		}
		out = append(out, m)
	}
	return out
}

func toLogprobs(list []*peerv1.Logprob) (out []tandem.Logprob, err error) {
	for i, m := range list {
		if len(m.GetTopTokens()) != len(m.GetTopLogProbs()) {
			return nil, tandem.Errorf(op, tandem.Corrupt, "log-probabilities at token %d are of %d tokens and have %d values: want as many",
				i, len(m.GetTopTokens()), len(m.GetTopLogProbs()))
		}
		l := tandem.Logprob{LogProb: m.GetLogProb()}
		for j, t := range m.GetTopTokens() {
			l.Top = append(l.Top, tandem.TopLogprob{Token: tandem.Token(t), LogProb: m.GetTopLogProbs()[j]})
		}
		out = append(out, l)
	}
	return out, nil
}
