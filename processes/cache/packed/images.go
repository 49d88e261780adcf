package packed

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/roles"
)

// leastImage is the least size in bytes of packed weights that are kept: fewer are packed in a tenth of a second.
const leastImage = 64 << 20

// Images keeps packed weights that fit into memory, so that the next start reads them. It is roles.Kept.
type Images struct {
	Cache func() (*cache.Cache, error)     // opens the cache
	Say   func(format string, args ...any) // tells the user a line
	Least int64                            // bytes of weights that are kept at least; 0: leastImage
}

// Find implements engine.Images.
func (p Images) Find(i *engine.Image) (path string, free func()) {
	c, r, ok := p.request(i)
	if !ok {
		return "", nil
	}
	e, why := c.Find(r)
	if why != nil {
		p.Refused(i, why)
	}
	if e == nil {
		return "", nil
	}
	return e.Path, func() { e.Close() }
}

// Refused implements engine.Images.
func (p Images) Refused(i *engine.Image, why error) {
	p.Say("%s is packed again, since what is kept of it cannot be used: %v", roles.ModelName(i.Model), why)
}

// Keep implements roles.Kept. A cache in memory keeps nothing: there the weights would take memory twice.
func (p Images) Keep(ctx context.Context, i *engine.Image) {
	c, r, ok := p.request(i)
	if !ok {
		return
	}
	if _, inMemory, err := cache.Space(c.Folder()); err != nil || inMemory {
		return
	}
	r.Make = i.Write
	e, err := c.Get(ctx, r)
	if err == nil {
		err = e.Close()
	}
	if err != nil && ctx.Err() == nil && tandem.KindOf(err) != tandem.Canceled {
		p.Say("the packed weights of %s are not kept, so the next start packs them again: %v", roles.ModelName(i.Model), err)
	}
}

// request returns the cache and what is asked of it; ok is false for weights that are not kept.
func (p Images) request(i *engine.Image) (c *cache.Cache, r cache.Request, ok bool) {
	least := p.Least
	if least == 0 {
		least = leastImage
	}
	if i.Bytes() < least {
		return nil, r, false
	}
	c, err := p.Cache()
	if err != nil {
		return nil, r, false
	}
	return c, cache.Request{Kind: cache.Packed, File: roles.ModelName(i.Model) + ".weights", From: i.For, Size: i.Bytes(),
		Check: i.Check}, true
}
