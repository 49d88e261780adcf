package browser

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPlaygroundUnsaid: what no control says is left to the gateway, which answers as over HTTP; 0 and -1 are no limit either. An answer
// that was cut says at what, and what helps.
func TestPlaygroundUnsaid(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"go"}, words: code, tokens: 20})
	p := openTab(t, 390, 844)
	p.open(f.url())
	if shown := read[[]string](p, `["max_tokens", "temperature", "top_p", "seed"].map((id) => document.getElementById(id).placeholder)`); !reflect.
		DeepEqual(shown, []string{"no limit", "0.8", "0.95", "random"}) {
		t.Errorf("the controls say %q", shown)
	}
	for most, says := range map[string]string{"": "by the gateway", "0": "by the gateway", "-1": "by the gateway",
		"20": "Cut at 20 tokens: raise “Max tokens”", "500": "by the gateway"} {
		p.set("max_tokens", most)
		p.run("x")
		sent := f.bodies[len(f.bodies)-1]
		for _, field := range []string{"temperature", "top_p", "top_k", "min_p", "repeat_penalty"} {
			if v, is := sent[field]; is {
				t.Errorf("%s is sent as %v", field, v)
			}
		}
		if v, is := sent["max_tokens"]; is != (most == "20" || most == "500") || is && fmt.Sprint(v) != most || sent["seed"] == nil {
			t.Errorf("max_tokens %q is sent as %v, the seed as %v", most, v, sent["seed"])
		}
		if s := p.text("readout"); !strings.Contains(s, says) {
			t.Errorf("max_tokens %q: the page says %q: want %q", most, s, says)
		}
	}
	// a measurement repeats the seed that was drawn, and only then
	drawn := f.bodies[len(f.bodies)-1]["seed"]
	p.do(chromedp.Click("#measure"))
	p.settled()
	if got := f.bodies[len(f.bodies)-1]["seed"]; got != drawn {
		t.Errorf("measured with seed %v: want %v", got, drawn)
	}
	p.set("temperature", "0.3")
	p.do(chromedp.Click("#measure"))
	p.settled()
	if got := f.bodies[len(f.bodies)-1]["temperature"]; got != 0.3 {
		t.Errorf("measured with temperature %v: want what the controls say", got)
	}
	p.healthy(f.url())
}

// TestPlaygroundRows: rows and labels can be told apart, however alike names are and however close rounds lie.
func TestPlaygroundRows(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"gopher-draft-go-f16", "gopher-draft-prose-f16", "lookup"}, words: code,
		tokens: 60})
	p := openTab(t, 390, 844)
	p.open(f.url())
	short := func(names string) []string {
		return read[[]string](p, `(async () => { const { Slots } = await import("/playground/marks.js"); const s = new Slots(), all = `+names+`;
			all.forEach((n) => s.add(n)); return all.map((n) => s.short(n)); })()`)
	}
	for names, want := range map[string]string{
		`["gopher-draft-go-f16", "gopher-draft-py-f16", "gopher-draft-prose-f16", "lookup", "recycling"]`: "go py prose lookup recycling",
		`["x-go", "x-py", "go"]`:                               "x-go py go",
		`["qwen-0.5b-q4", "qwen-1.5b-q4"]`:                     "0.5b 1.5b",
		`["a", "b"]`:                                           "a b",
		`["m-draft", "m-draft-big", "lookup"]`:                 "draft big lookup",
		`["one-go-f16"]`:                                       "one-go-f16",
		`["gopher-draft-go-f16", "gopher-draft-go-q8", "x-y"]`: "f16 q8 x-y",
	} {
		if got := strings.Join(short(names), " "); got != want {
			t.Errorf("%s are called %s: want %s", names, got, want)
		}
	}
	labels := read[[]string](p, `(async () => { const { Slots } = await import("/playground/marks.js");
		const { Lanes } = await import("/playground/lanes.js"); const l = new Lanes(document.getElementById("lanes"), new Slots(), () => {});
		const rounds = [0, 1, 1.2, 1.4, 40, 40.1, 79.9].map((from, index) => ({ index, lanes: [{ stage: "verify", by: "", from, to: from + 0.1 }] }));
		l.draw(rounds, rounds, rounds[2]); const s = l.labels.sort((a, b) => a.from - b.from);
		s.forEach((x, i) => { if (i > 0 && x.from < s[i - 1].to + 2) throw new Error(x.text + " lies on " + s[i - 1].text); });
		return s.map((x) => x.text); })()`)
	if all := strings.Join(labels, " "); !strings.Contains(all, "round 2") || !strings.Contains(all, "4") || !strings.Contains(all, "6") {
		t.Errorf("rounds are labelled %q", all)
	}
	p.run("x")
	p.do(chromedp.Click("#measure"))
	p.settled()
	if !read[bool](p, `document.querySelector("#measured .scroll").scrollWidth <= document.querySelector("#measured .scroll").clientWidth`) {
		t.Error("the table of runs is wider than the telephone")
	}
	for _, rows := range []string{"#runs tbody td:first-child", "#choices .name", "#legend li"} {
		texts := read[[]string](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.textContent)`, rows))
		seen := map[string]bool{}
		for _, text := range texts {
			if seen[text] {
				t.Errorf("%s: two rows are %q", rows, text)
			}
			seen[text] = true
		}
		if cut := read[bool](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.scrollWidth > e.clientWidth + 1)`, rows)); cut ||
			len(texts) == 0 {
			t.Errorf("%s: %q are cut, or none", rows, texts)
		}
	}
	p.healthy(f.url())
}
