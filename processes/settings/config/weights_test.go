package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestWeightsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.json")
	read := func(text string) (map[string]float64, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Weights(path)
	}
	got, err := read(`{"go": 1.5, "prose": 2e-1}`)
	if want := map[string]float64{"go": 1.5, "prose": 0.2}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, %v", got, err)
	}
	for text, want := range map[string]string{
		`{"go": 0}`: `drafter "go" is 0`, `{"go": NaN}`: `drafter "go" is NaN`, `{"a": 1, "py": -1}`: `drafter "py" is -1`,
		`{"go": Infinity}`: `drafter "go" is Infinity`,
		`{"go": "much"}`:   `drafter "go" is much`, `{"go": 1, "go": 2}`: `drafter "go"`, `{"go": [1]}`: `drafter "go"`,
		`{"go": 1e999}`: `drafter "go" is 1e999`, `{"go": null}`: `drafter "go"`,
		`[1]`: "want an object", ``: "want an object", `{"go": `: path,
	} {
		if got, err := read(text); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v: want %s", text, got, err, want)
		}
	}
}
