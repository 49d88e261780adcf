package main

import (
	"fmt"
	"runtime"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/modelfile/trim"
	"github.com/tandem-llm/tandem/processes/roles"
)

// convertFlags are common to commands that make a model file.
type convertFlags struct {
	Force   bool `help:"Replace OUT if it exists." setting:"-"`
	Threads int  `help:"Threads; 0 = all cores." default:"0" setting:"-"`
	output
}

type modelQuantizeCmd struct {
	In    string `arg:"" name:"in" help:"GGUF file of f32, f16 or bf16; a model or a side file."`
	Out   string `arg:"" name:"out" help:"GGUF file to make."`
	Type  string `help:"f32, f16, bf16, q8_0, q4_0, q5_0, q4_k_m, q6_k, q3_k_m or q2_k." required:"" placeholder:"TYPE" setting:"-"`
	Again bool   `name:"allow-requantize" help:"Accept weights that are already quantised; they lose more precision." setting:"-"`
	convertFlags
}

type modelTrimCmd struct {
	In    string   `arg:"" name:"in" help:"GGUF file of a model."`
	Out   string   `arg:"" name:"out" help:"GGUF file to make: a draft for tandem, which can be no target."`
	Keep  int      `help:"Tokens that it can say, those of templates, bytes and ends included; 0 = 49152, or half of a smaller vocabulary." default:"0" setting:"-"`
	Texts []string `help:"File or folder of texts like the answers to come: their frequent tokens are kept first (default: the first in the tokenizer's order of merges). May be repeated." placeholder:"PATH" sep:"none" setting:"-"`
	Type  string   `help:"Type of the weights, as for quantize (default: as in IN). Of weights that are quantised already it costs acceptance only." placeholder:"TYPE" setting:"-"`
	convertFlags
}

type modelExpandCmd struct {
	In      string `arg:"" name:"in" help:"GGUF file of the llama architecture, or a side file for one."`
	Out     string `arg:"" name:"out" help:"GGUF file to make."`
	Like    string `help:"1b (16 layers, d 2048, ffn 8192, head and group size as in IN), or LAYERS,D,HEADS,KV,FFN." required:"" placeholder:"SHAPE" setting:"-"`
	Type    string `help:"Type of the weights, as for quantize (default: f32 or bf16 if IN has it, else f16)." placeholder:"TYPE" setting:"-"`
	Context int    `name:"context-length" help:"Context length to declare, for measurements beyond the one that IN was trained for; 0 keeps it." setting:"-"`
	convertFlags
}

type modelRandomCmd struct {
	Like    string `help:"Whose shape; a name that is none lists them: qwen3-30b-a3b, gpt-oss-20b, qwen35-4b …" required:"" placeholder:"NAME" setting:"-"`
	Out     string `short:"o" help:"GGUF file to make." required:"" placeholder:"FILE" setting:"-"`
	Layers  int    `help:"Layers, if the model is to have fewer; 0 = all." default:"0" setting:"-"`
	Type    string `help:"Type of the weights, as for quantize, or mxfp4 for experts (default: q4_0, for gpt-oss mxfp4)." placeholder:"TYPE" setting:"-"`
	Seed    uint64 `help:"Other seeds give other weights." default:"0" setting:"-"`
	Vocab   string `name:"vocab-from" help:"GGUF file whose vocabulary the model gets (default: a made-up one of the model's size)." placeholder:"FILE" setting:"-"`
	Context int    `name:"context-length" help:"Context length to declare; 0 = the model's." default:"0" setting:"-"`
	convertFlags
}

// Run stores a model's weights as another type.
func (c *modelQuantizeCmd) Run(a *app) error {
	return makeModel(a, c.convertFlags, c.Out, func(o convert.Options) (*convert.Result, error) {
		return convert.Quantize(a.ctx, c.In, c.Out, c.Type, c.Again, o)
	})
}

// Run makes a draft that can say frequent tokens only.
func (c *modelTrimCmd) Run(a *app) error {
	return makeModel(a, c.convertFlags, c.Out, func(o convert.Options) (*trim.Result, error) {
		return trim.Run(a.ctx, trim.Config{In: c.In, Out: c.Out, Keep: c.Keep, Texts: c.Texts, Type: c.Type, Options: o})
	})
}

// Run makes a larger model that computes the same function.
func (c *modelExpandCmd) Run(a *app) error {
	shape, err := convert.ParseShape(c.Like)
	if err != nil {
		return err
	}
	if err := checkContextLength(c.Context); err != nil {
		return err
	}
	shape.Context = c.Context
	return makeModel(a, c.convertFlags, c.Out, func(o convert.Options) (*convert.Result, error) {
		return convert.Expand(a.ctx, c.In, c.Out, shape, c.Type, o)
	})
}

// Run makes a model with random weights.
func (c *modelRandomCmd) Run(a *app) error {
	if err := checkContextLength(c.Context); err != nil {
		return err
	}
	s := convert.Scheme{Like: c.Like, Layers: c.Layers, Type: c.Type, Seed: c.Seed, Vocab: c.Vocab, Context: c.Context}
	return makeModel(a, c.convertFlags, c.Out, func(o convert.Options) (*convert.Result, error) {
		return convert.Random(a.ctx, c.Out, s, o)
	})
}

func checkContextLength(n int) error {
	if n < 0 || n > 1<<20 {
		return tandem.Errorf("", tandem.Invalid, "--context-length %d: want 0 to %d", n, 1<<20)
	}
	return nil
}

// makeModel makes a model file and prints what it holds.
func makeModel[R interface{ Size() int64 }](a *app, c convertFlags, out string, do func(convert.Options) (R, error)) error {
	if err := device.CheckThreads("threads", c.Threads); err != nil {
		return err
	}
	threads := c.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	runtime.GOMAXPROCS(threads) // the arithmetic is Go's here; main leaves it fewer
	p := terminal.NewProgress(a.stderr, "writing "+roles.ModelName(out))
	r, err := do(convert.Options{Threads: threads, Force: c.Force, Progress: p.Step})
	p.End()
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	_, err = fmt.Fprintf(a.stdout, "%s, %v\n", memory.Bytes(r.Size()), r)
	return err
}
