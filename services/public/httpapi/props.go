package httpapi

import (
	"github.com/tandem-llm/tandem"
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
	Caps       map[string]bool `json:"chat_template_caps"` // of chats here: the server describes tools where the template does not
	Modalities map[string]bool `json:"modalities"`
	Build      string          `json:"build_info"`
}

func newProps(cfg Config) props {
	d := cfg.Defaults
	p := props{Alias: cfg.Model.Name, Path: cfg.Model.File, Template: cfg.Model.Template, Build: "tandem " + cfg.Build,
		Modalities: map[string]bool{"vision": false, "audio": false}, Caps: map[string]bool{}}
	for _, name := range []string{"supports_system_role", "supports_tools", "supports_tool_calls", "supports_parallel_tool_calls",
		"supports_forced_tool_calls", "supports_json_schema"} {
		p.Caps[name] = cfg.Chat != nil
	}
	p.Settings.Context = cfg.Limits.Context
	most := d.MaxTokens
	if m := d.MaxOutput; m > 0 && (most == ask.ToTheEnd || most > m) {
		most = m
	}
	if most == ask.ToTheEnd {
		most = -1 // as llama.cpp's server has it
	}
	of := tandem.Request{Sampling: d.Sampling, MaxTokens: most}
	if d.Seed != nil {
		of.Sampling.Seed = *d.Seed
	}
	if p.Settings.Params = llamacpp.NewParams(of); d.Seed == nil {
		p.Settings.Params.Seed = "-1"
	}
	return p
}
