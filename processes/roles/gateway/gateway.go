// Package gateway is a gateway process: the front ends that clients call, the pool's server, and a gateway that is kept informed of
// the processes behind it.
package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/gateway/enlist"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/services/peers/awake"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/httpapi"
	"github.com/tandem-llm/tandem/services/public/httpapi/playground"
	"github.com/tandem-llm/tandem/text/token"
)

// NoHTTP in Config.HTTP means no HTTP server.
const NoHTTP = "off"

// Config configures a gateway process.
type Config struct {
	roles.Config
	Target       string // GGUF file of the target model, for its tokenizer and chat template
	ChatTemplate string // file with the Jinja template of chats; "": the model's own
	ChatKwargs   string // JSON object of variables for the template, where a request has none; "": none
	Rules        gateway.Rules
	Defaults     ask.Defaults
	Sampling     tandem.Preset // over HTTP, for what a request leaves out; it takes precedence over the file's values
	KeepAwake    bool          // keep processors out of deep idle states while requests run

	Verifiers []string // addresses of verifiers that need not announce themselves; none: the default socket
	Drafters  []string // likewise of drafter processes

	Pool       string // as roles.Process.PoolAccess takes it; "": the gateway runs a server of its own
	PoolListen string // address on which that server listens; "": a loopback port that the system chooses
	PoolFile   string // file for its URL, which the others read; "": none
	PoolStore  string // as pool.ServerConfig.Store

	HTTP            string       // address of the HTTP server, or NoHTTP
	AllowHost       []string     // as httpapi.Config.Hosts
	Origins         []string     // as httpapi.Config.Origins
	Aliases         []string     // further names of the model over HTTP
	Strict          bool         // as httpapi.Config.Strict
	KeepAttribution bool         // as httpapi.Config.KeepAttribution
	Pooling         string       // last or mean; "" or auto: as the target's file says
	Cache           string       // folder in which the digest of the target's file is kept; "": nowhere
	Keys            *access.Keys // of clients; nil: everybody who can connect is served
	MetricsKeys     *access.Keys // the only keys for the metrics; nil: the clients' keys work

	NoLookup     bool // without the drafter lookup
	Recycling    bool // with the drafter recycling
	EarlierTexts int  // tokens of ended sessions in which lookup looks, in equal parts for the tenants of Keys; 0: none
}

// front is a gateway and its front ends, except the role's gRPC server.
type front struct {
	*gateway.Gateway
	web   *httpapi.Server // nil for none
	model string          // its name
	fleet *membership
	pool  pool.Config
}

