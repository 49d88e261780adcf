// Package playground serves a page that shows speculation at work: plain HTML, CSS and JavaScript inside the
// binary, which talks only to the OpenAI API of the server that it came from.
package playground

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

//go:embed static
var static embed.FS

// Policy is the Content-Security-Policy of every answer. The page loads its own files and calls its own server. A model's
// text could not run even if a script wrote it as markup: inline scripts and styles are refused, and so is every
// sink that turns text into markup (trusted types, with no policy).
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// page is the file served for "/".
const page = "index.html"

// asset is one file, ready to be served.
type asset struct {
	body        []byte
	contentType string
	etag        string
}

// strategies is the place of the page where the strategies that one may choose are listed.
const strategies = "<!-- strategies -->"

// options lists names as HTML.
func options(names []tandem.Strategy) (out string) {
	for _, n := range names {
		out += "<option>" + html.EscapeString(string(n)) + "</option>"
	}
	return out
}

// Handler serves the page at "/" and its files below "/playground/"; everything else is 404. The page offers the strategies of these names,
// the first unless the server says another. Browsers revalidate every file, mostly with answer 304, so that a page never runs the scripts
// of another version. Safe for concurrent use.
func Handler(names []tandem.Strategy) http.Handler {
	assets := map[string]asset{}
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := static.ReadFile(name)
		body = bytes.Replace(body, []byte(strategies), []byte(options(names)), 1)
		sum := sha256.Sum256(body)
		assets[strings.TrimPrefix(name, "static/")] = asset{body: body, contentType: contentType(name),
			etag: strconv.Quote(hex.EncodeToString(sum[:12]))}
		return err
	})
	if err != nil {
		panic(err) // embedded files can be read
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", Policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method "+strconv.Quote(r.Method)+": want GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		name, below := strings.CutPrefix(r.URL.Path, "/playground/")
		switch {
		case r.URL.Path == "/":
			name = page
		case below && name == "", r.URL.Path == "/playground":
			http.Redirect(w, r, "../", http.StatusPermanentRedirect) // the links of the page are relative to "/"
			return
		case !below:
			name = ""
		}
		a, ok := assets[name]
		if !ok {
			http.Error(w, "no such page: the playground is at /", http.StatusNotFound)
			return
		}
		h.Set("Cache-Control", "no-cache")
		h.Set("Etag", a.etag)
		if matches(r.Header.Get("If-None-Match"), a.etag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		h.Set("Content-Type", a.contentType)
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(a.body) // a client that has gone
		}
	})
}

// matches reports whether a list of entity tags holds etag.
func matches(list, etag string) bool {
	for _, t := range strings.Split(list, ",") {
		if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == etag || t == "*" {
			return true
		}
	}
	return false
}

// contentType goes by the name's ending, not by the system's tables.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}
