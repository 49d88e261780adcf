package browser

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// inkOf counts the pixels of the time chart that are not its ground.
const inkOf = `(() => { const c = document.getElementById("lanes"); const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
	let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i] > 0) n++; return n; })()`

// code is what fake gateways write.
var code = []string{" r", " *", "Reader", ")", " (", "n", " int", ",", " err", " error", ")", " {", "\n", "\t", "if", " n", " ==", " 0",
	" {", "\n"}

func TestPlayground(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake-1b", drafters: []string{"go", "py", "prose"}, words: code, tokens: 60,
		plain: 12 * time.Millisecond,
		pace:  2 * time.Millisecond, why: "go 3.2 tokens in 8.1 ms beats plain 1 in 7.5 ms"})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	p.set("max_tokens", "60", "temperature", "0.5", "seed", "7", "top_p", "0.9", "strategy", "fixed", "max_nodes", "16", "max_depth", "5",
		"max_branches", "3")
	p.do(chromedp.Click(`#drafters input[value="py"]`))
	p.run("func (r *Reader) Read(")
	p.picture("fake-desktop")

	if got := p.output(); got != f.text() {
		t.Errorf("output %q: want %q", got, f.text())
	}
	if got := read[string](p, `document.querySelector("#text .given").textContent`); got != "func (r *Reader) Read(" {
		t.Errorf("prompt shown as %q", got)
	}
	sent := f.bodies[0]
	want := map[string]any{"max_tokens": 60., "temperature": .5, "seed": 7., "top_p": .9, "stream": true}
	for k, v := range want {
		if sent[k] != v {
			t.Errorf("%s sent as %v: want %v", k, sent[k], v)
		}
	}
	speculation, _ := json.Marshal(sent["speculation"])
	if want := `{"drafters":["go","prose"],"enabled":true,"max_branches":3,"max_depth":5,"max_nodes":16,"report":true,"strategy":"fixed","vote":"auto"}`; string(speculation) != want {
		t.Errorf("speculation sent as %s: want %s", speculation, want)
	}
	if n := read[int](p, `document.querySelectorAll("#text span.t").length`); n == 0 || n >= 60 {
		t.Errorf("%d tokens look like the target's own", n)
	}
	if n := read[int](p, `new Set([...document.querySelectorAll("#text [data-i]")].map((e) => e.className)).size`); n < 3 {
		t.Errorf("tokens have %d looks: want the target's, a drafter's and that of several", n)
	}

	p.js(`const r = document.getElementById("round"); r.value = 2; r.dispatchEvent(new Event("input"));`)
	if n := read[int](p, `document.querySelectorAll("#tree rect").length`); n != 17 { // 16 nodes and the target's own token
		t.Errorf("the tree has %d boxes: want 17", n)
	}
	if n := read[int](p, `document.querySelectorAll("#tree .edge.on").length`); n != 5 { // 4 accepted and the target's own
		t.Errorf("%d edges were taken: want 5", n)
	}
	if n := read[int](p, `document.querySelectorAll("#tree path[class^=m]").length`); n < 15 {
		t.Errorf("%d votes are marked: want at least one for each node", n)
	}
	if label := read[string](p, `document.getElementById("tree").getAttribute("aria-label")`); !strings.Contains(label,
		"15 nodes drafted") || !strings.Contains(label, "accepted 4") {
		t.Errorf("the tree is described as %q", label)
	}
	if why := p.text("why"); !strings.Contains(why, f.why) {
		t.Errorf("why is told as %q: want %q in it", why, f.why)
	}
	if n := read[int](p, inkOf); n < 2000 {
		t.Errorf("the time chart has %d pixels of ink", n)
	}
	if s := p.text("overlap"); !strings.Contains(s, "%") {
		t.Errorf("overlap is told as %q", s)
	}
	if n := read[int](p, `document.querySelectorAll("#depths .bar").length`); n < 4 {
		t.Errorf("%d bars of acceptance by depth", n)
	}

	// a token tells where it came from: by pointer and by key
	p.js(`document.querySelector('#text [data-i="1"]').dispatchEvent(new PointerEvent("pointerover", {bubbles: true}))`)
	if s := p.text("readout"); !strings.Contains(s, "Token 2") || !strings.Contains(s, "round 0, depth 2") ||
		!strings.Contains(s, "id 101") {
		t.Errorf("the token is told as %q", s)
	}
	p.do(chromedp.Focus("#text"), chromedp.KeyEvent(kb.ArrowRight))
	if s := p.text("readout"); !strings.Contains(s, "Token 3") || !strings.Contains(s, "the target's own") {
		t.Errorf("after an arrow key the token is told as %q", s)
	}

	p.do(chromedp.Click("#measure"))
	p.settled()
	if s := p.text("equal"); !strings.Contains(s, "equal: 60 tokens, 5 runs") {
		t.Errorf("the comparison says %q", s)
	}
	if ratio := read[float64](p, `parseFloat(document.getElementById("speedup").textContent)`); ratio < 1.5 {
		t.Errorf("speed-up %.2f: the fake's rounds are much faster with speculation", ratio)
	}
	if n := len(f.bodies); n != 5 {
		t.Errorf("%d generations: want 5", n)
	}
	p.picture("fake-measured")
	p.healthy(f.url())
}

