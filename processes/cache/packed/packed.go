// Package packed keeps packed weights, from which passes stream, as files in the cache.
package packed

import (
	"context"
	"io"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Keeper makes packed files and finds those that are there.
type Keeper struct {
	Cache  func() (*cache.Cache, error)     // opens the cache; called for each file
	Say    func(format string, args ...any) // tells the user a line
	Stderr io.Writer                        // for the progress of packing
}

// Keep is stream.Config.Keep. Where no file can be kept, it says why.
func (p Keeper) Keep(ctx context.Context, r stream.Request) (string, func() error, error) {
	kept, err := p.Cache()
	if err != nil {
		return p.without(ctx, err)
	}
	if _, inMemory, err := cache.Space(kept.Folder()); err == nil && inMemory {
		return p.without(ctx, tandem.Errorf("", tandem.Exhausted, "the cache %s is itself in memory, where the copy would take %s "+
			"besides: want a folder on a disk, --cache DIR", kept.Folder(), memory.Bytes(r.Bytes)))
	}
	file := roles.ModelName(r.Model) + ".packed"
	entry, err := kept.Get(ctx, cache.Request{Kind: cache.Packed, File: file, From: r.Key, Size: r.Bytes, Check: r.Check, Waited: r.Waited,
		Tell: func(what string) { p.Say("%s", what) }, Make: func(ctx context.Context, path string) error {
			bar := terminal.NewProgress(p.Stderr, "packing "+terminal.Shown(roles.ModelName(r.Model)))
			defer bar.End()
			return r.Make(ctx, path, bar.Step)
		}})
	if err != nil {
		return p.without(ctx, err)
	}
	if entry.Made {
		p.Say("packed %s for streaming: %s in %s", roles.ModelName(r.Model), memory.Bytes(r.Bytes), entry.Path)
	}
	return entry.Path, entry.Close, nil
}

// without goes on without a packed file, unless ctx has ended or the model's own file is at fault.
func (p Keeper) without(ctx context.Context, err error) (string, func() error, error) {
	if ctx.Err() != nil || tandem.KindOf(err) == tandem.Corrupt {
		return "", nil, err
	}
	p.Say("no packed copy of the target can be kept, so every pass packs what it streams anew, which takes about a core: %v", err)
	return "", nil, nil
}
