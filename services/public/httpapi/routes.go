package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/httpapi/anthropic"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
)

// api is whose words a route speaks.
type api struct {
	counted string               // the name by which requests for texts and vectors are counted, "" of others
	errors  func(*oai.Error) any // the body of an error
}

var (
	chats       = api{"chat", (*oai.Error).Body}
	completions = api{"completions", (*oai.Error).Body}
	vectorsAPI  = api{"embeddings", (*oai.Error).Body}
	responded   = api{"responses", (*oai.Error).Body}
	plain       = api{"", (*oai.Error).Body}
	messages    = api{"messages", anthropic.Error}
	ollamas     = api{"ollama", ollama.Error}
	ollamaModel = api{"", ollama.Error}
	native      = api{"llama.cpp", llamacpp.Error}
	nativeSlots = api{"", llamacpp.Error}
)

// route is a row of the table of what is served. A path that ends in "/" stands for all paths below it.
type route struct {
	method string // "POST", "DELETE", or "GET", which stands for HEAD, too
	path   string
	api    api
	let    letIn
	handle func(*call) error
}

// letIn says who may use a route. The zero value: whoever has a key of the clients'.
type letIn struct {
	all  bool         // without a key
	keys *access.Keys // the only ones let in; nil: those of all clients
	more *access.Keys // let in besides; nil: none
}

// table returns all routes. llama.cpp's /completions is OpenAI's here: clients whose base address lacks /v1 mean that. Of Ollama's paths
// those that create, copy and push models are not served.
func table(cfg Config, s common) []route {
	read, prompts := newReading(cfg, s), newPrompts(cfg)
	text, models := newTextAnswers(cfg, s, read, prompts), catalog{cfg.Model, cfg.Limits, cfg.Width, cfg.Chat}
	tokens, vectors := tokenizer{read, prompts, s.answers}, newVectors(cfg, read, prompts, s.answers)
	store := storing{cfg.Models, read, cfg.Stall, cfg.Ping, cfg.Counters}
	clients, everybody, watchers := letIn{}, letIn{all: true}, letIn{more: cfg.MetricsKeys}
	ready := func(c *call) error { return ready(c, cfg, s.draining.Load()) }
	all := []route{
		{"POST", "/v1/chat/completions", chats, clients, text.answer(readChat)},
		{"POST", "/v1/completions", completions, clients, text.answer(readCompletion)},
		{"POST", "/v1/messages", messages, clients, text.answer(readMessages)},
		{"POST", "/v1/messages/count_tokens", messages, clients, text.count},
		{"POST", "/v1/responses", responded, clients, text.answer(readResponses)},
		{"POST", "/api/chat", ollamas, clients, text.answer(ollamaReader(bodies.OllamaChat))},
		{"POST", "/api/generate", ollamas, clients, text.answer(ollamaReader(bodies.OllamaGenerate))},
		{"POST", "/completion", native, clients, text.answer(nativeReader(bodies.NativeCompletion))},
		{"POST", "/infill", native, clients, text.answer(nativeReader(bodies.Infill))},

		{"POST", "/v1/embeddings", vectorsAPI, clients, vectors.openAI},
		{"POST", "/api/embed", ollamas, clients, vectors.ollama(false)},
		{"POST", "/api/embeddings", ollamas, clients, vectors.ollama(true)},

		{"POST", "/tokenize", plain, clients, tokens.tokenize},
		{"POST", "/detokenize", plain, clients, tokens.detokenize},
		{"POST", "/apply-template", plain, clients, tokens.applyTemplate},

		{"GET", "/v1/models", plain, clients, models.list},
		{"GET", "/v1/models/", plain, clients, models.one},
		{"GET", "/api/version", ollamaModel, clients, func(c *call) error { return c.reply(map[string]string{"version": ollama.Level}) }},
		{"GET", "/api/tags", ollamaModel, clients, models.tags},
		{"GET", "/api/ps", ollamaModel, clients, models.running},
		{"POST", "/api/show", ollamaModel, clients, models.show(read)},
		{"POST", "/api/pull", ollamaModel, letIn{keys: cfg.PullKeys}, store.pull},
		{"DELETE", "/api/delete", ollamaModel, letIn{keys: cfg.PullKeys}, store.delete},

		{"GET", "/props", plain, clients, func(c *call) error { return c.reply(newProps(cfg)) }},
		{"GET", "/slots", nativeSlots, watchers, func(c *call) error { return slots(c, cfg) }},
		{"GET", "/health", plain, everybody, ready}, // a gateway whose engine is dead is not healthy
		{"GET", "/v1/health", plain, everybody, ready},
		{"GET", "/readyz", plain, everybody, ready},
		{"GET", "/livez", plain, everybody, func(c *call) error { return c.reply(alive) }}, // whatever the engine does
	}
	if cfg.Describe != nil {
		all = append(all, route{"GET", "/tandem/v1/describe", plain, watchers, func(c *call) error { return describe(c, cfg) }})
	}
	if cfg.Metrics != nil {
		all = append(all, route{"GET", "/metrics", plain, letIn{keys: cfg.MetricsKeys}, relay(cfg.Metrics)})
	}
	if cfg.Page != nil {
		for _, path := range []string{"/", "/playground", "/playground/"} {
			all = append(all, route{"GET", path, plain, everybody, relay(cfg.Page)})
		}
	}
	return all
}

