package main

import (
	"cmp"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/roles/gateway"
	"github.com/tandem-llm/tandem/services/access"
	"github.com/tandem-llm/tandem/services/public"
)

type gatewayCmd struct {
	Target string `short:"m" aliases:"model" help:"GGUF file of the target model, for its tokenizer (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	awakeFlags
	speculationFlags
	ruleFlags
	roleFlags
	httpFlags
	drawFlags
	outputFlags
	lookupFlags
}

// Run runs a gateway until it is stopped.
func (c *gatewayCmd) Run(a *app) error {
	path, err := targetPath(c.Target)
	if err != nil {
		return err
	}
	rules, err := c.rules()
	if err != nil {
		return err
	}
	defaults, err := c.defaults()
	if err != nil {
		return err
	}
	if err := cmp.Or(c.drawFlags.check(), c.outputFlags.check()); err != nil {
		return err
	}
	defaults.MaxOutput, defaults.Seed = c.MaxOutputTokens, c.Seed
	keys, err := c.keys()
	if err != nil {
		return err
	}
	if c.ReadyFD == 0 { // up has said it already
		c.httpFlags.warn(a.say)
	}
	earlier, err := c.earlier(keys)
	if err != nil {
		return err
	}
	if err := c.settle(); err != nil {
		return err
	}
	var metricsKeys *access.Keys
	if c.HTTP != gateway.NoHTTP {
		if metricsKeys, err = c.metricsKeys(); err != nil {
			return err
		}
	}
	return gateway.Run(a.ctx, gateway.Config{Config: c.config(a, c.Listen), Target: path, ChatTemplate: c.ChatTemplate, Rules: rules,
		Defaults: defaults, Sampling: c.preset(), ChatKwargs: c.ChatTemplateKwargs,
		KeepAwake: c.KeepAwake, Verifier: c.Verifier, Drafters: c.Drafter, Pool: c.Pool, PoolListen: c.PoolListen, PoolFile: c.PoolFile,
		HTTP: c.HTTP, AllowHost: c.AllowHost, Origins: c.CORSOrigin, Aliases: c.Alias, Strict: c.StrictFields, Keys: keys,
		MetricsKeys: metricsKeys,
		NoLookup:    !c.Lookup, EarlierTexts: earlier})
}

// defaults returns the values for what a request leaves out.
func (s speculationFlags) defaults() (public.Defaults, error) {
	r := tandem.Request{Prompt: "x", MaxTokens: 128, Sampling: tandem.Sampling{TopP: 1}}
	err := s.speculate(&r)
	if err == nil {
		err = r.Validate(tandem.Limits{})
	}
	return public.Defaults{MaxTokens: r.MaxTokens, Sampling: r.Sampling, Bounds: r.Bounds, Strategy: r.Strategy, Vote: r.Vote,
		Drafters: r.Drafters, Without: r.Without}, err
}
