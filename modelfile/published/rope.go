package published

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/tandem-llm/tandem/modelfile/side"
)

// rope holds RoPE's base and scaling as a configuration states them (rope_scaling, and rope_parameters since Transformers 5).
type rope struct {
	Kind    string  `json:"rope_type"`
	Type    string  `json:"type"` // older
	Factor  float64 `json:"factor"`
	Theta   float64 `json:"rope_theta"`
	Partial float64 `json:"partial_rotary_factor"`

	Original  int     `json:"original_max_position_embeddings"`
	Low       float64 `json:"low_freq_factor"` // llama3
	High      float64 `json:"high_freq_factor"`
	BetaFast  float64 `json:"beta_fast"` // yarn
	BetaSlow  float64 `json:"beta_slow"`
	Attention float64 `json:"attention_factor"`
	Scale     float64 `json:"mscale"`
	ScaleAll  float64 `json:"mscale_all_dim"`
	Truncate  *bool   `json:"truncate"` // nil: true

	Full    json.RawMessage `json:"full_attention"` // one for each type of layer
	Sliding json.RawMessage `json:"sliding_attention"`
}

// scaling returns what the configuration says of RoPE, and its kind in lower case.
func (k *config) scaling() (r *rope, kind string) {
	if r = cmp.Or(k.Rope, k.Scaling); r == nil {
		r = &rope{}
	}
	return r, strings.ToLower(cmp.Or(r.Kind, r.Type, "default"))
}

// setRope sets RoPE's base, width and scaling in a draft whose heads and context are known. It returns factors that divide RoPE's
// frequencies; nil: there are none.
func (k *config) setRope(d *side.Draft) (factors []float32, err error) {
	r, kind := k.scaling()
	if r.Full != nil || r.Sliding != nil {
		return nil, fmt.Errorf("rope_parameters for each type of layer: side files have one RoPE for all layers")
	}
	d.RopeBase = cmp.Or(k.Theta, r.Theta)
	if k.Scaling != nil {
		d.RopeBase = cmp.Or(d.RopeBase, k.Scaling.Theta)
	}
	d.RopeBase = cmp.Or(d.RopeBase, 10000)
	d.RopeDim = d.HeadDim
	if part := cmp.Or(k.Partial, r.Partial); part != 0 {
		d.RopeDim = int(float64(d.HeadDim) * part)
	}
	switch kind {
	case "default", "none", "mrope": // mrope: the three positions of text are equal
		return nil, nil
	case "linear":
		if r.Factor != 1 {
			d.Scaling = side.Scaling{Kind: kind, Factor: r.Factor}
		}
		return nil, r.check(kind)
	case "yarn":
		d.Scaling, err = r.yarn(d.Context)
		return nil, err
	case "llama3":
		return r.llama3(d)
	}
	return nil, fmt.Errorf("rope scaling %.40q with factor %g: side files have linear, yarn and llama3", kind, r.Factor)
}

// check refuses a factor that scales nothing.
func (r *rope) check(kind string) error {
	if !(r.Factor > 0) || math.IsInf(r.Factor, 0) {
		return fmt.Errorf("rope scaling %q with factor %g: want a number above 0", kind, r.Factor)
	}
	return nil
}

// yarn returns YaRN's scaling. Cosines and sines are multiplied by attention_factor, else by the quotient of two temperatures, else by
// YaRN's own, 1 + 0.1·ln(factor); side files hold the number relative to the last.
func (r *rope) yarn(context int) (side.Scaling, error) {
	if err := r.check("yarn"); err != nil {
		return side.Scaling{}, err
	}
	if r.Truncate != nil && !*r.Truncate {
		return side.Scaling{}, fmt.Errorf("rope scaling \"yarn\" with truncate false: side files round to whole pairs")
	}
	s := side.Scaling{Kind: "yarn", Factor: r.Factor, Original: cmp.Or(r.Original, context), BetaFast: r.BetaFast, BetaSlow: r.BetaSlow}
	temperature := func(scale float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 1 + 0.1*scale*math.Log(r.Factor)
	}
	usual := temperature(1)
	want := usual
	switch {
	case r.Attention != 0:
		want = r.Attention
	case r.Scale != 0 && r.ScaleAll != 0:
		want = temperature(r.Scale) / temperature(r.ScaleAll)
	}
	if want != usual {
		s.Magnitude = want / usual
	}
	return s, nil
}

// llama3 returns the factors of Llama 3.1's scaling: frequencies whose waves are longer than original/low are divided by the factor, those
// shorter than original/high stay, and in between the share of both is linear in original/wave.
func (r *rope) llama3(d *side.Draft) ([]float32, error) {
	if err := r.check("llama3"); err != nil {
		return nil, err
	}
	if r.Original < 1 || !(r.Low > 0) || !(r.High >= r.Low) || d.RopeDim < 2 || d.RopeDim > 1<<16 {
		return nil, fmt.Errorf("rope scaling \"llama3\" over %d elements from %d positions, frequency factors %g and %g: want "+
			"original_max_position_embeddings, low_freq_factor and a high_freq_factor not below it", d.RopeDim, r.Original, r.Low, r.High)
	}
	factors := make([]float32, d.RopeDim/2)
	for i := range factors {
		wave := 2 * math.Pi * math.Pow(d.RopeBase, 2*float64(i)/float64(d.RopeDim))
		turns := float64(r.Original) / wave
		switch {
		case turns > r.High:
			factors[i] = 1
		case turns < r.Low:
			factors[i] = float32(r.Factor)
		default:
			kept := 0.0
			if r.High > r.Low {
				kept = (turns - r.Low) / (r.High - r.Low)
			}
			factors[i] = float32(1 / ((1-kept)/r.Factor + kept))
		}
	}
	return factors, nil
}