// TestPlaygroundDifference shows a difference where there is one.
func TestPlaygroundDifference(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"go"}, words: code, tokens: 20, differ: 7})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	p.do(chromedp.Click("#measure"))
	p.settled()
	if s := p.text("equal"); !strings.Contains(s, "differ, first at token 7") {
		t.Errorf("the comparison says %q", s)
	}
	if colour := read[string](p, `getComputedStyle(document.getElementById("equal")).color`); colour != "rgb(179, 38, 30)" {
		t.Errorf("the difference is written in %s: want red", colour)
	}
	p.healthy(f.url())
}

// TestPlaygroundMarkup puts markup everywhere where text of a model or of its makers is shown.
func TestPlaygroundMarkup(t *testing.T) {
	t.Parallel()
	const evil = `<img src=x onerror="window.pwned=1">`
	words := []string{"<script>window.pwned=1</script>", evil, `<svg onload="window.pwned=1">`,
		"<iframe srcdoc='<script>parent.pwned=1</script>'>", "</textarea></div>", `javascript:pwned=1`,
		"&lt;b&gt;", "\u202e", "\x1b[31m", "<style>*{display:none}</style>", "\r\n", "\x00", "é", "𝄞"}
	f := startFake(t, script{model: evil, drafters: []string{evil, "<b>go</b>"}, words: words, tokens: 60, why: evil,
		finish: func() (any, any) { return "error", map[string]any{"error": map[string]any{"message": evil}} }})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	p.run(evil)
	for i := range 5 {
		p.js(`document.querySelector('#text [data-i="%d"]').click()`, i*7)
	}
	p.do(chromedp.Click("#measure"))
	p.settled()
	if n := read[int](p, `document.querySelectorAll("img, iframe, #text script, #text style, b b, [onerror], [onload], a[href^=javascript]").length`); n != 0 {
		t.Errorf("%d elements were made of text", n)
	}
	if read[bool](p, `"pwned" in window`) {
		t.Error("text of the model ran")
	}
	if got := p.output(); got != f.text() {
		t.Errorf("output %q: want %q", got, f.text())
	}
	if s := p.text("notice"); s != evil {
		t.Errorf("notice %q: want the server's error as it is", s)
	}
	// and if some day a script did it: the policy refuses
	if !read[bool](p, `(() => { try { document.body.innerHTML = "<p>"; return false; } catch { return true; } })()`) {
		t.Error("markup of text is not refused")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, url := range p.asked {
		if !strings.HasPrefix(url, f.url()) || strings.HasSuffix(url, "/x") {
			t.Errorf("the page asked %s", url)
		}
	}
}

// TestPlaygroundLong: 5,000 tokens on the page; while they come and after, the page answers.
func TestPlaygroundLong(t *testing.T) {
	f := startFake(t, script{model: "fake", drafters: []string{"go", "py", "prose", "all"}, words: code, tokens: 5000,
		pace: time.Millisecond})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	p.set("max_tokens", "5000")
	p.js(`window.gaps = []; let last = performance.now(); (function tick(now) { gaps.push(now - last); last = now; requestAnimationFrame(tick); })(last);`)
	begun := time.Now()
	p.do(chromedp.Click("#run"))
	var slowest time.Duration
	for n := 0; read[string](p, `document.body.dataset.state`) == "busy" || n == 0; n++ {
		asked := time.Now()
		read[int](p, `document.querySelectorAll("#text [data-i]").length`)
		slowest = max(slowest, time.Since(asked))
		time.Sleep(15 * time.Millisecond)
	}
	p.settled()
	took := time.Since(begun)
	if got := p.output(); got != f.text() {
		t.Errorf("output of %d bytes: want %d", len(got), len(f.text()))
	}
	quantile := func(q float64) float64 {
		return read[float64](p, fmt.Sprintf(`[...gaps].sort((a, b) => a - b)[Math.floor(gaps.length * %g)]`, q))
	}
	p50, p95 := quantile(0.5), quantile(0.95)
	t.Logf("5,000 tokens in %v; frames: p50 %.0f ms, p95 %.0f ms; slowest answer %v", took.Round(time.Millisecond), p50, p95,
		slowest.Round(time.Millisecond))
	if p50 > 60 || p95 > 250 {
		t.Errorf("frames take p50 %.0f ms, p95 %.0f ms: want at most 60 and 250", p50, p95)
	}
	if slowest > time.Second {
		t.Errorf("the page took %v to answer: want at most 1 s", slowest)
	}
	scrub := read[float64](p, `(() => { const r = document.getElementById("round"), t = performance.now();
		for (let i = 0; i < 50; i++) { r.value = i * 30; r.dispatchEvent(new Event("input")); }
		document.body.getBoundingClientRect(); return (performance.now() - t) / 50; })()`)
	t.Logf("a step of the scrubber: %.1f ms", scrub)
	if scrub > 100 {
		t.Errorf("a step of the scrubber takes %.0f ms with 5,000 tokens: want at most 100", scrub)
	}
	p.healthy(f.url())
}

// TestPlaygroundRestart: the gateway breaks off, is away, and comes back at the same address.
func TestPlaygroundRestart(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"go"}, words: code, tokens: 40, pace: 30 * time.Millisecond, breakAt: 6})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	p.do(chromedp.Click("#run"))
	p.wait("the text breaks off", `/after [1-9]\d* tokens/.test(document.getElementById("notice").textContent)`)
	if got := p.output(); got == "" || !strings.HasPrefix(f.text(), got) {
		t.Errorf("after the break the text is %q: want what had come", got)
	}
	p.wait("the page sees that the gateway is away", `document.body.dataset.state === "away"`)
	if !read[bool](p, `document.getElementById("run").disabled`) {
		t.Error("a gateway that is away can be asked")
	}
	f.start()
	p.wait("the gateway is back", `document.body.dataset.state === "ready"`)
	if s := p.text("notice"); !strings.Contains(s, "back") {
		t.Errorf("notice %q: want that it is back", s)
	}
	if got := p.output(); got == "" {
		t.Error("the text that had come is gone")
	}
	p.do(chromedp.Click("#run"))
	p.settled()
	if got := p.output(); got != f.text() {
		t.Errorf("after the restart the text is %q: want %q", got, f.text())
	}
	p.healthy(f.url())
}