// Run runs a gateway process until ctx ends.
func Run(ctx context.Context, c Config) (err error) {
	info, err := engine.Inspect(c.Target)
	if err == nil {
		err = engine.CheckTarget(c.Target, info.Config)
	}
	if err != nil {
		return err
	}
	vocab, err := token.Open(c.Target)
	if err != nil {
		return err
	}
	room, vocab, err := chats.Open(c.ChatTemplate, c.ChatKwargs, c.Target, vocab)
	if err != nil {
		return err
	}
	r, err := roles.Start(ctx, rpc.Gateway, c.Config, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	if slow := chats.Slow(room); slow != nil {
		r.Log.Warn(slow.Error())
	}
	c.Keys.Report(r.Log, r.Counters)
	c.MetricsKeys.Report(r.Log, r.Counters)
	g, undo, err := c.assemble(ctx, r, gateway.Config{
		Limits:    tandem.Limits{Context: c.ContextOf(info.Config.Context), Vocab: vocab.Size(), Strategies: strategy.Names()},
		ModelName: roles.ModelName(c.Target), Rules: c.Rules, Fingerprint: roles.Fingerprint(vocab.Fingerprint()),
		Embedding: c.embedding(info)},
		model{c.Target, info.Config.Name, info.Config.Arch, vocab, room, info.Sampling, info, newFileDigest(c.Cache, info.Paths...)})
	defer undo.Run()
	if err != nil {
		r.Server.Close()
		return err
	}
	if err := g.join(r, &undo); err != nil {
		r.Server.Close()
		return err
	}
	err = serveWith(ctx, r, g.web)
	last, cancel := context.WithTimeout(context.Background(), gateway.DefaultTimeouts.Close)
	defer cancel()
	if ended := g.Shutdown(last); err == nil && ctx.Err() == nil {
		err = ended
	}
	return err
}

// assemble puts the gateway together from the rest of its configuration and registers it.
func (c Config) assemble(ctx context.Context, r *roles.Process, config gateway.Config, target model) (
	out front, undo roles.Cleanup, err error) {
	if err := c.meet(r.Certificate); err != nil {
		return out, undo, err
	}
	texts := budget.NewTexts()
	vocab := sparing{target.vocab, texts}
	config.Vocab = vocab
	access, closePool, err := c.openPool(ctx, r)
	if err != nil {
		return out, undo, err
	}
	undo.Add(closePool)
	poolConfig := r.Pool(access)
	trees, socket, closeSegment := c.segment(r)
	undo.Add(closeSegment)
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: poolConfig, Trees: trees})
	if err != nil {
		return out, undo, err
	}
	undo.Add(publisher.Close)

	told := new(together)
	verifiers := newVerifiers(verifiersConfig{role: r, static: c.Verifiers, model: target.name, fingerprint: config.Fingerprint,
		publisher: publisher, key: access.PrefixKey(r.Credentials.Secret), socket: socket}, told)
	config.Verifier, config.Embedding.Source, config.Events, config.Counters = verifiers, verifiers, r.Events, r.Counters
	config.Sessions = r.Sessions
	config.Queue = roles.QueuePerSession * config.Sessions
	taken, describeLookup, err := c.addOwn(r, target.vocab.Size(), verifiers, &config, &undo)
	if err != nil {
		return out, undo, err
	}
	g, err := gateway.New(config)
	if err != nil {
		return out, undo, err
	}
	enlisting := enlist.Config{Gateway: g, Vocab: target.vocab, Fingerprint: config.Fingerprint, Counters: r.Counters, Log: r.Log,
		Taken: taken, Tokenizer: func() ([]byte, error) { return token.Extract(c.Target) }}
	if r.ReadyFD != 0 {
		enlisting.Compared = c.Drafters // by whoever started both (package pair)
	}
	members := enlist.NewMembers(enlisting)
	undo.Add(members.Close)
	memory := discovery.NewMemory(shm.Gateway, new(shm.Set))
	table, err := discovery.NewTable(discovery.TableConfig{Pool: poolConfig, Dial: r.Credentials.Dialer(rpc.Drafter),
		Vouch: r.Credentials.Vouch, Static: c.Drafters, Counters: r.Counters, Log: r.Log, Refused: r.Refused,
		Changed: func(processes []discovery.Process) {
			memory.Update(processes)
			members.Update(processesOf(processes, verifiers, memory))
		}})
	if err != nil {
		return out, undo, err
	}
	undo.Add(table.Close)
	undo.Add(memory.Close)
	peers := &peers{verifiers: verifiers, members: members, lookup: describeLookup, fleet: &membership{verifiers: verifiers}}
	var generator tandem.Generator = g
	if c.KeepAwake {
		generator = awake.New(g, r.Counters)
	}
	monitor := httpapi.NewMonitor(generator, r.Events.Mute, verifiers.passes).Sessions(config.Sessions)
	describe := peers.describer(r, config.ModelName, config.Limits)
	metrics := newMetrics(r, g, config.ModelName, describe)
	generator = metrics.Wrap(monitor)
	r.Server.Admit(public.Admit(c.Keys, c.MetricsKeys))
	serveRPC(r, public.Service{Generator: counted{generator, r.Counters}, Model: config.ModelName, Defaults: c.Defaults,
		Describe: describe, HTTP: HTTPSampling(c.Sampling, target.sampling), Vocab: vocab, Keys: c.Keys, Metrics: c.MetricsKeys,
		Prompt: vocab.refuse(config.Limits.Context), Embedder: g, Width: config.Embedding.Made()}, target.chat, texts,
		config.Limits.Context)
	out = front{Gateway: g, model: config.ModelName, fleet: peers.fleet, pool: poolConfig}
	if c.HTTP != NoHTTP {
		undo.Add(target.digest.begin(ctx, monitor.Loading))
		wrap := func(h http.Handler) http.Handler { return metrics.Count(r.Traces.HTTP(h)) }
		out.web, err = c.web(httpapi.Config{Generator: generator, Embedder: g, Width: config.Embedding.Made(), Defaults: c.Defaults,
			Limits: config.Limits, Describe: describe, Drafters: members.Names, Slots: monitor.Slots, Health: monitor.Health,
			Loading: monitor.Loading, Metrics: metrics.Handler(), Wrap: wrap, Page: playground.Handler(config.Limits.Strategies),
			Keys: c.Keys, Texts: texts, Insecure: c.InsecureListen, Grace: c.Grace, Log: r.Log, Counters: r.Counters}, target)
		if err != nil {
			return out, undo, err
		}
	}
	told.Gateway, told.monitor = g, monitor
	stop, err := verifiers.begin(g, enlist.VerifierConfig{Monitor: monitor, Members: members, Fingerprint: config.Fingerprint,
		Counters: r.Counters, Log: r.Log}, discovery.TableConfig{Pool: poolConfig, Dial: r.Credentials.Dialer(rpc.Verifier),
		Vouch: r.Credentials.Vouch, Counters: r.Counters, Log: r.Log, Refused: r.Refused})
	undo.Add(stop)
	return out, undo, err
}

// meet fills in the verifiers' addresses. If any of the other processes may be on another machine, the certificate must name the
// role gateway.
func (c *Config) meet(certificate *rpc.Certificate) error {
	if len(c.Verifiers) == 0 {
		own, err := roles.DefaultSocket(rpc.Verifier)
		if err != nil {
			return err
		}
		c.Verifiers = []string{own}
	}
	outside := func(addr string) bool { return !rpc.Loopback(addr) }
	if slices.ContainsFunc(c.Verifiers, outside) || slices.ContainsFunc(c.Drafters, outside) ||
		c.PoolListen != "" && outside(c.PoolListen) || strings.Contains(c.Pool, "tls://") {
		return certificate.Require(rpc.Gateway)
	}
	return nil
}
