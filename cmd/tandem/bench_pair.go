package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	Chains      []int         `help:"Fixed ways to compare the planner with: chains of so many tokens of the draft. Lookup alone is one more." default:"1,2,3,4,5,6" placeholder:"N,…" setting:"-"`
	Way         []string      `help:"Another way in place of lookup and the chains, as NAME={\"speculation\":{…}}: fields of its requests. May be repeated." placeholder:"NAME=JSON" sep:"none" setting:"-"`
	Peer        []string      `help:"Server of another program with OpenAI's API, as NAME=URL, or NAME=URL {…} with fields of its requests. May be repeated." placeholder:"NAME=URL" sep:"none" setting:"-"`
	Subject     string        `help:"The way that is judged by the others." default:"planner" placeholder:"NAME" setting:"-"`
	Prompts     string        `help:"JSON lines with id, domain and prompt (default: the shipped chats)." placeholder:"FILE" setting:"-"`
	Only        []string      `help:"Only the prompts of these ids or domains." placeholder:"NAME,…" setting:"-"`
	Rounds      int           `help:"How often each prompt is answered in each way; of --at-once, pairs of runs." default:"5" setting:"-"`
	MaxTokens   int           `help:"Tokens of an answer at most." default:"160" placeholder:"N" setting:"-"`
	Temperature float64       `help:"0 takes the likeliest token; more is more random." default:"0" placeholder:"T" setting:"-"`
	Seed        uint64        `help:"Seed of the draws." default:"1" placeholder:"N" setting:"-"`
	Raw         bool          `help:"Continue the prompts as texts: for a model without a chat template." setting:"-"`
	AtOnce      []int         `help:"Send so many requests at once, in place of one after the other." placeholder:"N,…" setting:"-"`
	Gap         time.Duration `help:"With --at-once: let the requests arrive at random, with this mean time between them (a Poisson process)." placeholder:"TIME" setting:"-"`
	After       []string      `help:"Compare a new server's answer to a prompt with that of servers that have answered prompts of these domains." placeholder:"NAME,…" setting:"-"`
	Before      int           `help:"With --after: how many prompts they have answered." default:"8" placeholder:"N" setting:"-"`
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
func (c *benchPairCmd) config(a *app) (out pair.Config, err error) {
	out = pair.Config{Subject: c.Subject, Rounds: c.Rounds, MaxTokens: c.MaxTokens, Temperature: c.Temperature, Seed: c.Seed, Raw: c.Raw,
		AtOnce: c.AtOnce, Gap: c.Gap, Before: c.Before,
		Progress: func(format string, args ...any) { a.say("tandem: "+format, args...) }}
	if len(c.After) > 0 && c.URL != "" {
		return out, tandem.Errorf("", tandem.Invalid, "--after needs new servers: leave --url out")
	}
	if err = c.prompts(&out); err != nil {
		return out, err
	}
	var target, draft string
	var drafts []string
	if c.URL != "" {
		c.URL = strings.TrimSuffix(c.URL, "/")
		drafts, err = pair.Drafters(a.ctx, c.URL)
	} else if target, err = find.Target(c.Target); err == nil {
		drafts, err = find.Drafts(c.Draft, c.Target, tandem.Request{})
		out.Start = func(do func(context.Context, string) error) error { return c.start(a, target, drafts, do) }
	}
	if err != nil {
		return out, err
	}
	if i := slices.IndexFunc(drafts, func(d string) bool { return d != drafter.Lookup }); i >= 0 {
		draft = roles.ModelName(drafts[i])
	}
	out.Ways, err = c.ways(draft, len(c.AtOnce)+len(c.After) == 0)
	return out, err
}

