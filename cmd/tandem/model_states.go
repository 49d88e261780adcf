package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/states"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/token"
)

type modelStatesCmd struct {
	Model        string        `help:"GGUF file, as it is served (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Out          string        `short:"o" help:"Folder for the shards; one that was begun with the same arguments is gone on with." required:"" placeholder:"DIR" setting:"-"`
	Texts        []string      `help:"File of plain text, or folder of such files. May be repeated." placeholder:"PATH" sep:"none" setting:"-"`
	Prompts      []string      `help:"File of JSON lines with prompt or messages; the model answers where the last message is not the assistant's. May be repeated." placeholder:"FILE" sep:"none" setting:"-"`
	MakePrompts  bool          `help:"Do not run --texts themselves, but let the model answer instructions made of them: of functions with comments, headings of Markdown, and manual pages." setting:"-"`
	Raw          bool          `help:"Prompts are texts that the model continues as they are, without its chat template." setting:"-"`
	Taps         string        `help:"Hidden states to keep, as numbers of layers: 2,14,25; -1 is the state after the final norm (default: low, middle and high)." placeholder:"LAYERS" setting:"-"`
	Top          int           `help:"Likeliest next tokens to keep at each position, 1 to 64." default:"32" setting:"-"`
	Ctx          int           `help:"Longest text in tokens, answer included; longer files are cut into pieces. 0 = the model's context." default:"2048" setting:"-"`
	Sessions     int           `help:"Texts that are run at once." default:"8" setting:"-"`
	AnswerTokens int           `help:"Longest answer in tokens." default:"256" setting:"-"`
	Temperature  float64       `help:"Of answers: 0 takes the likeliest token." default:"0" setting:"-"`
	TopK         int           `help:"Of answers: draw among the K likeliest tokens; 0 = all." default:"0" setting:"-"`
	TopP         float64       `help:"Of answers: draw among the likeliest that reach this probability." default:"1" setting:"-"`
	Seed         uint64        `help:"Of answers: seed of the draws." default:"0" setting:"-"`
	MaxTokens    int           `help:"End after so many tokens; 0 = after all texts." default:"0" setting:"-"`
	MaxSize      settings.Size `help:"Largest size of all shards together; 0 = as large as they become." default:"0" placeholder:"SIZE" setting:"-"`
	KVType       string        `name:"kv-type" help:"Keys and values as f16 or q8_0, as the model is served." default:"f16" enum:"f16,q8_0" setting:"-"`
	ChatTemplate string        `help:"File with the Jinja template of chats, for a model without a right one." placeholder:"FILE" setting:"-"`
	Variables    string        `name:"chat-template-kwargs" help:"Variables for the chat template, as a JSON object." placeholder:"JSON" setting:"-"`
	start.Compute
	start.Budget
	settings.CacheFolder
	output
}

// Run writes what a model computes over texts.
func (c *modelStatesCmd) Run(a *app) error {
	path, err := find.Target(c.Model)
	if err == nil {
		err = cmp.Or(c.Compute.Validate(), c.Budget.Validate(), c.Budget.On(c.Device, c.GPULayers))
	}
	if err != nil {
		return err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	of := states.Config{Model: path, Texts: c.Texts, Prompts: c.Prompts, MakePrompts: c.MakePrompts, Raw: c.Raw, Out: c.Out,
		Top: c.Top, Context: c.Ctx, Sessions: c.Sessions, AnswerTokens: c.AnswerTokens, MaxTokens: c.MaxTokens, MaxSize: int64(c.MaxSize),
		Sampling: tandem.Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, Seed: c.Seed},
		Open: func(o engine.Options) (*engine.Model, func(), error) {
			return c.Load(a.say, func(d kernels.Device) (m *engine.Model, err error) {
				o.Device, o.KVType = d, c.KVType
				if o, err = c.Fit(a.env(), c.CacheFolder, path, o); err != nil {
					return nil, err
				}
				return a.openModel(path, o)
			})
		}}
	if of.Taps, err = parseTaps(c.Taps); err != nil {
		return err
	}
	if c.Taps == "" {
		of.Taps = states.UsualTaps(info.Config.Layers)
	}
	if err := c.chats(path, &of); err != nil {
		return err
	}
	shown := terminal.NewRate(a.stderr, "tokens")
	of.Progress = func(p states.Progress) { shown.Step(p.Tokens, p.Before, p.Share) }
	r, err := states.Run(a.ctx, of)
	shown.End()
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %v\n", terminal.Shown(c.Out), r)
	return err
}

// chats gives a run the model's tokenizer and what renders chats.
func (c *modelStatesCmd) chats(path string, of *states.Config) error {
	vocab, err := token.Open(path)
	if err != nil {
		return err
	}
	if of.Vocab = vocab; c.Raw {
		return nil
	}
	chat, vocab, err := chats.Open(c.ChatTemplate, c.Variables, path, vocab)
	if err != nil || chat == nil {
		return err
	}
	of.Vocab, of.Template = vocab, c.Variables
	if c.ChatTemplate != "" {
		b, err := files.ReadFile(c.ChatTemplate, math.MaxInt32)
		if err != nil {
			return err
		}
		of.Template += fmt.Sprintf(" %x", sha256.Sum256(b))
	}
	of.Render = func(ctx context.Context, x states.Chat) ([]tandem.Token, int, error) {
		to := conversation.Conversation{Tools: x.Tools}
		for i, m := range x.Messages {
			turn := conversation.Message(m)
			if err := turn.Check(fmt.Sprintf("messages[%d]", i), m.Content != ""); err != nil {
				return nil, 0, err
			}
			to.Messages = append(to.Messages, turn)
		}
		if x.Finished() {
			return chats.Finished(ctx, chat, vocab, to)
		}
		p, err := chat.Prompt(ctx, to)
		if err != nil {
			return nil, 0, err
		}
		tokens := p.Tokens()
		return tokens, len(tokens), nil
	}
	return nil
}
