package published

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/side"
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
	Partial float64 `json:"partial_rotary_factor"`

	LayerTypes []string `json:"layer_types"`
	Window     int      `json:"sliding_window"`
	Tied       bool     `json:"tie_word_embeddings"`
	Causal     *bool    `json:"is_causal"` // of all layers of a block draft; nil: not said

	Architectures []string        `json:"architectures"`
	Speculator    string          `json:"speculators_model_type"`
	DFlash        json.RawMessage `json:"dflash_config"`
	block

	DraftVocab   int `json:"draft_vocab_size"`
	Vocab        int `json:"vocab_size"`
	TargetHidden int `json:"target_hidden_size"`
	eagleConfig
	EagleConfig struct {
		eagleConfig
		UseAux *bool `json:"use_aux_hidden_state"` // nil: true
	} `json:"eagle_config"`
	Layer json.RawMessage `json:"transformer_layer_config"`

	TargetLayer int `json:"target_layer"` // dovetail: tandem's own name

	OriginalHead bool `json:"original_lm_head"` // Medusa by vLLM: all heads use the target's output matrix

	MaskToken *int `json:"pard_token"` // nil: no draft of PARD

	PromptTokens int    `json:"num_special_tokens"`
	Ensemble     int    `json:"virtual_tokens_per_special_token"`
	Attention    string `json:"vt_attention_type"`
	Aggregation  string `json:"aggregation_type"`
	Exits        int    `json:"num_exits"`
	OwnHead      bool   `json:"use_custom_lm_head"`
	Prefix       bool   `json:"use_prefix_tuning"`
}

// eagleConfig holds what configurations of EAGLE-3 say at the top or in eagle_config.
type eagleConfig struct {
	Aux                []int `json:"eagle_aux_hidden_state_layer_ids"`
	NormBeforeResidual bool  `json:"norm_before_residual"`
	NormBeforeFC       bool  `json:"norm_before_fc"`
	FCNorm             bool  `json:"fc_norm"`
	NormOutput         bool  `json:"norm_output"`
}

// norms returns the norms of a draft of EAGLE-3.
func (k *config) norms() (side.Norms3, error) {
	a, b := &k.eagleConfig, &k.EagleConfig
	n := side.Norms3{Residual: a.NormBeforeResidual || b.NormBeforeResidual, Output: a.NormOutput || b.NormOutput}
	all, each := a.NormBeforeFC || b.NormBeforeFC, a.FCNorm || b.FCNorm
	switch {
	case all && each:
		return n, fmt.Errorf("norm_before_fc and fc_norm are both true: want one of them")
	case all:
		n.States = side.NormAll
	case each:
		n.States = side.NormEach
	}
	return n, nil
}

// window returns the window of the layers' attention; 0: they attend to all.
func (k *config) window() (int, error) {
	local := 0
	for _, kind := range k.LayerTypes {
		if kind == "sliding_attention" {
			local++
		}
	}
	switch {
	case local == 0:
		return 0, nil
	case local < len(k.LayerTypes):
		return 0, fmt.Errorf("layer_types %.80q: side files have one kind of attention in all layers", k.LayerTypes)
	case k.Window < 1:
		return 0, fmt.Errorf("layer_types %.80q with sliding_window %d: want a window of at least 1", k.LayerTypes, k.Window)
	}
	return k.Window, nil
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
