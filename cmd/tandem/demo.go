package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/demo"
	"github.com/tandem-llm/tandem/app/demo/expanded"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/modelfile/hub"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/text/token"
)

type demoCmd struct {
	Prompt      string  `help:"Text to continue (default: the start of a Go function)." setting:"-"`
	MaxTokens   int     `help:"Largest number of tokens to generate." default:"128"`
	Temperature float64 `help:"0 takes the likeliest token; more is more random." default:"0"`
	Seed        uint64  `help:"Seed of the draws: the same seed gives the same text." default:"0"`
	Like        string  `help:"Shape to expand the shipped target to, as for model expand (default: 1b)." placeholder:"SHAPE" setting:"-"`
	Type        string  `help:"Type of its weights, as for model quantize (default: q8_0)." placeholder:"TYPE" setting:"-"`
	settings.Speculation
	groupFlags
	output
}

// demoPrompt is Go, which the shipped models know best; with more than one line they repeat themselves less.
const demoPrompt = `// ReadConfig reads the configuration from the named file.
func ReadConfig(name string) (*Config, error) {
	f, err := os.Open(name)
`

// Run shows one prompt decoded plainly and with speculation.
func (c *demoCmd) Run(a *app) error {
	r, err := c.request()
	if err != nil {
		return err
	}
	if r.Bounds.Plain() {
		return tandem.Errorf("", tandem.Invalid, "--tree %s drafts nothing: the demo compares with drafts", c.Tree)
	}
	if c.Target != "" && (c.Like != "" || c.Type != "") {
		return tandem.Errorf("", tandem.Invalid,
			"--like and --type are for the shipped TargetFile: want them without --target (or TANDEM_TARGET)")
	}
	drafts, err := find.Drafts(c.Draft, c.Target, r)
	if err != nil {
		return err
	}
	target := c.Target
	if target == "" {
		model, err := c.model(a)
		if err != nil {
			return err
		}
		defer model.Close()
		target = model.Path
	}
	s := start.Setup{Group: c.Group, TargetFile: target, DraftFiles: drafts, AtOnce: c.sessionsOr(1)}
	s.Grace = 0
	if s, err = s.Checked(a.env(), r); err != nil {
		return err
	}
	s.Widen(&r, c.Tree)
	vocab, err := token.Open(target)
	if err != nil {
		return err
	}
	a.say("starting gateway, verifier and drafter; the verifier measures what its passes cost here")
	p, err := a.start(s)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return c.show(ctx, a, p.Addr, s, r, vocab) })
}

// model returns the shipped target expanded.
func (c *demoCmd) model(a *app) (*cache.Entry, error) {
	source, err := find.Target("")
	if err != nil {
		return nil, err
	}
	return expanded.Get(a.ctx, expanded.Spec{Source: source, Like: or(c.Like, expanded.Shape), Type: or(c.Type, expanded.Type),
		Cache: func() (*cache.Cache, error) { return start.OpenCache(c.CacheFolder) }, Streams: c.MemoryBudget != nil, Stderr: a.stderr,
		Tell: func(line string) { a.say("%s", line) }})
}

// request returns the request for the speculative run, validated.
func (c *demoCmd) request() (tandem.Request, error) {
	r := tandem.Request{Prompt: or(c.Prompt, demoPrompt), MaxTokens: c.MaxTokens,
		Sampling: tandem.Sampling{Temperature: c.Temperature, TopP: 1, Seed: c.Seed}}
	if err := c.Speculate(&r); err != nil {
		return r, err
	}
	return r, r.Validate(tandem.Limits{Strategies: strategy.Names()})
}

