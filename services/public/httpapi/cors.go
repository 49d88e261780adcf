package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// anyOrigin in Config.Origins stands for all origins.
const anyOrigin = "*"

const (
	preflightAge    = 600 // seconds for which a browser may remember what a preflight has allowed
	mostPreflight   = 64  // headers that a page may ask for at once
	exposedToPages  = "Retry-After, X-Request-Id, X-Tandem-Ignored, X-Tandem-Loose-Tools, X-Tandem-Sampling"
	headersOfClient = "Authorization, Content-Type, X-Api-Key, X-Request-Id"
)

// checkOrigin refuses a request of a page of another origin, unless that origin is one of Config.Origins. Where callers need keys, a page
// without one gets nothing, and browsers hold no key that they would send by themselves, so any origin is let in; but only those of
// Config.Origins may read the answers.
func (d *door) checkOrigin(r *http.Request, h http.Header) error {
	if len(d.origins) > 0 {
		h.Add("Vary", "Origin")
	}
	origin := r.Header.Get("Origin")
	if d.allowed(origin) {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", exposedToPages)
		return nil
	}
	if d.keys != nil {
		return nil
	}
	err := http.NewCrossOriginProtection().Check(r)
	if err == nil && preflight(r) {
		err = http.ErrNotSupported
	}
	if err != nil {
		return oai.Refusal(http.StatusForbidden, "cross_origin",
			"a page of another origin must not use this server: want its origin, %.100q, given with --cors-origin", origin)
	}
	return nil
}

// allowed reports whether the answers may be read by pages of an origin, "" for none.
func (d *door) allowed(origin string) bool {
	return origin != "" && (slices.Contains(d.origins, anyOrigin) || slices.Contains(d.origins, strings.ToLower(origin)))
}

// preflight reports whether r is a browser's question whether a page may send a request.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// answerPreflight tells a browser what pages of its origin may send. Browsers send no key with the question.
func (d *door) answerPreflight(w http.ResponseWriter, r *http.Request, to route) {
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Method")
	h.Add("Vary", "Access-Control-Request-Headers")
	if d.allowed(r.Header.Get("Origin")) {
		h.Set("Access-Control-Allow-Methods", to.methods())
		h.Set("Access-Control-Allow-Headers", wantedHeaders(r.Header.Get("Access-Control-Request-Headers")))
		h.Set("Access-Control-Max-Age", strconv.Itoa(preflightAge))
		if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
			h.Set("Access-Control-Allow-Private-Network", "true")
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// wantedHeaders returns the headers that a page asks for, which are harmless: a client library may send dozens of its own. If they are
// not names of headers, it returns the usual ones.
func wantedHeaders(asked string) string {
	names := strings.Split(asked, ",")
	if len(names) > mostPreflight {
		return headersOfClient
	}
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		if names[i] == "" || strings.Trim(strings.ToLower(names[i]), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return headersOfClient
		}
	}
	return strings.Join(names, ", ")
}

// CheckNames refuses origins and aliases that New would refuse. Errors: Invalid.
func CheckNames(origins, aliases []string, keyed bool) error {
	_, err := allowedOrigins(origins, keyed)
	if err == nil {
		err = Model{Aliases: aliases}.check()
	}
	return err
}

// allowedOrigins returns the origins of Config.Origins as browsers send them. Errors: Invalid.
func allowedOrigins(given []string, keyed bool) ([]string, error) {
	out := make([]string, 0, len(given))
	for _, text := range given {
		if text == anyOrigin {
			if !keyed {
				return nil, tandem.Errorf("", tandem.Invalid,
					"--cors-origin * lets every page use a server without keys: want the origins of the pages, or --api-key")
			}
			out = append(out, text)
			continue
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil ||
			strings.ContainsAny(text, "?#*") {
			return nil, tandem.Errorf("", tandem.Invalid,
				"--cors-origin %.100q: want an origin as browsers send it, such as https://chat.example.org or http://localhost:3000, "+
					"without a path",
				text)
		}
		host := strings.ToLower(u.Host)
		switch port := u.Port(); {
		case u.Scheme == "http" && port == "80", u.Scheme == "https" && port == "443":
			host = strings.TrimSuffix(host, ":"+port) // browsers leave it out
		}
		out = append(out, u.Scheme+"://"+host)
	}
	return out, nil
}
