package httpapi

import (
	"encoding/json"
	"strconv"

	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
)

// props is what /props answers: llama.cpp's names, as far as tandem has what they mean.
type props struct {
	Settings struct {
		Context int             `json:"n_ctx"`
		Params  llamacpp.Params `json:"params"` // the values of what a request leaves out
	} `json:"default_generation_settings"`
	Alias      string          `json:"model_alias"`
	Path       string          `json:"model_path"` // the file's name: its folder is nobody's business
	Template   string          `json:"chat_template"`
	Caps       map[string]bool `json:"chat_template_caps"` // of chats with this server, which describes tools where the template does not
	Modalities map[string]bool `json:"modalities"`
	Build      string          `json:"build_info"`
}

func newProps(cfg Config) props {
	d := values(cfg.Defaults)
	p := props{Alias: cfg.Model.Name, Path: cfg.Model.File, Template: cfg.Model.Template, Build: "tandem " + cfg.Build,
		Modalities: map[string]bool{"vision": false, "audio": false}, Caps: map[string]bool{}}
	for _, name := range []string{"supports_system_role", "supports_tools", "supports_tool_calls", "supports_parallel_tool_calls"} {
		p.Caps[name] = cfg.Chat != nil
	}
	p.Settings.Context = cfg.Limits.Context
	most := d.MaxTokens
	if m := cfg.Defaults.MaxOutput; m > 0 && (most == ask.ToTheEnd || most > m) {
		most = m
	}
	if most == ask.ToTheEnd {
		most = -1 // as llama.cpp's server has it
	}
	p.Settings.Params = llamacpp.Params{Seed: "-1", Temperature: d.Temperature, TopK: d.TopK, TopP: d.TopP, MinP: d.MinP,
		RepeatLast: d.RepeatLast, RepeatPenalty: d.RepeatPenalty, PresencePenalty: d.PresencePenalty,
		FrequencyPenalty: d.FrequencyPenalty, MaxTokens: most, Predict: most}
	if seed := cfg.Defaults.Seed; seed != nil {
		p.Settings.Params.Seed = json.Number(strconv.FormatUint(*seed, 10))
	}
	return p
}
