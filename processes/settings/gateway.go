package settings

import (
	"reflect"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem"
)

// Gateway are the settings of a gateway.
type Gateway struct {
	Target string `short:"m" aliases:"model" help:"GGUF file of the target, for its tokenizer (default: the shipped one)." placeholder:"FILE" group:"Model"`
	Peer
	CacheDir
	GatewayOptions
	Speculation
	Web
	Drawing
	Answers
}

// GatewayOptions are settings of a gateway that all commands which start one have.
type GatewayOptions struct {
	KeepAwake bool `help:"Keep processors out of deep idle states while requests run, where the system allows it (write access to /dev/cpu_dma_latency)." default:"true" negatable:"" more:"" group:"Devices"`
	LookupDrafts
	Strategies
}

// Peer are the settings that gateway, drafter and verifier have in common, each started by itself.
type Peer struct {
	Addresses
	Process
	Logging
}

// Addresses say where one process is and where it finds the others.
type Addresses struct {
	Listen     string   `help:"Address to serve on, host:port or unix:///path. Default: gateway 127.0.0.1:8451; drafter and verifier the sockets drafter.sock and verifier.sock in $XDG_RUNTIME_DIR/tandem, /run/tandem or /tmp/tandem-UID." placeholder:"ADDR" group:"Serving"`
	Pool       string   `help:"NATS server of the pool: nats://[token@]host:port or file:PATH. The file holds such a URL. A gateway without it runs a server of its own." placeholder:"URL" group:"Serving"`
	PoolListen string   `help:"Where a gateway without --pool serves the pool. A host:port; by default a port of 127.0.0.1 that the system chooses." placeholder:"ADDR" group:"Serving"`
	PoolFile   string   `help:"File in which a gateway that runs the pool writes its URL." placeholder:"FILE" group:"Serving"`
	PoolStore  string   `help:"JetStream in a gateway's own pool (default: off). A folder for its files, or memory. Then the processes of a fleet are in a registry too: one that starts sees all others at once." placeholder:"DIR|memory" more:"" group:"Serving"`
	Drafter    []string `help:"Address of a drafter; may be repeated. Drafters that announce themselves through the pool's server are found without." placeholder:"ADDR" sep:"none" group:"Serving"`
	Verifier   []string `help:"Address of a verifier (default: its default socket); for a gateway it may be repeated. Verifiers of its model that announce themselves through the pool's server are found without." placeholder:"ADDR" sep:"none" group:"Serving"`
}

// Process are settings that every process has.
type Process struct {
	Sizes
	TLS
	SharedSecret
	OTLPEndpoint string        `name:"otlp-endpoint" help:"OTLP gRPC collector for traces, host:port or URL. The OTEL_… variables work too. Off by default." placeholder:"ADDR" more:"" group:"Serving"`
	Grace        time.Duration `help:"How long calls in progress may go on after SIGTERM." default:"25s" more:"" group:"Serving"`
}

// TLS is this process's certificate, and whether it may listen without one.
type TLS struct {
	Certificate
	InsecureListen bool `help:"Listen without protection for other machines." group:"Security"`
}

// Certificate names the files of a process's certificate.
type Certificate struct {
	TLSCert string `name:"tls-cert" help:"PEM certificate of this process. With --tls-key and --tls-ca, TCP to and from other machines is mutual TLS. Unix sockets and loopback addresses need none." placeholder:"FILE" group:"Security"`
	TLSKey  string `name:"tls-key" help:"PEM key of --tls-cert." placeholder:"FILE" group:"Security"`
	TLSCA   string `name:"tls-ca" help:"PEM certificate of the authority of all certificates." placeholder:"FILE" group:"Security"`
}

// SharedSecret names the file of the secret that tandem's processes share.
type SharedSecret struct {
	SecretFile string `help:"File of mode 0600 with a secret that all processes share. They send it on TCP without TLS and to the pool's server. It may be replaced while they run (default: for loopback addresses, one that is made in the folder of the default sockets)." placeholder:"FILE" more:"" group:"Security"`
}

// Logging says what the processes write to stderr.
type Logging struct {
	LogLevel  string `help:"What is logged: debug, info, warn or error. On stderr; at info, among others, one line a request." enum:"debug,info,warn,error" default:"info" group:"Serving"`
	LogFormat string `help:"How: text, or json (one object a line)." enum:"text,json" default:"text" more:"" group:"Serving"`
}