// TestPlaygroundChat: with a template the page opens on the chat, and remembers; it also continues text.
func TestPlaygroundChat(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"go"}, words: []string{"Hel", "lo", ",", " you", "<b>", "\n", "!"},
		tokens: 14, chat: true})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	if s := read[string](p, `document.querySelector("label[for=prompt]").textContent + document.getElementById("prompt").value`); s != "Message" {
		t.Errorf("the page opens on %q: want an empty message", s)
	}
	p.run("first <i>question</i>")
	p.run("second question")
	answer := f.text()
	want := []any{map[string]any{"role": "user", "content": "first <i>question</i>"},
		map[string]any{"role": "assistant", "content": answer},
		map[string]any{"role": "user", "content": "second question"}}
	if got := f.bodies[1]["messages"]; !reflect.DeepEqual(got, want) {
		t.Errorf("messages %v: want %v", got, want)
	}
	if got := read[string](p, `document.getElementById("text").textContent`); got != "first <i>question</i>"+answer+"second question"+
		answer {
		t.Errorf("the page shows %q", got)
	}
	p.do(chromedp.Click("#measure"))
	p.settled()
	if s := p.text("equal"); !strings.Contains(s, "equal: 14 tokens, 5 runs") {
		t.Errorf("the comparison says %q", s)
	}
	p.do(chromedp.Click("#clear"))
	p.run("afresh")
	if got := f.bodies[len(f.bodies)-1]["messages"]; !reflect.DeepEqual(got, []any{map[string]any{"role": "user", "content": "afresh"}}) {
		t.Errorf("after a new chat messages are %v", got)
	}
	p.do(chromedp.Click("#mode-text"))
	p.run("x")
	if got := f.bodies[len(f.bodies)-1]["prompt"]; got != "x" {
		t.Errorf("the prompt to continue is sent as %v", got)
	}
	p.healthy(f.url())
}

func TestPlaygroundStop(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"go"}, words: code, tokens: 5000, pace: 10 * time.Millisecond})
	p := openTab(t, 1280, 900)
	p.open(f.url())
	p.do(chromedp.Click("#run"))
	p.wait("text comes", `document.querySelectorAll("#text [data-i]").length > 20`)
	p.do(chromedp.Click("#stop"))
	p.settled()
	if s := p.text("readout"); !strings.HasPrefix(s, "Stopped after ") {
		t.Errorf("readout %q: want that it was stopped", s)
	}
	if s := p.text("notice"); s != "" {
		t.Errorf("notice %q: want none", s)
	}
	if read[bool](p, `document.getElementById("run").disabled`) {
		t.Error("nothing can be run after a stop")
	}
	p.healthy(f.url())
}

