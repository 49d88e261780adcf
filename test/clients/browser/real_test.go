package browser

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tandem-llm/tandem/test/testkit"
)

// world is where the real program runs: folders of its own, and a mark in the environment by which its processes are found.
type world struct {
	t       *testing.T
	program string
	folder  string // for what is temporary
	home    string // for sockets and secrets
}

// newWorld builds the program. At the end of the test nothing of it may be left.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, program: filepath.Join(t.TempDir(), "tandem")}
	for _, dir := range []*string{&w.folder, &w.home} {
		var err error
		if *dir, err = os.MkdirTemp("", "tw"); err != nil { // t.TempDir would be too long a path for a socket
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(*dir) })
	}
	build := exec.Command("go", "build", "-C", "../../..", "-o", w.program, "./cmd/tandem")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		for _, pid := range w.processes() {
			t.Errorf("process %d is left behind", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if left, _ := filepath.Glob(w.folder + "/*"); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return w
}

func (w *world) mark() string { return "TEST_WORLD=" + w.folder }

// processes returns the ids of the program's living processes.
func (w *world) processes() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range all {
		env, err := os.ReadFile(folder + "/environ") // empty for one that has ended
		if pid, no := strconv.Atoi(filepath.Base(folder)); err == nil && no == nil && bytes.Contains(env, []byte(w.mark()+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// command returns a command of the program, not started.
func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(w.t.Context(), w.program, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+w.folder, "XDG_RUNTIME_DIR="+w.home, w.mark())
	cmd.Stderr, cmd.WaitDelay = os.Stderr, 5*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// started is what the program says once it serves.
type started struct{ Gateway, HTTP string }

// up starts the program as people do, at these addresses, with all shipped drafts.
func (w *world) up(gateway, http string) (up *exec.Cmd, at started) {
	w.t.Helper()
	args := []string{"up", "--listen", gateway, "--http", http, "--json"}
	if *target != "" {
		args = append(args, "--target", *target)
	}
	for _, d := range []string{"go", "py", "prose", "all"} {
		args = append(args, "--draft", "../../../models/gopher-draft-"+d+"-f16.gguf")
	}
	up = w.command(args...)
	stdout, err := up.StdoutPipe()
	if err == nil {
		err = up.Start()
	}
	if err == nil {
		err = json.NewDecoder(stdout).Decode(&at)
	}
	if err != nil {
		w.t.Fatalf("up --json: %v", err)
	}
	return up, at
}

// TestPlaygroundReal: the program as people start it, with the shipped models. -pictures keeps what it looks like, with
// another target by -target.
func TestPlaygroundReal(t *testing.T) {
	t.Parallel()
	browserPath(t)
	w := newWorld(t)
	up, at := w.up("127.0.0.1:0", "127.0.0.1:0")
	defer func() {
		up.Process.Signal(syscall.SIGTERM)
		up.Wait()
	}()
	url := at.HTTP + "/"
	p := openTab(t, 1280, 900)
	p.open(url)
	p.js(`document.getElementById("mode-text").click()`) // a -target that chats opens on the chat
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
	var plain struct{ Text string }
	out, err := w.command("generate", "--json", "--addr", at.Gateway, "--no-draft", "--max-tokens", "96", "--seed", "1", "--prompt",
		prompt).Output()
	if err != nil || json.Unmarshal(out, &plain) != nil {
		t.Fatalf("generate printed %q: %v", out, err)
	}
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
	p.settled()
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
	runs, _ := filepath.Glob(filepath.Join(w.folder, "tandem-*")) // nobody was left to remove it
	for _, dir := range runs {
		os.RemoveAll(dir)
	}
	up, _ = w.up(at.Gateway, strings.TrimPrefix(at.HTTP, "http://"))
	p.wait("the gateway is back", `document.body.dataset.state === "ready"`)
	p.set("max_tokens", "8")
	p.do(chromedp.Click("#run"))
	p.settled()
	if got := p.output(); !strings.HasPrefix(plain.Text, got) || got == "" {
		t.Errorf("after the restart the page shows %q: want the beginning of %q", got, plain.Text)
	}
	p.healthy(url)
}
