package token

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// infill holds the markers of a model that fills in text, -1 for none. The prompt is prefix, the text before the gap, suffix, the text
// behind it, and middle; the model continues with the text of the gap. In front of prefix may stand repo with the name of a project, and
// file with the name and the text of each of its files. A model that has filled the gap writes an end of a text, pad or any of the others.
type infill struct{ prefix, suffix, middle, repo, file, pad tandem.Token }

// infillMarkers are these markers as llama.cpp finds them: by a key of the file, the first of them that it has, else by a well-known text.
// Without a name: a model may lack it.
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
	{"", func(m *infill) *tandem.Token { return &m.repo }, []string{"fim_rep"}, []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
		"<repo_name>", "<reponame>", "<REPO>"}},
	{"", func(m *infill) *tandem.Token { return &m.file }, []string{"fim_sep"}, []string{"<|file_sep|>", "<file_sep>",
		"<|file_separator|>"}},
	{"", func(m *infill) *tandem.Token { return &m.pad }, []string{"fim_pad"}, []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"}},
}

// readInfill finds the markers for infill.
func (v *Vocab) readInfill(f *gguf.File) error {
	wanted := map[string]*tandem.Token{} // by text: what the file has no key of
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
		for _, text := range m.texts {
			if *to < 0 {
				wanted[text] = to
			}
		}
	}
	for i, piece := range v.pieces {
		if to := wanted[piece]; to != nil && *to < 0 {
			*to = tandem.Token(i)
		}
	}
	return nil
}

// FillIn returns the prompt for the text between before and behind, in which no control tokens are recognised. Files of the same project
// stand in front, if there are any. If the model's file lacks markers, FillIn returns their names instead.
func (v *Vocab) FillIn(before, behind string, files ...tandem.Excerpt) (tokens []tandem.Token, lacking []string) {
	for _, m := range infillMarkers {
		if *m.to(&v.infill) < 0 && m.name != "" {
			lacking = append(lacking, m.name)
		}
	}
	if lacking != nil {
		return nil, lacking
	}
	if v.addBOS {
		tokens = append(tokens, v.bos)
	}
	tokens = v.project(tokens, files)
	tokens = append(append(tokens, v.infill.prefix), v.Encode(before, false)...)
	tokens = append(append(tokens, v.infill.suffix), v.Encode(behind, false)...)
	return append(tokens, v.infill.middle), nil
}

// project appends files, in the form that llama.cpp's server documents for /infill. The names of the project and of the file with the gap
// are not known, and are the same words for all.
func (v *Vocab) project(tokens []tandem.Token, files []tandem.Excerpt) []tandem.Token {
	if len(files) == 0 {
		return tokens
	}
	if v.infill.repo >= 0 {
		tokens = append(append(tokens, v.infill.repo), v.Encode("myproject\n", false)...)
	}
	for _, f := range files {
		if v.infill.file < 0 {
			tokens = append(tokens, v.Encode("\n\n--- snippet ---\n\n"+f.Text, false)...)
			continue
		}
		tokens = append(append(tokens, v.infill.file), v.Encode(f.Name+"\n"+f.Text, false)...)
	}
	if v.infill.file >= 0 {
		tokens = append(append(tokens, v.infill.file), v.Encode("filename\n", false)...)
	}
	return tokens
}

// GapEnds returns the written forms of the markers with which a model may end what it has filled in, besides ends of a text.
func (v *Vocab) GapEnds() (all []string) {
	for _, m := range infillMarkers {
		if t := *m.to(&v.infill); t >= 0 && !v.IsEnd(t) {
			if text := string(v.AppendWritten(nil, t)); text != "" {
				all = append(all, text)
			}
		}
	}
	return all
}
