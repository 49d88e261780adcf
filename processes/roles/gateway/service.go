package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/awake"
	"github.com/tandem-llm/tandem/services/peers/telemetry"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi"
	"github.com/tandem-llm/tandem/services/public/httpapi/playground"
)

// service is the gateway as clients are served: watched, counted and described.
type service struct {
	role      *roles.Process
	target    model
	gateway   *gateway.Gateway
	generator tandem.Generator // g, watched and counted
	monitor   *httpapi.Monitor
	metrics   *telemetry.Metrics
	describe  func(context.Context) public.Description
}

// newService serves g, and describes it with the processes behind it. keepAwake keeps processors out of deep idle states while requests
// run.
func newService(r *roles.Process, target model, g *gateway.Gateway, keepAwake bool, behind peers) *service {
	tellGateway(r, g)
	s := &service{role: r, target: target, gateway: g, generator: g, describe: behind.describer(r, target)}
	if keepAwake {
		s.generator = awake.New(g, r.Counters)
	}
	s.monitor = httpapi.NewMonitor(s.generator, r.Events.Mute, behind.verifiers.passes).Sessions(r.Sessions)
	s.metrics = telemetry.NewMetrics(telemetry.MetricsConfig{Model: target.file(), Version: r.Version, Describe: s.describe,
		Prefilling: func() (n int) {
			for _, p := range g.Prefills() {
				if !p.Again {
					n++
				}
			}
			return n
		}})
	s.generator = s.metrics.Wrap(s.monitor)
	return s
}

// counted counts what is generated for gRPC's clients, as httpapi counts the requests of its APIs.
type counted struct {
	tandem.Generator
	counters *tandem.Counters
}

// Generate implements tandem.Generator.
func (c counted) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	c.counters.Add(httpapi.CountedCalls+"grpc", 1)
	return c.Generator.Generate(ctx, r, s)
}

// textsWait is how long a conversation waits for memory in which it becomes tokens.
const textsWait = 30 * time.Second

// serveRPC registers what clients call over gRPC: generations, vectors, and conversations, which a model without a chat template refuses.
func (s *service) serveRPC(c Setup, vocab sparing) {
	r, m := s.role, s.target
	r.Server.Admit(public.Admit(c.Keys, c.MetricsKeys))
	counted := counted{s.generator, r.Counters}
	defaults := c.Defaults
	defaults.Stop, defaults.System = nil, ""
	serve := public.Service{Generator: r.Traces.RPC(public.Method, counted), Model: m.file(), Defaults: defaults, Chat: m.chat != nil,
		Describe: s.describe, HTTP: m.sampling, Vocab: vocab, Keys: c.Keys, Metrics: c.MetricsKeys,
		Prompt: vocab.refuse(m.limits.Context), Embedder: s.gateway, Width: m.embedding.Made()}
	public.Register(r.Server.Registrar(), serve)
	serve.Generator = r.Traces.RPC(public.ChatMethod, counted)
	public.RegisterChat(r.Server.Registrar(), public.ChatService{Service: serve, Context: m.limits.Context,
		Room: conversation.Room{Chat: m.chat, Model: m.file(), Instead: "GenerationService's Generate", Texts: vocab.texts, Wait: textsWait,
			Refuse: serve.Prompt}})
}

// openHTTP opens the HTTP server; nil if the settings switch it off. drafters returns the names that requests may use.
func (s *service) openHTTP(ctx context.Context, c Setup, texts *budget.Texts, drafters func() []string, undo *roles.Cleanup) (
	*httpapi.Server, error) {
	if c.HTTP == settings.NoHTTP {
		return nil, nil
	}
	r, m := s.role, s.target
	undo.Add(m.digest.begin(ctx, s.monitor.Loading))
	config := httpapi.Config{Listen: c.HTTP, Hosts: c.AllowHost, Origins: c.CORSOrigin, Strict: c.StrictFields,
		KeepAttribution: c.KeepAttribution, Keys: c.Keys, MetricsKeys: c.MetricsKeys, Insecure: c.InsecureListen, Grace: c.Grace,
		Models: c.Models, PullKeys: c.PullKeys,
		Build: c.Version, Model: m.told(c.Alias), Vocab: m.vocab, Chat: m.chat, Limits: m.limits, Width: m.embedding.Made(),
		Generator: s.generator, Embedder: s.gateway, Describe: s.describe, Drafters: drafters, Slots: s.monitor.Slots,
		Health: s.monitor.Health, Loading: s.monitor.Loading, Metrics: s.metrics.Handler(), Texts: texts,
		Page: playground.Handler(m.limits.Strategies),
		Wrap: func(h http.Handler) http.Handler { return s.metrics.Count(r.Traces.HTTP(h)) }, Log: r.Log, Counters: r.Counters,
		Defaults: c.Defaults}
	config.Defaults.Sampling, config.Defaults.MaxTokens = m.sampling, ask.ToTheEnd // as OpenAI's and llama.cpp's; gRPC has a number
	server, err := httpapi.New(config)
	if err != nil {
		return nil, tandem.Errorf("", tandem.KindOf(err), "--http: %w", err)
	}
	return server, nil
}

// serveWith runs r.Serve and web, which may be nil. When one of them ends, so does the other.
func serveWith(ctx context.Context, r *roles.Process, web *httpapi.Server) error {
	if web == nil {
		return r.Serve(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := web.Run(ctx)
		cancel(err)
		done <- err
	}()
	err := r.Serve(ctx)
	cancel(err)
	return errors.Join(err, <-done)
}

// peers are the processes behind a gateway, and those beside it.
type peers struct {
	verifiers *verifiers
	drafters  *drafters
	own       ownDrafters
	fleet     *membership
}

// describer returns a function that describes the gateway and the processes behind it.
func (p peers) describer(r *roles.Process, target model) func(context.Context) public.Description {
	self := r.DescribeProcess("gateway", "")
	return func(ctx context.Context) public.Description {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		here := self()
		here.Model = target.file()
		d := public.Description{Version: here.Version, Model: here.Model, Vocab: target.limits.Vocab, Context: target.limits.Context,
			Counters: here.Counters, Fleet: p.fleet.members()}
		d.Processes = append(d.Processes, public.Process{Role: "gateway", Up: true, Description: here})
		d.Processes = append(d.Processes, p.verifiers.describe(ctx)...)
		d.Processes = append(d.Processes, p.drafters.describe(ctx)...)
		d.Processes = append(d.Processes, p.own.describe(here.Version)...)
		return d
	}
}
