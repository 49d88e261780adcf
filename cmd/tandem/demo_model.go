package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/cache"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/models/find"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/terminal"
)

const (
	demoShape = "1b"
	demoType  = "q8_0"

	// smallerShape is what the demo suggests where demoShape does not fit: 0.14 GB.
	smallerShape = "8,1024,16,8,4096"

	// demoProcesses is roughly the memory of the three processes without the target's weights, in bytes.
	demoProcesses = 400 << 20
)

// model returns the shipped target expanded, from the cache or made now. The caller closes it when no process uses it any more.
func (c *demoCmd) model(a *app) (*cache.Entry, error) {
	source, err := find.Target("")
	if err != nil {
		return nil, err
	}
	like, typ := or(c.Like, demoShape), or(c.Type, demoType)
	shape, err := convert.ParseShape(like)
	if err != nil {
		return nil, err
	}
	defer wide()()
	size, err := convert.ExpandedSize(a.ctx, source, shape, typ)
	if err != nil {
		return nil, err
	}
	names, err := engine.Identify(a.ctx, source, engine.Options{})
	if err != nil {
		return nil, err
	}
	a.say("the shipped %s is tiny: the demo runs it expanded to %s, %s, which computes the same function at the cost of a real model",
		roles.ModelName(source), like, engine.Bytes(size))
	file := strings.TrimSuffix(roles.ModelName(source), "-q8_0") + "-" + strings.ReplaceAll(like, ",", "x") + "-" + typ + ".gguf"
	from := fmt.Sprintf("%s of vocabulary %s, expanded to %s as %s by version %d", names.Identity, names.Vocabulary, like, typ,
		convert.ExpandVersion)
	r := cache.Request{Kind: cache.Models, File: file, From: from, Size: size, Tell: func(what string) { a.say("%s", what) }}
	shown := &terminal.Steps{To: a.stderr}
	r.Step = shown.Step
	r.Make = func(ctx context.Context, path string) error {
		progress := func(done, total int64) { shown.Step("making it", done, total) }
		_, err := convert.Expand(ctx, source, path, shape, typ, convert.Options{Progress: progress})
		return err
	}
	entry, err := c.get(a, r)
	shown.End()
	return entry, err
}

// get returns the model from the cache or, if that cannot be written, from the temporary directory.
func (c *demoCmd) get(a *app, r cache.Request) (*cache.Entry, error) {
	var unwritable *cache.Unwritable
	kept, err := cacheFlags{c.CacheFolder}.open()
	if err == nil {
		if err := c.enoughMemory(kept.Folder(), r.Size); err != nil {
			return nil, err
		}
		var entry *cache.Entry
		if entry, err = kept.Get(a.ctx, r); err == nil {
			return entry, nil
		}
	}
	switch {
	case tandem.KindOf(err) == tandem.Exhausted:
		return nil, smaller(err)
	case kept != nil && !errors.As(err, &unwritable):
		return nil, stoppedBy(a.ctx, err)
	}
	temporary := os.TempDir()
	a.say("%v: the model is made in %s, for this run alone (--cache DIR names another folder)", err, temporary)
	if err := c.enoughMemory(temporary, r.Size); err != nil {
		return nil, err
	}
	entry, err := cache.Temporary(a.ctx, temporary, r)
	if tandem.KindOf(err) == tandem.Exhausted {
		return nil, smaller(err)
	}
	return entry, stoppedBy(a.ctx, err)
}

// enoughMemory returns Exhausted if a model of size bytes, made in folder, could not be loaded. With a budget it is streamed.
func (c *demoCmd) enoughMemory(folder string, size int64) error {
	if c.MemoryBudget != nil {
		return nil
	}
	need := size + demoProcesses
	if _, memory, err := cache.Space(folder); err == nil && memory {
		need += size // the file is in memory too
	}
	if available := engine.AvailableMemory(); available.Bytes < need {
		return smaller(tandem.Errorf("", tandem.Exhausted, "the demo needs about %s of memory, and %s allows %s", engine.Bytes(need),
			available.By, engine.Bytes(max(0, available.Bytes))))
	}
	return nil
}

// smaller adds to err how to run the demo with less memory.
func smaller(err error) error {
	return tandem.Errorf("", tandem.Exhausted, "%w (a smaller shape: --like %s; a model of your own: --target FILE)", err, smallerShape)
}

// stoppedBy returns the reason why ctx has ended, if it has, in place of err.
func stoppedBy(ctx context.Context, err error) error {
	if gone := context.Cause(ctx); err != nil && gone != nil {
		return gone
	}
	return err
}
