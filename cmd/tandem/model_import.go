package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/modelfile/side"
)

type modelImportCmd struct {
	In     string `arg:"" name:"in" help:"Folder with *.safetensors and config.json, one such file, or a GGUF file of architecture eagle3 or dflash."`
	Out    string `arg:"" name:"out" help:"Side file to make (GGUF)."`
	Target string `help:"GGUF file of the target that the checkpoint was trained for." required:"" placeholder:"FILE" setting:"-"`
	Kind   string `help:"auto, medusa, ppd, dovetail, eagle, eagle3 or dflash." default:"auto" setting:"-"`
	Type   string `help:"Type of the matrices, as for quantize." default:"f16" placeholder:"TYPE" setting:"-"`
	Taps   string `help:"Hidden states that a draft reads, as numbers of layers: 2,16,29; -1 is the state after the final norm (default: what the checkpoint says)." placeholder:"LAYERS" setting:"-"`
	convertFlags
}

// Run makes a side file of a published checkpoint.
func (c *modelImportCmd) Run(a *app) error {
	o := convert.ImportOptions{Type: c.Type}
	if c.Kind != "auto" {
		o.Kind = side.Kind(c.Kind)
	}
	var err error
	if o.Taps, err = parseTaps(c.Taps); err != nil {
		return err
	}
	defer terminal.Wide()()
	if o.Target, err = modelinfo.SideTarget(a.ctx, c.Target); err != nil {
		return err
	}
	return makeModel(a, c.convertFlags, c.Out, func(opt convert.Options) (*convert.Result, error) {
		o.Options = opt
		r, notes, err := convert.Import(a.ctx, c.In, c.Out, o)
		if err != nil {
			return nil, err
		}
		for _, n := range notes {
			fmt.Fprintln(a.stderr, terminal.OneLine(n))
		}
		return r, nil
	})
}

// parseTaps reads numbers separated by commas; none for "".
func parseTaps(s string) (taps []int, err error) {
	if s == "" {
		return nil, nil
	}
	for _, f := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--taps %.40q: want numbers of layers, like 2,16,29", s)
		}
		taps = append(taps, n)
	}
	return taps, nil
}
