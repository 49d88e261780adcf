package token

import (
	"slices"

	"github.com/tandem-llm/tandem"
)

// What ends a generation is what a model's generation_config.json lists as eos_token_id. GGUF has room for three of them (eos, eot,
// eom), and most files name one. The rest follows from the texts of the markers.

// wellKnownEnds are the texts with which the models of well-known families end a turn or a text.
var wellKnownEnds = []string{
	"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end|>", "<|return|>", "<|call|>", "<|EOT|>",
	"<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<end_of_utterance>",
	"<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", space + "<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>", "[|endofturn|]", "<|role_end|>",
	"<|endofresponse|>", "<seed:eos>", "[e~[",
}

// endings are families in which a marker's text alone does not tell whether it is an end.
var endings = []struct {
	has     []string // the family is one whose markers include all of these
	ends    []string // markers that are ends here
	inTurns []string // markers that are none here: a turn goes on behind them
}{
	// gpt-oss: <|end|> ends a message, such as one of the analysis channel; <|return|> and <|call|> end the turn.
	{has: []string{"<|return|>", "<|call|>"}, inTurns: []string{"<|end|>"}},
	// Solar Open, with the same format
	{has: []string{"<|flush|>", "<|calls|>"}, ends: []string{"<|flush|>", "<|calls|>"}, inTurns: []string{"<|end|>"}},
	// GLM has no end of a turn: the model begins the next one.
	{has: []string{"[gMASK]", "<|user|>", "<|observation|>"}, ends: []string{"<|user|>", "<|observation|>"}},
	// Gemma 4: a tool's answer is to follow <|tool_response>; </s> is an HTML tag.
	{has: []string{"<|turn>", "<turn|>"}, ends: []string{"<turn|>", "<|tool_response>"}, inTurns: []string{"</s>"}},
	// Phi-3
	{has: []string{"<|placeholder1|>", "<|end|>"}, ends: []string{"<|assistant|>"}},
	// Apertus
	{has: []string{"<|assistant_end|>", "<|tools_suffix|>"}, ends: []string{"<|assistant_end|>", "<|tools_suffix|>"}},
}

// findEnds finds the ends of a generation: those that the file names, and the markers that are ends by their text.
func (v *Vocab) findEnds() {
	marker := map[string]tandem.Token{}
	for i, piece := range v.pieces {
		t := tandem.Token(i)
		if k := v.kinds[i]; (k == control || k == userDefined) && v.isMarker(t) {
			if _, twice := marker[piece]; !twice {
				marker[piece] = t
			}
		}
	}
	texts := slices.Clone(wellKnownEnds)
	for _, f := range endings {
		if slices.ContainsFunc(f.has, func(text string) bool { _, ok := marker[text]; return !ok }) {
			continue
		}
		texts = append(texts, f.ends...)
		for _, text := range f.inTurns {
			if t, ok := marker[text]; ok {
				v.inTurns = append(v.inTurns, t)
			}
		}
	}
	v.ends = slices.Clone(v.declared)
	for _, text := range texts {
		if t, ok := marker[text]; ok && !v.IsEnd(t) {
			v.ends = append(v.ends, t)
		}
	}
	v.ends = slices.DeleteFunc(v.ends, func(t tandem.Token) bool { return slices.Contains(v.inTurns, t) })
}