// methods returns what a route answers.
func (r route) methods() string {
	if r.method == http.MethodGet {
		return "GET, HEAD"
	}
	return r.method
}

// answers reports whether a route answers a method.
func (r route) answers(method string) bool {
	return method == r.method || r.method == http.MethodGet && method == http.MethodHead
}

// router answers requests by the table: it gives each an id, checks whether it is allowed, and turns an error or a panic into an answer.
type router struct {
	routes map[string]route
	door   door
	log    *journal
	stall  time.Duration
}

// find returns the route of a path, and what follows a route of all paths below one. Clients put the path of a call behind a base address
// that users write, so slashes too many and a missing "/v1" are forgiven, as by llama.cpp's server.
func (t *router) find(path string) (to route, below string, ok bool) {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if short := strings.TrimSuffix(path, "/"); short != "" {
		path = short
	}
	for _, path := range []string{path, "/v1" + path} {
		if to, ok = t.routes[path]; ok {
			return to, "", true
		}
		for _, over := range []string{"/v1/models/", "/playground/"} {
			if to, ok = t.routes[over]; ok && strings.HasPrefix(path, over) {
				return to, path[len(over):], true
			}
		}
	}
	if to.api = plain; strings.HasPrefix(path, "/api/") {
		to.api = ollamaModel
	}
	return to, "", false
}

// ServeHTTP implements http.Handler.
func (t *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, below, known := t.find(r.URL.Path)
	c := &call{Request: r, w: &watched{ResponseWriter: w}, api: to.api, below: below, stall: t.stall, begun: time.Now(),
		id: public.RequestID(r.Header.Get("X-Request-Id"))}
	h := w.Header()
	h.Set("X-Request-Id", c.id)
	h.Set("X-Content-Type-Options", "nosniff")
	if c.api.counted == messages.counted { // where Anthropic's libraries look for it
		h.Set("Request-Id", c.id)
	}
	r.Pattern = to.path
	c.allow(0) // for handlers that set no other
	defer func() {
		if p := recover(); p != nil {
			t.log.counters.Add("http.panics", 1)
			c.fail(tandem.Panicked(op, p), t.log)
		}
		t.log.ended(c, to.path)
	}()
	err := t.door.admit(c, to, known)
	if err == nil && preflight(r) {
		t.door.answerPreflight(c.w, r, to)
		return
	}
	if err == nil {
		t.log.called(c)
		c.Request = r.WithContext(traceparent.Extract(r.Context(), r.Header))
		err = to.handle(c)
	}
	if err != nil {
		c.fail(err, t.log)
	}
}

// relay returns the handler of a route that h answers. Its errors get OpenAI's form.
func relay(h http.Handler) func(*call) error {
	return func(c *call) error {
		c.w.relays = true
		defer func() { c.w.relays = false }()
		h.ServeHTTP(c.w, c.Request)
		if c.w.failed == 0 {
			return nil
		}
		c.w.Header().Del("Content-Length")
		return oai.Refusal(c.w.failed, "unknown_url", "%s %.200s: %s", c.Method, c.URL.Path, short(strings.TrimSpace(c.w.says), 200))
	}
}
