package httpapi

import (
	"net/http"

	"github.com/tandem-llm/tandem/services/httpapi/oai"
)

// props is what /props answers: llama.cpp's names, as far as tandem has what they mean.
type props struct {
	Settings struct {
		Context int           `json:"n_ctx"`
		Params  defaultParams `json:"params"`
	} `json:"default_generation_settings"`
	Alias      string          `json:"model_alias"`
	Path       string          `json:"model_path"` // the file's name: its folder is nobody's business
	Template   string          `json:"chat_template"`
	Caps       map[string]bool `json:"chat_template_caps"` // of chats with this server, which describes tools where the template does not
	Modalities map[string]bool `json:"modalities"`
	Build      string          `json:"build_info"`
}

// defaultParams are the values of what a request leaves out.
type defaultParams struct {
	Seed             int64   `json:"seed"` // -1: a random one for each request
	Temperature      float64 `json:"temperature"`
	TopK             int     `json:"top_k"`
	TopP             float64 `json:"top_p"`
	MinP             float64 `json:"min_p"`
	RepeatLast       int     `json:"repeat_last_n"`
	RepeatPenalty    float64 `json:"repeat_penalty"`
	PresencePenalty  float64 `json:"presence_penalty"`
	FrequencyPenalty float64 `json:"frequency_penalty"`
	MaxTokens        int     `json:"max_tokens"`
	Predict          int     `json:"n_predict"` // the same
	IgnoreEOS        bool    `json:"ignore_eos"`
	Stream           bool    `json:"stream"`
}

// props answers /props.
func (s *Server) props(w http.ResponseWriter, _ *call) error {
	d := values(s.cfg.Defaults)
	p := props{Alias: s.cfg.Model.Name, Path: s.cfg.Model.File, Template: s.cfg.Model.Template, Build: "tandem " + s.cfg.Build,
		Modalities: map[string]bool{"vision": false, "audio": false}, Caps: map[string]bool{}}
	for _, name := range []string{"supports_system_role", "supports_tools", "supports_tool_calls", "supports_parallel_tool_calls"} {
		p.Caps[name] = s.cfg.Chat != nil
	}
	p.Settings.Context = s.cfg.Limits.Context
	most := d.MaxTokens
	if m := s.cfg.Defaults.MaxOutput; m > 0 && (most == oai.ToTheEnd || most > m) {
		most = m
	}
	if most == oai.ToTheEnd {
		most = -1 // as llama.cpp's server has it
	}
	p.Settings.Params = defaultParams{Seed: -1, Temperature: d.Temperature, TopK: d.TopK, TopP: d.TopP, MinP: d.MinP,
		RepeatLast: d.RepeatLast, RepeatPenalty: d.RepeatPenalty, PresencePenalty: d.PresencePenalty,
		FrequencyPenalty: d.FrequencyPenalty, MaxTokens: most, Predict: most}
	if seed := s.cfg.Defaults.Seed; seed != nil {
		p.Settings.Params.Seed = int64(*seed)
	}
	s.reply(w, http.StatusOK, p)
	return nil
}