// Web says where and for whom a gateway serves HTTP.
type Web struct {
	HTTP            string   `name:"http" help:"HTTP server: host:port, unix:///path, or off. It has OpenAI's API and the playground." default:"127.0.0.1:8450" placeholder:"ADDR" group:"Serving"`
	Host            string   `help:"Host of --http, in place of the one there." placeholder:"HOST" setting:"-" group:"Serving"`
	Port            *int     `help:"Port of --http, in place of the one there." placeholder:"PORT" setting:"-" group:"Serving"`
	APIKey          []string `name:"api-key" help:"Key of a client, sent as \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"; may be repeated. Clients with different keys share no memory. Without any, everybody who can connect is let in. Others on this machine can read flags, but not TANDEM_API_KEY or --api-keys." placeholder:"KEY" sep:"none" secret:"x" more:"" group:"Security"`
	APIKeys         string   `name:"api-keys" help:"File with one key of a client a line. Empty lines and lines that begin with # are ignored." placeholder:"FILE" group:"Security"`
	MetricsKey      string   `help:"File with the only key that opens /metrics, for the collector; clients' keys, or no key, then do not." placeholder:"FILE" more:"" group:"Security"`
	AllowPull       *Size    `help:"Let clients pull models, SIZE in all (default: off). They may delete them, too: POST /api/pull and DELETE /api/delete, of the configured hub and registry alone. Where clients have keys, --pull-key names those that may." placeholder:"SIZE" group:"Security"`
	PullKey         string   `help:"File with the only keys that open --allow-pull, one a line." placeholder:"FILE" more:"" group:"Security"`
	AllowHost       []string `help:"Host name by which the HTTP server may be called, besides localhost and addresses; may be repeated. Checked only where a page of another host could get in: without keys." placeholder:"NAME" sep:"none" more:"" group:"Security"`
	CORSOrigin      []string `name:"cors-origin" help:"Origin of web pages that may use the HTTP server. May be repeated. As in https://chat.example.org; * lets all pages, and needs keys." placeholder:"ORIGIN" sep:"none" group:"Security"`
	Alias           []string `help:"Further name of the model; may be repeated. Requests may use any name; answers say the model's own." more:"" placeholder:"NAME" sep:"none" group:"Model"`
	KeepAttribution bool     `help:"Leave in the system block by which Claude Code says who asks. It changes with every request, so nothing behind it is found in the cache." more:"" group:"Serving"`
	StrictFields    bool     `help:"Refuse fields of requests that have no effect, and names of models that are not listed, instead of ignoring them." more:"" group:"Serving"`
	ChatTemplate    string   `help:"File with the Jinja template of chats, for a model without a right one." more:"" placeholder:"FILE" group:"Model"`
	System          string   `help:"System message of chats over HTTP that have none (default: that of a model of Ollama's)." more:"" placeholder:"TEXT" group:"Model"`
	Pooling         string   `help:"How vectors of texts are made: last (the state of the last token), mean (that of all) or auto: as the model's file says; a model whose file says nothing makes none." enum:"auto,last,mean," default:"auto" more:"" group:"Model"`

	ChatTemplateKwargs string `help:"Variables of the chat template where a request has none, as {\"enable_thinking\": false}." placeholder:"JSON" more:"" group:"Model"`
}

// Drawing says how a gateway draws tokens over HTTP where a request says nothing. nil: as the model's file says, else as llama.cpp's
// server does.
type Drawing struct {
	Temperature      *float64 `help:"Over HTTP, where a request says nothing: 0 takes the likeliest token; more is more random (default: the model file's, else 0.8)." placeholder:"T" more:"" group:"Text"`
	TopK             *int     `help:"Likewise: draw among the K likeliest tokens; 0 or -1 = all (default: the model file's, else 40)." placeholder:"K" more:"" group:"Text"`
	TopP             *float64 `help:"Likewise: draw among the likeliest tokens that together have this probability (default: the model file's, else 0.95)." placeholder:"P" more:"" group:"Text"`
	MinP             *float64 `help:"Likewise: draw among tokens with at least this share of the likeliest one's probability; 0 = all (default: the model file's, else 0.05)." placeholder:"P" more:"" group:"Text"`
	RepeatPenalty    *float64 `help:"Likewise: divide the logits of the latest tokens by this; 1 = do not (default: the model file's, else 1)." placeholder:"X" more:"" group:"Text"`
	RepeatLast       *int     `help:"Likewise: how many of the latest tokens the repeat penalty looks at (default: the model file's, else 64)." placeholder:"N" more:"" group:"Text"`
	FrequencyPenalty *float64 `help:"Likewise: lower a token's logit by this for each time that the output holds it (default: 0)." placeholder:"X" more:"" group:"Text"`
	PresencePenalty  *float64 `help:"Likewise: lower a token's logit by this if the output holds it (default: 0)." placeholder:"X" more:"" group:"Text"`
	Seed             *uint64  `help:"Likewise: seed of the draws (default: a random one for each request)." placeholder:"SEED" more:"" group:"Text"`
	Stop             []string `help:"Likewise: end the output before this text; may be repeated (default: as a model of Ollama's says)." more:"" placeholder:"TEXT" sep:"none" group:"Text"`
}

