package httpapi

import (
	"net/http"
	"slices"

	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// door says which requests are let in.
type door struct {
	reach   reach
	hosts   []string     // as Config.Hosts
	origins []string     // as Config.Origins
	keys    *access.Keys // all clients' keys
}

// admit checks whether a request is allowed, and notes its tenant.
func (d *door) admit(c *call, to route, known bool) error {
	r, h := c.Request, c.w.Header()
	if err := d.checkHost(r.Host); err != nil {
		return err
	}
	if err := checkLength(c, h); err != nil {
		return err
	}
	if err := d.checkOrigin(r, h); err != nil {
		return err
	}
	if !known {
		return oai.Refusal(http.StatusNotFound, "unknown_url", "%s %.200s: there is no such path", r.Method, r.URL.Path)
	}
	if preflight(r) {
		return nil
	}
	keys := d.keys
	if to.let.keys != nil {
		keys = to.let.keys
	}
	var ok bool
	for _, shown := range shownKeys(r.Header) {
		if c.tenant, ok = keys.Tenant(shown); ok {
			break
		}
	}
	if !ok && !to.let.all && !opened(to.let.more, r.Header) {
		h.Set("WWW-Authenticate", "Bearer")
		return oai.Refusal(http.StatusUnauthorized, "invalid_api_key",
			"the key is missing or wrong: want \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"")
	}
	if want := to.methods(); !to.answers(r.Method) {
		h.Set("Allow", want)
		return oai.Refusal(http.StatusMethodNotAllowed, "method_not_allowed", "%.20s %s: want %s", r.Method, to.path, want)
	}
	return nil
}

// shownKeys returns what a client shows as its key, as an Authorization header: Anthropic's clients have a header of their own.
func shownKeys(h http.Header) []string {
	shown := []string{h.Get("Authorization")}
	if key := h.Get("X-Api-Key"); key != "" {
		shown = append(shown, "Bearer "+key)
	}
	return shown
}

// opened reports whether a client shows one of the keys; nil keys are none.
func opened(keys *access.Keys, h http.Header) bool {
	return keys != nil && slices.ContainsFunc(shownKeys(h), func(shown string) bool { return keys.Opens([]string{shown}) })
}
