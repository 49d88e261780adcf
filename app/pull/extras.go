package pull

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/hub"
)

// Extras is what Ollama's store says of a model whose file does not say it itself: what counts where neither a setting nor a request says
// otherwise.
type Extras struct {
	ChatTemplate string        // file with a Jinja template; "": none, or the model's file has its own
	Preset       tandem.Preset // how tokens are drawn, but for what the model's file says
	Stop         []string      // where an output ends
	Context      int           // longest session in tokens; 0: not said
	System       string        // the system message of a chat; "": none
	Notes        []string      // what is not used, and why
}

const (
	maxExtra  = 1 << 20  // bytes of a template or of parameters
	maxSystem = 64 << 10 // bytes of a system message: about 16,000 tokens, which every chat would begin with
)

// params are the parameters of Ollama that tandem knows too. Those of how tokens are drawn are called like the fields of tandem.Preset.
type params struct {
	Temperature      *float64 `json:"temperature"`
	TopP             *float64 `json:"top_p"`
	MinP             *float64 `json:"min_p"`
	RepeatPenalty    *float64 `json:"repeat_penalty"`
	FrequencyPenalty *float64 `json:"frequency_penalty"`
	PresencePenalty  *float64 `json:"presence_penalty"`
	TopK             *int     `json:"top_k"`
	RepeatLast       *int     `json:"repeat_last_n"`
	Stop             []string `json:"stop"`
	Context          *int     `json:"num_ctx"`
}

// ExtrasOf reads the layers beside a model. What is damaged is not used, and named in Notes. Errors: those of the model's file.
func ExtrasOf(f hub.Found) (e Extras, err error) {
	info, err := engine.Inspect(f.Path)
	if err != nil {
		return e, err
	}
	for _, layer := range []struct {
		what, path string
		most       int64
		read       func([]byte) error
	}{
		{"chat template", f.Template, maxExtra, func(b []byte) error { return e.template(f.Template, b, info.ChatTemplate) }},
		{"parameters", f.Params, maxExtra, func(b []byte) error { return e.params(b, info.Sampling) }},
		{"system message", f.System, maxSystem, e.system},
	} {
		if layer.path == "" {
			continue
		}
		b, err := files.ReadFile(layer.path, layer.most)
		if err == nil {
			err = layer.read(b)
		}
		if err != nil {
			e.Notes = append(e.Notes, fmt.Sprintf("its %s: not used: %v", layer.what, files.Reason(err)))
		}
	}
	return e, nil
}

// template takes over a template, unless the model's file has one.
func (e *Extras) template(path string, b []byte, own bool) error {
	switch {
	case own:
	case isJinja(string(b)):
		e.ChatTemplate = path
	default:
		return errors.New("its file has none, and Ollama's is written in the language of Go's templates, which tandem does not read: " +
			"want --chat-template FILE with a Jinja template")
	}
	return nil
}

// isJinja reports whether a template is one of Jinja, and not of Go: only Jinja has {% … %}, and only Go's fields begin with a dot.
func isJinja(text string) bool {
	return strings.Contains(text, "{%") && !strings.Contains(text, "{{ .") && !strings.Contains(text, "{{.")
}

// system takes over a system message.
func (e *Extras) system(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("it is not UTF-8")
	}
	e.System = strings.TrimSpace(string(b))
	return nil
}

// params takes over all parameters or, if one is wrong, none. How the model's file says that tokens are drawn wins.
func (e *Extras) params(b []byte, file tandem.Preset) error {
	var p params
	var all map[string]json.RawMessage
	err := json.Unmarshal(b, &p)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Errorf("%s is a %s: want %s", wrong.Field, wrong.Value, wrong.Type)
	}
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return err
	}
	var preset tandem.Preset
	to, own := reflect.ValueOf(&preset).Elem(), reflect.ValueOf(file)
	for f, v := range reflect.ValueOf(p).Fields() {
		name := f.Tag.Get("json")
		delete(all, name)
		if at := to.FieldByName(f.Name); at.IsValid() {
			at.Set(v)
		}
	}
	r := tandem.Request{Tokens: []tandem.Token{0}, MaxTokens: 1, Sampling: preset.Over(tandem.ServerSampling), Stop: p.Stop}
	if err := r.Validate(tandem.Limits{}); err != nil {
		return err
	}
	if p.Context != nil {
		if *p.Context < 2 { // as --ctx
			return fmt.Errorf("num_ctx is %d: want at least 2", *p.Context)
		}
		e.Context = *p.Context
	}
	for i := range to.NumField() {
		if !own.Field(i).IsNil() {
			to.Field(i).SetZero()
		}
	}
	e.Preset, e.Stop = preset, p.Stop
	if len(all) > 0 {
		e.Notes = append(e.Notes, fmt.Sprintf("of its parameters not used: %q", slices.Sorted(maps.Keys(all))))
	}
	return nil
}

// Rows returns what there is, for people.
func (e Extras) Rows() (rows []modelinfo.Value) {
	add := func(name, value string) { rows = append(rows, modelinfo.Value{Name: name, Value: value}) }
	for f, v := range reflect.ValueOf(e.Preset).Fields() {
		if !v.IsNil() {
			at, _ := reflect.TypeFor[params]().FieldByName(f.Name)
			add(at.Tag.Get("json"), fmt.Sprint(v.Elem()))
		}
	}
	for _, s := range e.Stop {
		add("stop", s)
	}
	if e.Context > 0 {
		add("num_ctx", fmt.Sprint(e.Context))
	}
	if e.System != "" {
		add("system", e.System)
	}
	return rows
}
