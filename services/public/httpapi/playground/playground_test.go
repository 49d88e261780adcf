package playground

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// ask sends a request; headers are pairs of name and value.
func ask(method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	Handler(tandem.DefaultLimits.Strategies).ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	for _, tc := range []struct {
		method, path string
		status       int
		kind         string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/playground/index.html", 200, "text/html; charset=utf-8"},
		{"GET", "/playground/app.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/playground/style.css", 200, "text/css; charset=utf-8"},
		{"GET", "/playground/icon.svg", 200, "image/svg+xml"},
		{"GET", "/playground/", 308, ""},
		{"GET", "/playground", 308, ""},
		{"GET", "/app.js", 404, "text/plain; charset=utf-8"},
		{"GET", "/playground/../playground.go", 404, "text/plain; charset=utf-8"},
		{"GET", "/playground/static/app.js", 404, "text/plain; charset=utf-8"},
		{"POST", "/", 405, "text/plain; charset=utf-8"},
		{"DELETE", "/playground/app.js", 405, "text/plain; charset=utf-8"},
	} {
		w := ask(tc.method, tc.path)
		h := w.Header()
		if w.Code != tc.status || tc.kind != "" && h.Get("Content-Type") != tc.kind {
			t.Errorf("%s %s: %d, %q: want %d, %q", tc.method, tc.path, w.Code, h.Get("Content-Type"), tc.status, tc.kind)
		}
		if h.Get("Content-Security-Policy") != Policy || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v: want the policy and nosniff", tc.method, tc.path, h)
		}
		if tc.method == "HEAD" && w.Body.Len() > 0 {
			t.Errorf("%s %s: a body of %d bytes", tc.method, tc.path, w.Body.Len())
		}
		if tc.status == 405 && h.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: allows %q", tc.method, tc.path, h.Get("Allow"))
		}
	}
}

func TestCaching(t *testing.T) {
	first := ask("GET", "/playground/app.js")
	tag := first.Header().Get("Etag")
	if tag == "" || first.Header().Get("Cache-Control") != "no-cache" {
		t.Fatalf("headers %v: want an entity tag, and no-cache", first.Header())
	}
	if other := ask("GET", "/").Header().Get("Etag"); other == tag {
		t.Errorf("two files have the tag %s", tag)
	}
	for list, want := range map[string]int{tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200, "": 200} {
		w := ask("GET", "/playground/app.js", "If-None-Match", list)
		if w.Code != want || want == 304 && w.Body.Len() > 0 {
			t.Errorf("If-None-Match %s: %d with %d bytes: want %d", list, w.Code, w.Body.Len(), want)
		}
	}
}

// TestSources holds what the page promises: small, from here alone, nothing inline, no text that becomes markup.
func TestSources(t *testing.T) {
	refused := map[string]string{
		".html": `(?i)<script(?:[^>]*[^>\s])?>\s*[^<\s]|<style|\son[a-z]+\s*=|\sstyle\s*=|(?:src|href)="(?:https?:)?//`,
		".css":  `(?i)@import|url\(`,
		".js":   `innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|createContextualFragment|setAttribute\("(?:style|on)|localStorage|document\.cookie|https?://`,
		".svg":  `(?i)<script|\son[a-z]+=|href`,
	}
	size, files := 0, 0
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		size, files = size+len(body), files+1
		end := name[strings.LastIndex(name, "."):]
		pattern, known := refused[end]
		if !known {
			t.Errorf("%s: a kind of file that is not served", name)
			return nil
		}
		text := strings.ReplaceAll(string(body), "http://www.w3.org/2000/svg", "") // a name, not an address
		if found := regexp.MustCompile(pattern).FindString(text); found != "" {
			t.Errorf("%s holds %q", name, found)
		}
		served := strings.Replace(string(body), strategies,
			"<option>planner</option><option>fixed</option><option>llmcad</option><option>minions</option>", 1)
		if strings.HasSuffix(name, page) == (served == string(body)) {
			t.Errorf("%s lists strategies: %v", name, served != string(body))
		}
		if w := ask(http.MethodGet, "/playground/"+strings.TrimPrefix(name, "static/")); w.Code != 200 || w.Body.String() != served {
			t.Errorf("%s is not served as it is: %d", name, w.Code)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if size > 300<<10 || files < 5 {
		t.Errorf("%d files of %d bytes: want at most 300 KiB", files, size)
	}
}
