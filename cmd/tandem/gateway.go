package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/ask"
)

type gatewayCmd struct {
	settings.Gateway
	childFlags
}

// Run runs a gateway until it is stopped.
func (c *gatewayCmd) Run(a *app) error {
	path, err := find.Target(c.Target)
	if err != nil {
		return err
	}
	constants, err := start.Rules(c.Strategies)
	if err != nil {
		return err
	}
	defaults, err := requestDefaults(c.Speculation)
	if err != nil {
		return err
	}
	web := c.Web
	defaults.MaxOutput, defaults.Repeats, defaults.Seed = c.MaxOutputTokens, c.RepeatLimit, c.Seed
	keys, err := start.Keys(web)
	if err != nil {
		return err
	}
	if c.ReadyFD == 0 { // up has said it already
		start.WarnOfKeys(web, a.say)
	}
	earlier, err := c.LookupDrafts.Earlier(len(keys.Tenants()))
	if err != nil {
		return err
	}
	if err := web.Settle(); err != nil {
		return err
	}
	var metricsKeys *access.Keys
	if web.HTTP != gateway.NoHTTP {
		if metricsKeys, err = start.MetricsKeys(web); err != nil {
			return err
		}
	}
	folder, err := start.CacheDir(c.CacheDir)
	if err != nil {
		folder = "" // a user without a folder keeps nothing
	}
	roles.BoundGateway()
	return gateway.Run(a.ctx, gateway.Config{Config: roles.Config{Peer: c.Peer, Program: c.program(a, c.Logging)}, Target: path,
		ChatTemplate: c.ChatTemplate, Rules: constants, Defaults: defaults, Sampling: c.Preset(), ChatKwargs: c.ChatTemplateKwargs,
		KeepAwake: c.KeepAwake, Verifiers: c.Verifier, Drafters: c.Drafter, Pool: c.Pool, PoolListen: c.PoolListen, PoolFile: c.PoolFile,
		PoolStore: c.PoolStore,
		HTTP:      web.HTTP, AllowHost: c.AllowHost, Origins: c.CORSOrigin, Aliases: c.Alias, Strict: c.StrictFields,
		KeepAttribution: c.KeepAttribution, Pooling: c.Pooling, Keys: keys, Cache: folder,
		MetricsKeys: metricsKeys,
		NoLookup:    !c.Lookup, Recycling: c.Recycling, EarlierTexts: earlier})
}

// requestDefaults returns the values for what a request leaves out.
func requestDefaults(s settings.Speculation) (ask.Defaults, error) {
	r := tandem.Request{Prompt: "x", MaxTokens: 128, Sampling: tandem.Sampling{TopP: 1}}
	err := s.Speculate(&r)
	if err == nil {
		err = r.Validate(tandem.Limits{Strategies: strategy.Names()})
	}
	return ask.Defaults{MaxTokens: r.MaxTokens, Sampling: r.Sampling, Bounds: r.Bounds, Strategy: r.Strategy, Vote: r.Vote,
		Drafters: r.Drafters, Without: r.Without}, err
}