// prompts fills in the prompts.
func (c *benchPairCmd) prompts(out *pair.Config) error {
	path := cmp.Or(c.Prompts, prompts.Chats)
	sets, err := prompts.Read(path)
	if err != nil {
		return err
	}
	for _, set := range sets {
		for _, p := range set.Prompts {
			if len(c.Only) == 0 || slices.Contains(c.Only, p.ID) || slices.Contains(c.Only, p.Domain) {
				out.Prompts = append(out.Prompts, p)
			}
		}
	}
	if len(out.Prompts) == 0 {
		return tandem.Errorf("", tandem.Invalid, "--only %s: %s has no such prompts", strings.Join(c.Only, ","), path)
	}
	for _, name := range c.After {
		i := slices.IndexFunc(sets, func(s prompts.Set) bool { return s.Name == name })
		if i < 0 {
			return tandem.Errorf("", tandem.Invalid, "--after %s: %s has no prompts of this domain", name, path)
		}
		if out.After == nil {
			out.After = map[string][]prompts.Prompt{}
		}
		out.After[name] = sets[i].Prompts
	}
	return nil
}

// speculation returns a way of the tandem server by the fields of "speculation".
func (c *benchPairCmd) speculation(name string, fields map[string]any) pair.Way {
	return pair.Way{Name: name, URL: c.URL, Body: map[string]any{"speculation": fields}}
}

// ways returns plain decoding, the planner, the fixed ways or those that the flags name, and the peers.
func (c *benchPairCmd) ways(draft string, fixed bool) ([]pair.Way, error) {
	out := []pair.Way{c.speculation("plain", map[string]any{"enabled": false}),
		c.speculation("planner", map[string]any{"strategy": string(tandem.StrategyPlanner)})}
	if fixed && len(c.Way) == 0 {
		if c.Lookup || c.URL != "" {
			out = append(out, c.speculation("lookup", map[string]any{"strategy": "planner", "drafters": []string{drafter.Lookup}}))
		}
		for _, n := range c.Chains {
			if draft != "" {
				out = append(out, c.speculation(fmt.Sprintf("chain %d", n), map[string]any{"strategy": "fixed", "drafters": []string{draft},
					"max_nodes": n + 1, "max_depth": n, "max_branches": 1}))
			}
		}
	}
	for _, text := range c.Way {
		name, fields, _ := strings.Cut(text, "=")
		w := pair.Way{Name: name, URL: c.URL}
		if err := json.Unmarshal([]byte(fields), &w.Body); err != nil || name == "" {
			return nil, tandem.Errorf("", tandem.Invalid, `--way %s: want NAME={"speculation":{…}}`, text)
		}
		out = append(slices.DeleteFunc(out, func(o pair.Way) bool { return o.Name == name && name == c.Subject }), w)
	}
	for _, text := range c.Peer {
		name, rest, _ := strings.Cut(text, "=")
		url, fields, more := strings.Cut(rest, " ")
		w := pair.Way{Name: name, URL: strings.TrimSuffix(url, "/"), Peer: true}
		if !more {
			fields = "{}"
		}
		if err := json.Unmarshal([]byte(fields), &w.Body); err != nil || name == "" || !strings.HasPrefix(url, "http") {
			return nil, tandem.Errorf("", tandem.Invalid, "--peer %s: want NAME=URL, or NAME=URL {…}", text)
		}
		out = append(out, w)
	}
	return out, nil
}

// start starts a server for the pair, calls do with its URL, and ends it.
func (c *benchPairCmd) start(a *app, target string, drafts []string, do func(context.Context, string) error) error {
	most := 1
	if len(c.AtOnce) > 0 {
		most = slices.Max(c.AtOnce)
	}
	l := start.Launch{Group: c.Group, TargetFile: target, DraftFiles: drafts, AtOnce: c.sessionsOr(most)}
	l.Grace, l.PrefixCache = 0, "off" // the same prompts again and again, each measured like a new one
	var err error
	if l.HTTP, err = start.FixedPort("127.0.0.1:0"); err != nil {
		return err
	}
	if l, err = l.Checked(a.env(), tandem.Request{}); err != nil {
		return err
	}
	l.Wide()
	p, err := a.start(l)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return do(ctx, l.Web.URL()) })
}
