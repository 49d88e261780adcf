package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/pull"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/ask"
)

type gatewayCmd struct {
	settings.Gateway
	childFlags
}

// Run runs a gateway until it is stopped.
func (c *gatewayCmd) Run(a *app) (err error) {
	out := gateway.Setup{Gateway: c.Gateway, Program: c.program(a, c.Logging)}
	if out.Target, err = find.Target(c.Target); err != nil {
		return err
	}
	if out.Rules, err = start.Rules(c.Strategies); err != nil {
		return err
	}
	if out.Defaults, err = requestDefaults(c.Speculation); err != nil {
		return err
	}
	out.Defaults.MaxOutput, out.Defaults.Repeats, out.Defaults.Seed = c.MaxOutputTokens, c.RepeatLimit, c.Seed
	out.Defaults.Stop, out.Defaults.System = c.Stop, c.System
	if out.Keys, err = start.Keys(c.Web); err != nil {
		return err
	}
	if c.ReadyFD == 0 { // up has said it already
		start.WarnOfKeys(c.Web, a.say)
	}
	if err := out.Settle(); err != nil {
		return err
	}
	if out.HTTP != settings.NoHTTP {
		if out.MetricsKeys, err = start.MetricsKeys(c.Web); err != nil {
			return err
		}
	}
	out.CacheDir = start.KeepIn(c.CacheDir)
	if out.PullKeys, err = start.PullKeys(c.Web); err != nil {
		return err
	}
	if c.AllowPull != nil {
		p, err := a.puller(c.CacheDir)
		if err != nil {
			return err
		}
		p.KVType = settings.Default[settings.KV]().KVType
		out.Models = &pull.Service{Puller: p, Most: c.AllowPull.Bytes(), Served: out.Target}
	}
	roles.BoundGateway()
	return gateway.Run(a.ctx, out)
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
