package device

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestParse: what --device may be, and how it is written again.
func TestParse(t *testing.T) {
	for s, want := range map[string]string{"": "cpu", "cpu": "cpu", "auto": "auto", "cuda": "cuda", "cuda:0": "cuda", "cuda:3": "cuda:3",
		"cores:0": "cores:0", "cores:5,0-2,3": "cores:0-3,5", "cuda+cpu": "cuda+cpu", "cuda:1+cpu": "cuda:1+cpu", "cpu+cuda": "cpu+cuda",
		"cores:0-3+cores:4-7": "cores:0-3+cores:4-7", "cores:1+cores:0": "cores:1+cores:0", "cuda+cores:0,2": "cuda+cores:0,2",
		"cuda:0+cuda:1": "cuda+cuda:1"} {
		p, err := Parse("device", s)
		if err != nil || p.String() != want {
			t.Errorf("%q is %v (%v), want %s", s, p, err, want)
		}
	}
	for s, want := range map[string]string{
		"gpu": `no processor is called "gpu": want cpu, cuda`, "cores": "want cpu", "cpu:0": "want cpu", "cuda:-1": "want cuda:N",
		"cuda:": "want cuda:N", "cuda:x": "want cuda:N", "cores:": `"" in its list`, "cores:0,": `"" in its list`,
		"cores:a": `"a" in its list`, "cores:3-1": `"3-1" in its list`, "cores:-1": `"-1" in its list`, "cores:0-": `"0-" in its list`,
		"cores:1024": "0 to 1023", "cores:0-99999999999999999999": "0 to 1023", "cores:1,0-2": "core 1 is named twice",
		"a+b+c": "3 processors", "cuda+": `no processor is called ""`, "+cpu": `no processor is called ""`, "+": `no processor is called ""`,
		"auto+cpu": "auto chooses one", "cpu+auto": "auto chooses one", "cuda+cuda:0": "cuda:0 is on both sides",
		"cpu+cpu": "cpu is all cores", "cpu+cores:0": "cpu is all cores", "cores:0+cpu": "cpu is all cores",
		"cores:0-3+cores:3-7": "core 3 is on both sides"} {
		_, err := Parse("device", s)
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%q: %v, want %q", s, err, want)
		}
	}
}

// TestOverlap: two of them overlap if a processor computes for both; threads can be said only where no group says them.
func TestOverlap(t *testing.T) {
	at := func(s string) Spec {
		p, err := Parse("device", s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for pair, want := range map[[2]string]bool{{"cpu", "cpu"}: true, {"cpu", "cuda"}: false, {"cuda", "cuda:1"}: false,
		{"cuda:1", "cuda:1"}: true, {"cpu", "cores:3"}: true, {"cores:0-3", "cores:4-7"}: false, {"cores:0-3", "cores:3"}: true,
		{"cuda+cpu", "cuda"}: true, {"cuda+cpu", "cores:1"}: true, {"cores:0+cores:1", "cores:1"}: true,
		{"cores:0+cores:1", "cores:2"}: false, {"cuda+cores:0", "cuda:1+cores:1"}: false} {
		if a, b := at(pair[0]), at(pair[1]); a.Overlaps(b) != want || b.Overlaps(a) != want {
			t.Errorf("%s and %s overlap: %v, want %v", a, b, !want, want)
		}
	}
	all := []int{0, 1, 2, 3}
	for s, want := range map[string][]int{"cpu": {}, "cuda": all, "cuda+cpu": {}, "cores:1-2": {0, 3}, "cores:0+cores:2": {1, 3}} {
		if got := at(s).Others(all); !slices.Equal(got, want) {
			t.Errorf("%s leaves %v, want %v", s, got, want)
		}
	}
	for s, refused := range map[string]bool{"cpu": false, "cuda+cpu": false, "cores:0-1": true, "cuda+cores:0-1": true} {
		if err := at(s).CheckThreads("device", "threads", 2); (err != nil) != refused || at(s).CheckThreads("device", "threads", 0) != nil {
			t.Errorf("2 threads on %s: %v", s, err)
		}
	}
	if err := Check("device", "cores:1000"); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "no core 1000") {
		t.Errorf("a core that is not there: %v", err)
	}
}