// show runs the demo on the gateway at addr.
func (c *demoCmd) show(ctx context.Context, a *app, addr string, s start.Setup, r tandem.Request, vocab *token.Vocab) error {
	conn, err := dial(addr, settings.ClientKeys{}, c.Certificate)
	if err != nil {
		return err
	}
	defer conn.Close()
	result := &demo.Result{Target: roles.ModelName(s.TargetFile), Prompt: r.Prompt}
	for _, d := range s.DraftFiles {
		result.Drafts = append(result.Drafts, roles.ModelName(d))
	}
	a.say("%s, draft %s", result.Target, strings.Join(result.Drafts, ", "))
	err = result.Run(ctx, decoder(conn, r, vocab), r.MaxTokens, c.view(a))
	if c.JSON && len(result.Speculative.Tokens) > 0 {
		if err := terminal.PrintJSON(a.stdout, result); err != nil {
			return err
		}
	}
	return err
}

// decoder returns a demo.Decoder that continues r's prompt on a gateway.
func decoder(conn *client.Client, r tandem.Request, vocab *token.Vocab) demo.Decoder {
	return func(ctx context.Context, way demo.Way, tokens int, show func(demo.Piece) error) (demo.Generation, error) {
		r := r
		if r.MaxTokens = tokens; way == demo.Plain {
			r.Bounds = tandem.Bounds{}
		}
		texts := token.NewDecoder(vocab, false, vocab.Encode(r.Prompt, true)...)
		from := demo.FromTarget
		run, err := talk.Generate(ctx, conn, r, nil, func(d *client.Delta) error {
			for i, id := range d.Tokens {
				if from = demo.FromTarget; i < len(d.Drafted) && d.Drafted[i] {
					from = demo.FromDraft
				}
				if err := show(demo.Piece{Text: terminal.Harmless(texts.Next(tandem.Token(id))), From: from}); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			err = show(demo.Piece{Text: terminal.Harmless(texts.Flush()), From: from})
		}
		s := talk.Statistics(run)
		return demo.Generation{Text: run.Text, Tokens: run.Tokens, TokensPerSecond: s.TokensPerSecond, TokensPerRound: s.TokensPerRound,
			Rounds: s.Rounds, Drafted: s.Drafted, Accepted: s.Accepted, DecodeMS: s.DecodeMS}, err
	}
}

// view returns how the demo is shown: side by side on a terminal that is wide enough, else one text after the other.
func (c *demoCmd) view(a *app) demo.View {
	if c.JSON {
		return demo.Quiet{}
	}
	colour := terminal.Coloured(a.stdout)
	if f, ok := a.stdout.(*os.File); ok && terminal.Is(f) && os.Getenv("TERM") != "dumb" {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			if columns := demo.NewColumns(a.stdout, int(size.Col), int(size.Row), colour); columns != nil {
				return columns
			}
		}
	}
	return &demo.Text{To: a.stdout, Colour: colour}
}

// env is what starting processes needs.
func (a *app) env() start.Env {
	return start.Env{Stderr: a.stderr, Say: a.say, Version: buildVersion().Version, GPUs: gpu.Chips}
}

// start starts processes, and says what of the command line is outdated once they serve. Behind the first answer a draft is fetched, until
// the command ends; the next one goes on there.
func (a *app) start(s start.Setup) (*group.Processes, error) {
	for _, path := range slices.Concat(s.DraftFiles, []string{s.TargetFile}) {
		hub.Use(path)
	}
	if of := s; len(s.Fetch) > 0 {
		s.Answered = func() { go a.fetchDraft(a.ctx, of) }
	}
	p, err := s.Start(a.ctx, a.env())
	if err == nil {
		a.outdated(s.Logging)
	}
	return p, err
}

// settled waits, after an answer, until what a later start will read is kept. It returns err; after an error it does not wait.
func (a *app) settled(ctx context.Context, p *group.Processes, err error) error {
	if err == nil {
		p.Settle(ctx, func() { a.say("tandem: keeping packed weights, so that the next start is quick (Ctrl-C ends it)") })
	}
	return err
}

// say prints a line of progress on stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.stderr, terminal.OneLine(fmt.Sprintf(format, args...)))
}
