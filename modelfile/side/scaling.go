package side

// RopeFactors names the tensor that divides RoPE's frequencies one by one (Llama 3's scaling).
const RopeFactors = "rope_freqs.weight"

// Scaling is how RoPE's frequencies are scaled to a longer context, by the keys of llama files. The engine checks the values. A number that
// is 0 is not in the file. The zero value is no scaling.
type Scaling struct {
	Kind               string  // linear or yarn
	Factor             float64 // by which the context is extended
	Magnitude          float64 // yarn: factor of cosines and sines, beside YaRN's own
	Original           int     // yarn: positions before the extension
	BetaFast, BetaSlow float64 // yarn: turns above and below which a pair of elements is kept or interpolated
}

const keyScaling = "rope.scaling.type"

// numbers lists the keys with numbers.
func (s *Scaling) numbers() []struct {
	key string
	at  *float64
} {
	return []struct {
		key string
		at  *float64
	}{{"rope.scaling.factor", &s.Factor}, {"rope.scaling.attn_factor", &s.Magnitude},
		{"rope.scaling.yarn_beta_fast", &s.BetaFast}, {"rope.scaling.yarn_beta_slow", &s.BetaSlow}}
}

func (s *Scaling) read(r *reader) {
	var err error
	s.Kind, err = r.file.StringOr(r.key(keyScaling), "")
	if r.keep(err); s.Kind == "" {
		return
	}
	for _, n := range s.numbers() {
		*n.at, err = r.file.FloatOr(r.key(n.key), 0)
		r.keep(err)
	}
	s.Original = r.countOr("rope.scaling.original_context_length", maxContext, 0)
}

func (s *Scaling) set(set func(string, any)) {
	if s.Kind == "" {
		return
	}
	set(keyScaling, s.Kind)
	for _, n := range s.numbers() {
		if *n.at != 0 {
			set(n.key, float32(*n.at))
		}
	}
	if s.Original != 0 {
		set("rope.scaling.original_context_length", uint32(s.Original))
	}
}