// Preset returns the settings that were given.
func (d Drawing) Preset() tandem.Preset {
	return tandem.Preset{Temperature: d.Temperature, TopP: d.TopP, MinP: d.MinP, RepeatPenalty: d.RepeatPenalty,
		FrequencyPenalty: d.FrequencyPenalty, PresencePenalty: d.PresencePenalty, TopK: d.TopK, RepeatLast: d.RepeatLast}
}

// Otherwise sets what was not given to what p says.
func (d *Drawing) Otherwise(p tandem.Preset) { otherwise(d, p) }

// Otherwise sets what was not given to what p says.
func (t *Talking) Otherwise(p tandem.Preset) { otherwise(t, p) }

// otherwise sets the fields of *to that are nil to those of p that have their names. *to has all of p's.
func otherwise(to any, p tandem.Preset) {
	fields := reflect.ValueOf(to).Elem()
	for f, v := range reflect.ValueOf(p).Fields() {
		if at := fields.FieldByName(f.Name); at.IsNil() {
			at.Set(v)
		}
	}
}

// Check refuses what no request could say.
func (d Drawing) Check() error {
	return d.Preset().Over(tandem.ServerSampling).Validate(tandem.Limits{})
}

// Answers bound answers.
type Answers struct {
	MaxOutputTokens int `help:"Most tokens of an answer, whatever a request asks for; 0 = as many as the context holds." default:"0" placeholder:"N" check:">=0" more:"" group:"Serving"`
	RepeatLimit     int `help:"End an answer whose last N tokens repeat one piece of at most 64 tokens, if its request sets no limit; 0 = never." default:"1000" placeholder:"N" more:"" group:"Serving"`
}

// Check refuses a repeat limit that a piece could reach before it is repeated.
func (a Answers) Check() error {
	if a.RepeatLimit != 0 && a.RepeatLimit < tandem.MinRepeats {
		return tandem.Errorf("", tandem.Invalid, "--repeat-limit is %d: want 0, or %d or more", a.RepeatLimit, tandem.MinRepeats)
	}
	return nil
}

// LookupDrafts switch the drafters without a model, which work in the gateway's process.
type LookupDrafts struct {
	Lookup       bool   `help:"Draft from the text itself, beside the draft models." default:"true" negatable:"" more:"" group:"Speculation"`
	Recycling    bool   `help:"Draft from the tokens that the target found likely in earlier rounds of the same tenant, beside lookup; not with --no-lookup or --prefix-cache off." default:"true" negatable:"" more:"" group:"Speculation"`
	EarlierTexts string `help:"Let lookup find what stood in earlier texts of the same tenant: auto (with keys, in the latest 1048576 tokens), off, or the most tokens to keep, also without keys. Each key has an equal part; a token takes 12 bytes of the gateway's memory." default:"auto" placeholder:"auto|off|TOKENS" more:"" group:"Speculation"`
}

const (
	autoEarlier  = 1 << 20 // tokens of earlier texts
	leastEarlier = 1 << 10
	mostEarlier  = 1 << 30
)

// Earlier returns how many tokens of earlier texts are kept for so many tenants with keys; 0: clients need no keys. Errors: Invalid.
func (l LookupDrafts) Earlier(tenants int) (int, error) {
	switch {
	case l.EarlierTexts == "off" || l.EarlierTexts == "auto" && tenants == 0 || l.EarlierTexts == "":
		return 0, nil
	case l.EarlierTexts == "auto":
		return max(autoEarlier, tenants), nil
	}
	n, err := strconv.ParseInt(l.EarlierTexts, 10, 32)
	if err != nil || n < leastEarlier || n > mostEarlier || int(n) < tenants {
		return 0, tandem.Errorf("", tandem.Invalid, "--earlier-texts %.50s: want auto, off, or a number of tokens, %d to %d",
			l.EarlierTexts, max(leastEarlier, tenants), mostEarlier)
	}
	if !l.Lookup {
		return 0, tandem.Errorf("", tandem.Invalid, "--earlier-texts %d with --no-lookup: nobody would look there", n)
	}
	return int(n), nil
}

// Beside returns these settings for a gateway that has drafts, or none, and whose group reuses prefixes as p says. Errors: Invalid for
// settings that exclude each other.
func (l LookupDrafts) Beside(p Prefixes, drafts bool) (LookupDrafts, error) {
	switch {
	case !drafts || !l.Lookup:
		return LookupDrafts{EarlierTexts: "auto"}, nil
	case p.PrefixCache != "off":
		return l, nil
	case l.EarlierTexts != "" && l.EarlierTexts != "auto" && l.EarlierTexts != "off":
		return l, tandem.Errorf("", tandem.Invalid,
			"--earlier-texts %.50s with --prefix-cache off, which keeps nothing of ended sessions: want one of them", l.EarlierTexts)
	}
	l.Recycling, l.EarlierTexts = false, "off"
	return l, nil
}
