package main

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/tandem-llm/tandem/app/bench/system"
	"github.com/tandem-llm/tandem/app/demo/expanded"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/cache"
)

// Shapes of the drafts of the suite ratio: they differ in width alone, so that the part of a pass that is not reading weights stays small.
const (
	ratioLayers = 4
	ratioHead   = 64   // channels of a head, in groups of two, as the shipped drafts have
	ratioMost   = 4096 // channels
)

// atRatio returns the shipped target, or the one that was named, expanded to the size of a real one, with the shipped draft for Go code
// expanded until its weights are want of the target's. One row's pass reads all weights, so its time is about want of the target's too.
func (c *benchSystemCmd) atRatio(ctx context.Context, a *app, want float64) (g system.Group, release func(), err error) {
	var made []*cache.Entry
	release = func() {
		for _, e := range made {
			e.Close()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	expand := func(source, like string) (string, error) {
		e, err := expanded.Get(ctx, expanded.Spec{Source: source, Like: like, Type: expanded.Type,
			Cache:  func() (*cache.Cache, error) { return start.OpenCache(c.CacheFolder) },
			Stderr: a.stderr, Tell: func(string) {}})
		if err != nil {
			return "", err
		}
		made = append(made, e)
		return e.Path, nil
	}
	g = system.Group{Target: c.Target, Sessions: 1}
	if g.Target == "" {
		if g.Target, err = find.Target(""); err != nil {
			return g, nil, err
		}
		if g.Target, err = expand(g.Target, expanded.Shape); err != nil {
			return g, nil, err
		}
	}
	file, err := os.Stat(g.Target)
	if err != nil {
		return g, nil, err
	}
	shipped, err := find.Shipped(models.Experts()[0])
	if err != nil {
		return g, nil, err
	}
	like, err := ratioShape(ctx, shipped[0], want*float64(file.Size()))
	if err != nil {
		return g, nil, err
	}
	draft, err := expand(shipped[0], like)
	g.Drafts = []string{draft}
	return g, release, err
}

// ratioShape returns the shape whose file comes nearest to so many bytes.
func ratioShape(ctx context.Context, source string, bytes float64) (best string, err error) {
	nearest := math.Inf(1)
	for d := 4 * ratioHead; d <= ratioMost; d += 2 * ratioHead {
		s := convert.Shape{Layers: ratioLayers, Dim: d, Heads: d / ratioHead, KVHeads: d / ratioHead / 2, FFN: 4 * d}
		size, err := convert.ExpandedSize(ctx, source, s, expanded.Type)
		if err != nil {
			return "", err
		}
		if off := math.Abs(math.Log(float64(size) / bytes)); off < nearest {
			nearest, best = off, fmt.Sprint(s)
		}
	}
	return best, nil
}
