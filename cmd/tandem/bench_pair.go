package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/pair"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
)

type benchPairCmd struct {
	URL         string        `help:"Measure the tandem server at this URL, which nobody else uses, in place of one started for this." placeholder:"URL" setting:"-"`
	APIKeys     string        `name:"api-keys" help:"Keys of the servers at --url and --peer, one for each answer." placeholder:"FILE" setting:"-"`
	Way         []string      `help:"Another way in place of lookup, chains of 2 and 4 and a tree of 8, as NAME={\"speculation\":{…}}: fields of its requests. May be repeated." placeholder:"NAME=JSON" sep:"none" setting:"-"`
	Peer        []string      `help:"Server of another program with OpenAI's API, as NAME=URL, or NAME=URL {…} with fields of its requests. May be repeated." placeholder:"NAME=URL" sep:"none" setting:"-"`
	Subject     string        `help:"The way that is judged by the others." default:"planner" placeholder:"NAME" setting:"-"`
	Prompts     string        `help:"JSON lines with id, domain and prompt (default: the shipped chats)." placeholder:"FILE" setting:"-"`
	Only        []string      `help:"Only the prompts of these ids or domains." placeholder:"NAME,…" setting:"-"`
	Rounds      int           `help:"Rounds at most. Each asks every prompt in every way twice; the last is the one that brings the interval near enough." default:"12" placeholder:"N" setting:"-"`
	Budget      time.Duration `help:"Begin no round after this time." placeholder:"TIME" setting:"-"`
	MaxTokens   int           `help:"Tokens of an answer at most." default:"160" placeholder:"N" setting:"-"`
	Temperature float64       `help:"0 takes the likeliest token; more is more random." default:"0" placeholder:"T" setting:"-"`
	Seed        uint64        `help:"Seed of the draws, and of the arrivals of --gap." default:"1" placeholder:"N" setting:"-"`
	Raw         bool          `help:"Continue the prompts as texts: for a model without a chat template." setting:"-"`
	AtOnce      []int         `help:"Send so many requests at once, in place of one after the other." placeholder:"N,…" setting:"-"`
	Gap         time.Duration `help:"With --at-once: let the requests arrive at random, with this mean time between them (a Poisson process)." placeholder:"TIME" setting:"-"`
	groupFlags
	output
}

// Run measures a pair over HTTP.
func (c *benchPairCmd) Run(a *app) error {
	config, err := c.config(a)
	if err != nil {
		return err
	}
	r, err := pair.Run(a.ctx, config)
	if r == nil {
		return err
	}
	return errors.Join(err, c.show(a, r), r.Err())
}

// config returns what the flags say.
func (c *benchPairCmd) config(a *app) (out pair.Bench, err error) {
	out = pair.Bench{Subject: c.Subject, Rounds: c.Rounds, Budget: c.Budget, MaxTokens: c.MaxTokens, Temperature: c.Temperature,
		Seed: c.Seed, Raw: c.Raw, AtOnce: c.AtOnce, Gap: c.Gap,
		Progress: func(format string, args ...any) { a.say("tandem: "+format, args...) }}
	if err = out.Choose(cmp.Or(c.Prompts, prompts.Chats), c.Only); err != nil {
		return out, err
	}
	if c.APIKeys != "" {
		if out.Keys, err = start.ReadKeys("--api-keys", c.APIKeys); err != nil {
			return out, err
		}
	} else if c.URL != "" {
		return out, tandem.Errorf("", tandem.Invalid, "--url wants --api-keys: a prompt that a tenant asks again is answered faster")
	}
	var target, draft string
	var drafts []string
	if c.URL != "" {
		c.URL = strings.TrimSuffix(c.URL, "/")
		drafts, err = pair.Drafters(a.ctx, c.URL, out.Keys[0])
	} else if err = a.drafts(&c.Models, c.CacheDir); err != nil {
		return out, err
	} else if target, err = find.Target(c.Target); err == nil {
		drafts, err = find.Drafts(c.Draft, c.Target, tandem.Request{})
		out.Start = func(keys []string, do func(context.Context, string) error) error {
			return c.start(a, target, drafts, keys, do)
		}
	}
	if err != nil {
		return out, err
	}
	if i := slices.IndexFunc(drafts, func(d string) bool { return d != drafter.Lookup && d != tandem.Recycling }); i >= 0 {
		draft = roles.ModelName(drafts[i])
	}
	ways := pair.Fixed{URL: c.URL, Draft: draft}
	if c.Lookup || c.URL != "" {
		ways.Lookup = drafter.Lookup
	}
	if len(c.AtOnce) > 0 {
		ways.Draft, ways.Lookup = "", ""
	}
	out.Ways, err = ways.And(c.Way, c.Peer, c.Subject)
	return out, err
}

// earlierTexts is how many tokens of its texts lookup keeps for each of the many tenants, in place of a part of what a few would share:
// enough for a prompt and its answer.
const earlierTexts = 1024

// start starts a server for the pair that knows keys, calls do with its URL, and ends it.
func (c *benchPairCmd) start(a *app, target string, drafts, keys []string, do func(context.Context, string) error) error {
	most := 1
	if len(c.AtOnce) > 0 {
		most = slices.Max(c.AtOnce)
	}
	s := start.Setup{Group: c.Group, TargetFile: target, DraftFiles: drafts, AtOnce: c.sessionsOr(most)}
	s.Grace, s.APIKey = 0, keys
	if c.Lookup && s.EarlierTexts == "auto" {
		s.EarlierTexts = strconv.Itoa(len(keys) * earlierTexts)
	}
	var err error
	if s.HTTP, err = start.FixedPort("127.0.0.1:0"); err != nil {
		return err
	}
	if s, err = s.Checked(a.env(), tandem.Request{}); err != nil {
		return err
	}
	s.Wide()
	p, err := a.start(s)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return do(ctx, s.Web.URL()) })
}
