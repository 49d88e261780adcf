package published

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/files"
)

const maxConfig = 1 << 20 // bytes

// config holds the fields of config.json, or of PEFT's adapter_config.json. The names are Hugging Face's for llama models, and those that
// EAGLE, SpecForge, vLLM's speculators and PPD add. A missing field is 0 or "".
type config struct {
	path string // "" if there is no file

	Hidden  int     `json:"hidden_size"`
	FFN     int     `json:"intermediate_size"`
	Heads   int     `json:"num_attention_heads"`
	KVHeads int     `json:"num_key_value_heads"`
	HeadDim int     `json:"head_dim"`
	Layers  int     `json:"num_hidden_layers"`
	Context int     `json:"max_position_embeddings"`
	Eps     float64 `json:"rms_norm_eps"`
	Theta   float64 `json:"rope_theta"`
	Act     string  `json:"hidden_act"`
	Scaling *rope   `json:"rope_scaling"`
	Rope    *rope   `json:"rope_parameters"`

	DraftVocab         int   `json:"draft_vocab_size"`
	Vocab              int   `json:"vocab_size"`
	TargetHidden       int   `json:"target_hidden_size"`
	NormBeforeResidual bool  `json:"norm_before_residual"`
	NormBeforeFC       bool  `json:"norm_before_fc"`
	Aux                []int `json:"eagle_aux_hidden_state_layer_ids"`
	EagleConfig        struct {
		Aux    []int `json:"eagle_aux_hidden_state_layer_ids"`
		UseAux *bool `json:"use_aux_hidden_state"` // nil: true
	} `json:"eagle_config"`
	Layer json.RawMessage `json:"transformer_layer_config"`

	TargetLayer int `json:"target_layer"` // dovetail: tandem's own name

	PromptTokens int    `json:"num_special_tokens"`
	Ensemble     int    `json:"virtual_tokens_per_special_token"`
	Attention    string `json:"vt_attention_type"`
	Aggregation  string `json:"aggregation_type"`
	Exits        int    `json:"num_exits"`
	OwnHead      bool   `json:"use_custom_lm_head"`
	Prefix       bool   `json:"use_prefix_tuning"`
}

// rope holds RoPE's base and scaling as a configuration states them.
type rope struct {
	Kind   string  `json:"rope_type"`
	Type   string  `json:"type"`
	Factor float64 `json:"factor"`
	Theta  float64 `json:"rope_theta"`
}

// readConfig reads the configuration in a folder; an empty one if there is none.
func (c *Checkpoint) readConfig(dir string) (*config, error) {
	for _, name := range []string{"adapter_config.json", "config.json"} {
		path := filepath.Join(dir, name)
		text, err := files.ReadFile(path, maxConfig)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", path, err)
		}
		return parseConfig(path, text)
	}
	return &config{}, nil
}

func parseConfig(path string, text []byte) (*config, error) {
	k := &config{}
	err := json.Unmarshal(text, k)
	if err == nil && len(k.Layer) > 0 { // the layer's configuration first, so that what stands outside has precedence
		layer := k.Layer
		k = &config{}
		if err = json.Unmarshal(layer, k); err == nil {
			err = json.Unmarshal(text, k)
		}
	}
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: %w", path, err)
	}
	k.path = path
	return k, nil
}

// orDefault returns v, or def if v is not said.
func orDefault[T int | float64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// ropeBase returns the base of RoPE. Scalings are refused: side files have none.
func (k *config) ropeBase() (float64, error) {
	base := k.Theta
	for _, r := range []*rope{k.Scaling, k.Rope} {
		if r == nil {
			continue
		}
		base = orDefault(base, r.Theta)
		kind := strings.ToLower(r.Kind + r.Type)
		if kind != "" && kind != "default" && kind != "defaultdefault" && !(strings.HasPrefix(kind, "linear") && r.Factor == 1) {
			return 0, fmt.Errorf("rope scaling %q with factor %g: side files have no scaling of RoPE", kind, r.Factor)
		}
	}
	return orDefault(base, 10000), nil
}
