package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/chromedp/chromedp"
)

// realUp starts the program as people do, with all shipped drafts, and returns it once it serves.
func realUp(t *testing.T, w *world, grpc, http string) *exec.Cmd {
	t.Helper()
	args := []string{"up", "--listen", grpc, "--http", http, "--json"}
	if *target != "" {
		args = append(args, "--target", *target)
	}
	for _, d := range []string{"go", "py", "prose", "all"} {
		args = append(args, "--draft", "../models/gopher-draft-"+d+"-f16.gguf")
	}
	up := w.command(t.Context(), args...)
	up.Stderr = os.Stderr
	stdout, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(stdout).Decode(new(map[string]any)); err != nil {
		t.Fatalf("up --json: %v", err)
	}
	return up
}

// TestPlaygroundReal: the program as people start it, with the shipped models. -pictures keeps what it looks like, with
// another target by -target.
func TestPlaygroundReal(t *testing.T) {
	t.Parallel()
	browserPath(t)
	w := newWorld(t)
	grpc, http := freePort(t), freePort(t)
	up := realUp(t, w, grpc, http)
	defer func() {
		up.Process.Signal(syscall.SIGTERM)
		up.Wait()
	}()
	url := "http://" + http + "/"
	p := openTab(t, 1280, 900)
	p.open(url)
	p.js(`document.getElementById("logprobs").checked = true`)
	p.set("prompt", "x", "max_tokens", "16", "strategy", "minions")
	for deadline := time.Now().Add(20 * time.Second); ; { // drafters may still be opening: until all have drafted once
		p.do(chromedp.Click("#run"))
		p.settled()
		if s := p.text("why") + p.text("choices"); strings.Contains(s, "vote of 5") || strings.Contains(s, "vote of 6") {
			break // recycling votes where it has seen the token before
		}
		if time.Now().After(deadline) {
			t.Fatalf("the four drafters, lookup and recycling do not vote: %s; %s", p.text("why"), p.text("choices"))
		}
	}

	const prompt = "// Copy copies from src to dst until either EOF is reached on src or an error occurs.\nfunc Copy(dst Writer, src " +
		"Reader) (written int64, err error) {\n"
	strategy := "fixed" // shows drafts also where they do not pay
	if *target != "" {
		strategy = "planner"
	}
	p.set("prompt", prompt, "strategy", strategy, "vote", "tree", "max_nodes", "16", "max_depth", "7", "max_branches", "10", "max_tokens",
		"96", "temperature", "0")
	p.do(chromedp.Click("#run"))
	p.settled()
	plain := w.generate("--addr", grpc, "--no-draft", "--max-tokens", "96", "--seed", "1", "--prompt", prompt)
	if got := p.output(); got != plain.Text {
		t.Errorf("the page shows %q: plain decoding gives %q", got, plain.Text)
	}
	for what, js := range map[string]string{
		"drafted tokens":             `document.querySelectorAll("#text .dm, #text .d0, #text .d1, #text .d2, #text .d3").length`,
		"the target's own tokens":    `document.querySelectorAll("#text .t").length`,
		"bars of acceptance":         `document.querySelectorAll("#depths .bar").length`,
		"pixels of lanes":            inkOf,
		"drafters to choose, with 5": `document.querySelectorAll("#drafters input").length - 4`,
	} {
		if read[int](p, js) < 1 {
			t.Errorf("the page shows no %s", what)
		}
	}
	// a round that shows much: far along, and with dead branches
	p.js(`const r = document.getElementById("round"), box = document.getElementById("tree"); let best = -1, at = 0;
		for (let i = Math.min(4, +r.max); i <= +r.max; i++) { r.value = i; r.dispatchEvent(new Event("input"));
			const on = box.querySelectorAll(".edge.on").length, ahead = parseFloat(document.getElementById("overlap").textContent.split(": ")[1]) > 0;
			const score = Math.min(on, 5) * 6 + Math.min(+box.getAttribute("height"), 150) / 3 + (ahead ? 20 : 0); if (score > best) { best = score; at = i; } }
		r.value = at; r.dispatchEvent(new Event("input"));`)
	if n := read[int](p, `document.querySelectorAll("#tree rect").length`); n < 4 || n > 17 {
		t.Errorf("the tree has %d boxes: want some, and at most 16 nodes and the target's own token", n)
	}
	p.js(`const hit = [...document.querySelectorAll("#text .hit:not(.t)")]; (hit.find((e) => /\w/.test(e.textContent)) ?? hit[0]).dispatchEvent(new PointerEvent("pointerover", {bubbles: true}))`)
	if s := p.text("readout"); !strings.Contains(s, "drafted by") || !strings.Contains(s, "log-probability -") {
		t.Errorf("a drafted token is told as %q", s)
	}
	p.do(chromedp.Click("#measure"))
	p.settled()
	if s := p.text("equal"); !strings.Contains(s, "are equal") || !strings.Contains(s, "5 runs") {
		t.Errorf("the comparison says %q", s)
	}
	p.picture("playground")
	p.do(chromedp.EmulateViewport(390, 844))
	p.js(`const s = document.getElementById("span"); s.value = 4; s.dispatchEvent(new Event("change"));`)
	time.Sleep(300 * time.Millisecond)
	if wide := read[int](p, `document.documentElement.scrollWidth`); wide > 390 {
		t.Errorf("the page is %d wide on a screen of 390", wide)
	}
	p.picture("playground-phone")

	// all processes end in the middle of a text, and come back
	p.js(`document.getElementById("options").open = true`)
	p.set("max_tokens", "900")
	p.js(`document.getElementById("ignore_eos").checked = true`)
	p.do(chromedp.Click("#run"))
	p.wait("text comes", `document.querySelectorAll("#text [data-i]").length > 5`)
	up.Process.Kill()
	up.Wait()
	p.wait("the page sees that the gateway is away", `document.body.dataset.state === "away"`)
	if p.output() == "" || !strings.Contains(p.text("notice"), "What has come is kept") {
		t.Errorf("the text is %q, the notice %q: want what had come", p.output(), p.text("notice"))
	}
	testkit.Eventually(t, "the processes are gone", func() bool { return len(w.processes()) == 0 })
	runs, _ := filepath.Glob(filepath.Join(w.tmp, "tandem-*")) // nobody was left to remove it
	for _, dir := range runs {
		os.RemoveAll(dir)
	}
	up = realUp(t, w, grpc, http)
	p.wait("the gateway is back", `document.body.dataset.state === "ready"`)
	p.set("max_tokens", "8")
	p.do(chromedp.Click("#run"))
	p.settled()
	if got := p.output(); !strings.HasPrefix(plain.Text, got) || got == "" {
		t.Errorf("after the restart the page shows %q: want the beginning of %q", got, plain.Text)
	}
	p.healthy(url)
}
