package inspect

import (
	"math"
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// advice is where a file says how its model wants tokens drawn, by keys that llama.cpp's converter takes from generation_config.json.
const advice = "general.sampling."

// unmet are the keys for which tandem has no sampler.
var unmet = []string{"sequence", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta"}

// readAdvice returns what the file says about sampling, and the keys of it that tandem cannot follow. Values that switch a sampler off mean
// what they mean to llama.cpp. Errors: Corrupt for a value that means nothing.
func readAdvice(f *gguf.File) (p tandem.Preset, ignored []string, err error) {
	number := func(name string, to **float64, lo, hi float64) {
		key := advice + name
		if err != nil || !f.Has(key) {
			return
		}
		var v float64
		if v, err = f.Float(key); err != nil {
			return
		}
		// 0.6 is kept as float32: take it as the 0.6 that a request would say
		v, _ = strconv.ParseFloat(strconv.FormatFloat(float64(float32(v)), 'g', -1, 32), 64)
		if v < lo || v > hi {
			err = tandem.Errorf("engine", tandem.Corrupt, "%s: %s is %v: want %v to %v", f.Path(), key, v, lo, hi)
			return
		}
		*to = &v
	}
	whole := func(name string, to **int) {
		key := advice + name
		if err != nil || !f.Has(key) {
			return
		}
		var n int
		if n, err = f.Int(key, math.MinInt32, math.MaxInt32); err == nil {
			*to = &n
		}
	}
	number("temp", &p.Temperature, math.Inf(-1), tandem.MaxTemperature)
	number("top_p", &p.TopP, math.Inf(-1), math.Inf(1))
	number("min_p", &p.MinP, math.Inf(-1), 1)
	number("penalty_repeat", &p.RepeatPenalty, tandem.MinRepeat, tandem.MaxRepeat)
	whole("top_k", &p.TopK)
	whole("penalty_last_n", &p.RepeatLast)
	if err != nil {
		return tandem.Preset{}, nil, err
	}
	for _, name := range unmet {
		if f.Has(advice + name) {
			ignored = append(ignored, advice+name)
		}
	}
	return within(p), ignored, nil
}

// within returns p with the values that switch a sampler off written as tandem writes them.
func within(p tandem.Preset) tandem.Preset {
	if p.Temperature != nil {
		p.Temperature = new(max(*p.Temperature, 0)) // the likeliest token
	}
	if p.TopP != nil {
		p.TopP = new(min(max(*p.TopP, math.SmallestNonzeroFloat64), 1)) // the likeliest token alone; all
	}
	if p.MinP != nil {
		p.MinP = new(max(*p.MinP, 0))
	}
	if p.TopK != nil {
		p.TopK = new(max(*p.TopK, 0))
	}
	switch last := p.RepeatLast; {
	case last == nil:
	case *last == 0: // no token is penalised
		p.RepeatLast, p.RepeatPenalty = nil, new(1.0)
	case *last < 0 || *last > tandem.MaxRepeatLast: // the whole context: the longest window there is
		p.RepeatLast = new(tandem.MaxRepeatLast)
	}
	return p
}
