package inspect

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

func TestAdvice(t *testing.T) {
	type keys = map[string]any
	least := math.SmallestNonzeroFloat64
	for name, c := range map[string]struct {
		keys  keys
		want  tandem.Preset
		unmet []string
		err   string
	}{
		"none": {},
		"Qwen 3's": {keys: keys{"temp": float32(0.6), "top_k": int32(20), "top_p": float32(0.95), "min_p": float32(0)},
			want: tandem.Preset{Temperature: new(0.6), TopK: new(20), TopP: new(0.95), MinP: new(0.0)}},
		"penalties": {keys: keys{"penalty_repeat": float32(1.1), "penalty_last_n": int32(128)},
			want: tandem.Preset{RepeatPenalty: new(1.1), RepeatLast: new(128)}},
		"switched off": {keys: keys{"temp": float32(-1), "top_k": int32(-1), "top_p": float32(2), "min_p": float32(-1)},
			want: tandem.Preset{Temperature: new(0.0), TopK: new(0), TopP: new(1.0), MinP: new(0.0)}},
		"one token": {keys: keys{"top_p": float32(0)}, want: tandem.Preset{TopP: &least}},
		"no window": {keys: keys{"penalty_repeat": float32(1.5), "penalty_last_n": int32(0)},
			want: tandem.Preset{RepeatPenalty: new(1.0)}},
		"the whole context": {keys: keys{"penalty_last_n": int32(-1)}, want: tandem.Preset{RepeatLast: new(4096)}},
		"a whole number":    {keys: keys{"temp": uint32(1)}, want: tandem.Preset{Temperature: new(1.0)}},
		"more than tandem has": {keys: keys{"temp": float32(1), "xtc_probability": float32(0.5), "sequence": "top_k;temperature"},
			want: tandem.Preset{Temperature: new(1.0)}, unmet: []string{"general.sampling.sequence", "general.sampling.xtc_probability"}},
		"not a number": {keys: keys{"temp": float32(math.NaN())}, err: "general.sampling.temp"},
		"a text":       {keys: keys{"top_k": "40"}, err: "general.sampling.top_k"},
		"too hot":      {keys: keys{"temp": float32(1000)}, err: "general.sampling.temp is 1000: want -Inf to 100"},
		"too tiny":     {keys: keys{"penalty_repeat": float32(1e-30)}, err: "general.sampling.penalty_repeat"},
	} {
		w := gguf.NewWriter()
		for key, v := range c.keys {
			w.Set(advice+key, v)
		}
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		got, unmet, err := readAdvice(f)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(unmet, c.unmet) {
			t.Errorf("%s: %+v, %v, %v", name, got, unmet, err)
		}
	}
}
