// Package browser opens the playground in a browser: served by a fake gateway, which streams what a test tells it, and by the real program.
package browser

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/tandem-llm/tandem/test/testkit"
)

var (
	slow     = flag.Bool("slow", false, "run the tests: all of them are slow")
	pictures = flag.String("pictures", "", "directory in which the tests leave screenshots")
	target   = flag.String("target", "", "another target model for the test of the real program")
)

// browserPath returns the path of a browser, or skips the test.
func browserPath(t *testing.T) string {
	t.Helper()
	if !*slow {
		t.Skip("slow: make slow runs it")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} { // as test/scripts/chromium
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no browser: as root, test/scripts/chromium installs one")
	return ""
}

// tab is a page in a browser of its own.
type tab struct {
	t     *testing.T
	ctx   context.Context
	begun bool // the browser runs

	mu     sync.Mutex
	errors []string // uncaught errors, refusals of the content security policy
	asked  []string // addresses
}

// openTab starts a browser, headless, with an empty profile.
func openTab(t *testing.T, width, height int64) *tab {
	t.Helper()
	dir := t.TempDir()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browserPath(t)),
		chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true), chromedp.Env("HOME="+dir))
	alloc, stopBrowser := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, closeTab := chromedp.NewContext(alloc)
	p := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			p.picture("failed-" + t.Name())
		}
		closeTab()
		stopBrowser()
	})
	p.do(chromedp.EmulateViewport(width, height))
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	if err == nil {
		_, err = chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// note takes what happens in the page.
func (p *tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, fmt.Sprintf("%+v", e.ExceptionDetails))
	case *cdplog.EventEntryAdded:
		if e.Entry.Source == cdplog.EntrySourceSecurity || strings.Contains(e.Entry.Text, "Content Security Policy") {
			p.errors = append(p.errors, e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		p.asked = append(p.asked, e.Request.URL)
	}
}

// colours makes the system prefer "light" or "dark".
func (p *tab) colours(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// do runs actions, which must succeed.
func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := p.ctx, func() {}
	if p.begun { // the first call's context is the browser's
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
	}
	p.begun = true
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// open goes to the page and waits until it would take a request.
func (p *tab) open(url string) {
	p.t.Helper()
	p.do(chromedp.Navigate(url))
	p.wait("the page is ready", `document.body.dataset.state === "ready"`)
}

// wait waits until an expression is true.
func (p *tab) wait(what, js string) {
	p.t.Helper()
	tries := 1
	if *target != "" {
		tries = 3 // for its size
	}
	for range tries {
		if testkit.Until(func() bool { return read[bool](p, js) }) {
			return
		}
	}
	p.t.Fatalf("not in time: %s: the page says %q, %q; %v", what, p.text("state-text"), p.text("notice"), p.wrong())
}

// wrong returns what went wrong in the page.
func (p *tab) wrong() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.errors...)
}

// healthy fails the test if anything went wrong in the page, or it asked another server than the one at url.
func (p *tab) healthy(url string) {
	p.t.Helper()
	for _, e := range p.wrong() {
		p.t.Errorf("the page: %s", e)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.asked {
		if !strings.HasPrefix(a, url) {
			p.t.Errorf("the page asked %s", a)
		}
	}
}

// js runs statements.
func (p *tab) js(format string, args ...any) {
	p.t.Helper()
	p.do(chromedp.Evaluate[chromedp.Void]("{" + fmt.Sprintf(format, args...) + "}"))
}

// read evaluates an expression.
func read[T any](p *tab, js string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", js, err)
	}
	return v
}

// text returns what is to be read in an element.
func (p *tab) text(id string) string {
	p.t.Helper()
	return read[string](p, fmt.Sprintf("document.getElementById(%q).textContent", id))
}

// set puts values into controls, as pairs of id and value.
func (p *tab) set(pairs ...string) {
	p.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		value, _ := json.Marshal(pairs[i+1])
		p.js(`const e = document.getElementById(%q); e.value = %s; e.dispatchEvent(new Event("input")); e.dispatchEvent(new Event("change"));`, pairs[i], value)
	}
}

// output returns the text that the tokens show.
func (p *tab) output() string {
	p.t.Helper()
	return read[string](p, `[...document.querySelectorAll("#text [data-i]")].map((e) => e.textContent).join("")`)
}

// run types a prompt, runs it and waits for the end.
func (p *tab) run(prompt string) {
	p.t.Helper()
	p.set("prompt", "")
	p.do(chromedp.SendKeys("#prompt", prompt), chromedp.Click("#run"))
	p.settled()
}

// settled waits until nothing runs, and what has come is drawn.
func (p *tab) settled() {
	p.t.Helper()
	p.wait("the request ends", `document.body.dataset.state !== "busy"`)
	read[bool](p, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// picture leaves a screenshot of the whole page if pictures are wanted.
func (p *tab) picture(name string) {
	if *pictures == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.t.Log(err)
		return
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o644); err != nil {
		p.t.Error(err)
	}
}