// TestPlaygroundKey: a gateway with keys; the page keeps the key in the tab alone.
func TestPlaygroundKey(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake", drafters: []string{"go"}, words: code, tokens: 20, key: "sesame"})
	p := openTab(t, 1280, 900)
	p.do(chromedp.Navigate(f.url()))
	p.wait("the key is asked for", `document.getElementById("access").open`)
	p.set("key", "sesame")
	p.wait("the page is ready", `document.body.dataset.state === "ready"`)
	p.run("x")
	if got := p.output(); got != f.text() {
		t.Errorf("output %q: want %q", got, f.text())
	}
	if n := read[int](p, `localStorage.length + document.cookie.length`); n != 0 {
		t.Error("something is kept beyond the tab")
	}
	for _, url := range p.asked {
		if strings.Contains(url, "sesame") {
			t.Errorf("the key is in the address %s", url)
		}
	}
	p.healthy(f.url())
}

// contrast returns the texts whose contrast with their ground is below AA (WCAG 2, 1.4.3: 4.5 to 1).
const contrast = `(() => {
	const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
	const lum = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
	const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255]; };
	const bad = new Set();
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = walk.nextNode());) {
		const e = n.parentElement;
		if (!n.textContent.trim() || !e.checkVisibility() || e.closest("svg, noscript, :disabled")) continue;
		const [a, b] = [lum(parse(getComputedStyle(e).color)), lum(ground(e))].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < 4.5) bad.add(e.tagName + "." + e.className + " " + ratio.toFixed(2) + " " + n.textContent.trim().slice(0, 20));
	}
	return [...bad];
})()`

// unlabelled returns the controls without a name.
const unlabelled = `[...document.querySelectorAll("input, select, textarea, button")].filter((e) =>
	![...(e.labels ?? [])].some((l) => l.textContent.trim()) && !e.getAttribute("aria-label") && !e.textContent.trim()).map((e) => e.id)`

// small returns the controls that a finger misses: less than 24 px high or wide (WCAG 2.2, 2.5.8). A label belongs to its box.
const small = `[...document.querySelectorAll("input, select, textarea, button, summary")].filter((e) => e.checkVisibility())
	.map((e) => [e, (e.closest("label") ?? e).getBoundingClientRect()]).filter(([, r]) => r.width < 24 || r.height < 24)
	.map(([e, r]) => e.tagName + "#" + e.id + " " + Math.round(r.width) + "x" + Math.round(r.height))`

func TestPlaygroundAccessible(t *testing.T) {
	t.Parallel()
	f := startFake(t, script{model: "fake-1b", drafters: []string{"go", "py", "prose", "all", "lookup"}, words: code, tokens: 120,
		why: "go beats plain"})
	p := openTab(t, 390, 844)
	for _, scheme := range []string{"light", "dark"} {
		p.colours(scheme)
		p.open(f.url())
		for _, when := range []string{"at first", "with text", "measured"} {
			switch when {
			case "with text":
				p.run("a rather long prompt that does not fit into one line of a telephone, with_a_long_word_too_" +
					strings.Repeat("x", 80))
				p.js(`document.querySelector('#text [data-i="3"]').click()`)
			case "measured":
				p.do(chromedp.Click("#measure"))
				p.settled()
			}
			if bad := read[[]string](p, contrast); len(bad) > 0 {
				t.Errorf("%s, %s: too little contrast: %s", scheme, when, strings.Join(bad, "; "))
			}
			if bad := read[[]string](p, small); len(bad) > 0 {
				t.Errorf("%s, %s: too small: %s", scheme, when, strings.Join(bad, "; "))
			}
			if wide := read[[]int](p, `[document.documentElement.scrollWidth, innerWidth]`); wide[0] > wide[1] || wide[1] != 390 {
				t.Errorf("%s, %s: the page is %d wide on a screen of %d", scheme, when, wide[0], wide[1])
			}
		}
		p.picture("fake-phone-" + scheme)
	}
	if bad := read[[]string](p, unlabelled); len(bad) > 0 {
		t.Errorf("controls without a name: %v", bad)
	}
	p.do(chromedp.EmulateViewport(1280, 900))
	if bad := read[[]string](p, small); len(bad) > 0 {
		t.Errorf("on a desk: too small: %s", strings.Join(bad, "; "))
	}
	p.picture("fake-desktop-dark")
	p.healthy(f.url())
}
