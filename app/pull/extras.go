package pull

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/hub"
)

// Extras is what Ollama's store says of a model whose file does not say it itself.
type Extras struct {
	ChatTemplate string        // file with a Jinja template; "": none, or the model's file has its own
	Preset       tandem.Preset // how tokens are drawn, but for what the model's file says
	Notes        []string      // what is not used, and why
}

const maxExtra = 1 << 20 // bytes of a template or of parameters

// params are the parameters of Ollama that tandem knows too.
type params struct {
	Temperature      *float64 `json:"temperature"`
	TopP             *float64 `json:"top_p"`
	MinP             *float64 `json:"min_p"`
	RepeatPenalty    *float64 `json:"repeat_penalty"`
	FrequencyPenalty *float64 `json:"frequency_penalty"`
	PresencePenalty  *float64 `json:"presence_penalty"`
	TopK             *int     `json:"top_k"`
	RepeatLast       *int     `json:"repeat_last_n"`
}

var known = []string{"temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "top_k", "repeat_last_n"}

// extras reads the layers beside a model. Errors: those of the model's file.
func extras(f hub.Found) (e Extras, err error) {
	info, err := engine.Inspect(f.Path)
	if err != nil {
		return e, err
	}
	if f.Template != "" && !info.ChatTemplate {
		b, err := files.ReadFile(f.Template, maxExtra)
		switch {
		case err != nil:
			e.Notes = append(e.Notes, "its chat template cannot be read: "+files.Reason(err).Error())
		case isJinja(string(b)):
			e.ChatTemplate = f.Template
		default:
			e.Notes = append(e.Notes, "its file has no chat template, and Ollama's is written in the language of Go's templates, which "+
				"tandem does not read: want --chat-template FILE with a Jinja template")
		}
	}
	if f.Params != "" {
		if err := e.draw(f.Params, info.Sampling); err != nil {
			e.Notes = append(e.Notes, "its parameters are not used: "+err.Error())
		}
	}
	return e, nil
}

// isJinja reports whether a template is one of Jinja, and not of Go: only Jinja has {% … %}, and only Go's fields begin with a dot.
func isJinja(text string) bool {
	return strings.Contains(text, "{%") && !strings.Contains(text, "{{ .") && !strings.Contains(text, "{{.")
}

// draw reads parameters; those of the file win.
func (e *Extras) draw(path string, file tandem.Preset) error {
	b, err := files.ReadFile(path, maxExtra)
	if err != nil {
		return files.Reason(err)
	}
	var p params
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	preset := tandem.Preset{Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, RepeatPenalty: p.RepeatPenalty,
		FrequencyPenalty: p.FrequencyPenalty, PresencePenalty: p.PresencePenalty, TopK: p.TopK, RepeatLast: p.RepeatLast}
	if err := preset.Over(tandem.ServerSampling).Validate(tandem.Limits{}); err != nil {
		return err
	}
	for _, f := range []struct{ file, own **float64 }{{&file.Temperature, &preset.Temperature}, {&file.TopP, &preset.TopP},
		{&file.MinP, &preset.MinP}, {&file.RepeatPenalty, &preset.RepeatPenalty}, {&file.FrequencyPenalty, &preset.FrequencyPenalty},
		{&file.PresencePenalty, &preset.PresencePenalty}} {
		if *f.file != nil {
			*f.own = nil
		}
	}
	if file.TopK != nil {
		preset.TopK = nil
	}
	if file.RepeatLast != nil {
		preset.RepeatLast = nil
	}
	e.Preset = preset
	maps.DeleteFunc(all, func(k string, _ json.RawMessage) bool { return slices.Contains(known, k) })
	if len(all) > 0 {
		e.Notes = append(e.Notes, fmt.Sprintf("of its parameters not used: %q", slices.Sorted(maps.Keys(all))))
	}
	return nil
}
