package token

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// infill holds the markers of a model that fills in text, -1 for none. The prompt is prefix, the text before the gap, suffix, the text
// behind it, and middle; the model continues with the text of the gap.
type infill struct{ prefix, suffix, middle tandem.Token }

// infillMarkers are these markers as llama.cpp finds them: by a key of the file, the first of them that it has, else by a well-known text.
var infillMarkers = []struct {
	name  string
	to    func(*infill) *tandem.Token
	keys  []string
	texts []string
}{
	{"prefix", func(m *infill) *tandem.Token { return &m.prefix }, []string{"prefix", "fim_pre"}, []string{"<|fim_prefix|>", "<fim-prefix>",
		"<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"}},
	{"suffix", func(m *infill) *tandem.Token { return &m.suffix }, []string{"suffix", "fim_suf"}, []string{"<|fim_suffix|>", "<fim-suffix>",
		"<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"}},
	{"middle", func(m *infill) *tandem.Token { return &m.middle }, []string{"middle", "fim_mid"}, []string{"<|fim_middle|>", "<fim-middle>",
		"<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"}},
}

// readInfill finds the markers for infill.
func (v *Vocab) readInfill(f *gguf.File) error {
	for _, m := range infillMarkers {
		to := m.to(&v.infill)
		*to = -1
		for _, key := range m.keys {
			if key = "tokenizer.ggml." + key + "_token_id"; *to < 0 && f.Has(key) {
				n, err := f.Int(key, 0, len(v.pieces)-1)
				if err != nil {
					return err
				}
				*to = tandem.Token(n)
			}
		}
	}
	for i, piece := range v.pieces {
		for _, m := range infillMarkers {
			if to := m.to(&v.infill); *to < 0 && len(piece) < maxText && slices.Contains(m.texts, piece) {
				*to = tandem.Token(i)
			}
		}
	}
	return nil
}

// FillIn returns the prompt for the text between before and behind, in which no control tokens are recognised. If the file lacks markers
// for that, it returns their names instead.
func (v *Vocab) FillIn(before, behind string) (tokens []tandem.Token, lacking []string) {
	for _, m := range infillMarkers {
		if *m.to(&v.infill) < 0 {
			lacking = append(lacking, m.name)
		}
	}
	if lacking != nil {
		return nil, lacking
	}
	if v.addBOS {
		tokens = append(tokens, v.bos)
	}
	tokens = append(append(tokens, v.infill.prefix), v.Encode(before, false)...)
	tokens = append(append(tokens, v.infill.suffix), v.Encode(behind, false)...)
	return append(tokens, v.infill.middle), nil
}
