// Package expanded makes the model of tandem demo: the shipped target, which is tiny, expanded to the size of a real one.
package expanded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/roles"
)

// The defaults of Spec.Like and Spec.Type.
const (
	Shape = "1b"
	Type  = "q8_0"
)

const (
	// smallerShape is what the demo suggests where Shape does not fit: 0.14 GB.
	smallerShape = "8,1024,16,8,4096"

	// processes is roughly the memory of the three processes without the target's weights, in bytes.
	processes = 400 << 20
)

// Spec says which model to make, and where.
type Spec struct {
	Source     string                       // path of the shipped target
	Like, Type string                       // shape and type of weights, as model expand and quantize have them
	Cache      func() (*cache.Cache, error) // where it is kept; with an error, the temporary directory
	Streams    bool                         // a target that does not fit into memory is streamed
	Stderr     io.Writer                    // for progress
	Tell       func(line string)            // gets lines for the user; not nil
}

// Get returns the model from the cache, or makes it, which may take minutes. The caller closes it when no process uses it any more. Errors:
// Exhausted for too little memory or disk; those of shape, type and source; ctx's cause.
func Get(ctx context.Context, c Spec) (*cache.Entry, error) {
	shape, err := convert.ParseShape(c.Like)
	if err != nil {
		return nil, err
	}
	defer terminal.Wide()()
	size, err := convert.ExpandedSize(ctx, c.Source, shape, c.Type)
	if err != nil {
		return nil, err
	}
	names, err := engine.Identify(ctx, c.Source, engine.Options{})
	if err != nil {
		return nil, err
	}
	c.Tell(fmt.Sprintf("the shipped %s is tiny: the demo runs it expanded to %s, %s, which computes the same function at the cost of a "+
		"real model", roles.ModelName(c.Source), c.Like, memory.Bytes(size)))
	file := strings.TrimSuffix(roles.ModelName(c.Source), "-q8_0") + "-" + strings.ReplaceAll(c.Like, ",", "x") + "-" + c.Type + ".gguf"
	from := fmt.Sprintf("%s of vocabulary %s, expanded to %s as %s by version %d", names.Identity, names.Vocabulary, c.Like, c.Type,
		convert.ExpandVersion)
	r := cache.Request{Kind: cache.Models, File: file, From: from, Size: size, Tell: c.Tell}
	shown := &terminal.Steps{To: c.Stderr}
	r.Step = shown.Step
	r.Make = func(ctx context.Context, path string) error {
		progress := func(done, total int64) { shown.Step("making it", done, total) }
		_, err := convert.Expand(ctx, c.Source, path, shape, c.Type, convert.Options{Progress: progress})
		return err
	}
	entry, err := c.get(ctx, r)
	shown.End()
	return entry, err
}

// get returns the model from the cache or, if that cannot be written, from the temporary directory.
func (c Spec) get(ctx context.Context, r cache.Request) (*cache.Entry, error) {
	var unwritable *cache.Unwritable
	kept, err := c.Cache()
	if err == nil {
		if err := c.enoughMemory(kept.Folder(), r.Size); err != nil {
			return nil, err
		}
		var entry *cache.Entry
		if entry, err = kept.Get(ctx, r); err == nil {
			return entry, nil
		}
	}
	switch {
	case tandem.KindOf(err) == tandem.Exhausted:
		return nil, smaller(err)
	case kept != nil && !errors.As(err, &unwritable):
		return nil, stoppedBy(ctx, err)
	}
	temporary := os.TempDir()
	c.Tell(fmt.Sprintf("%v: the model is made in %s, for this run alone (--cache DIR names another folder)", err, temporary))
	if err := c.enoughMemory(temporary, r.Size); err != nil {
		return nil, err
	}
	entry, err := cache.Temporary(ctx, temporary, r)
	if tandem.KindOf(err) == tandem.Exhausted {
		return nil, smaller(err)
	}
	return entry, stoppedBy(ctx, err)
}

// enoughMemory returns Exhausted if a model of size bytes, made in folder, could not be loaded. With a budget it is streamed.
func (c Spec) enoughMemory(folder string, size int64) error {
	if c.Streams {
		return nil
	}
	need := size + processes
	if _, memory, err := cache.Space(folder); err == nil && memory {
		need += size // the file is in memory too
	}
	if available := memory.Free(); available.Bytes < need {
		return smaller(tandem.Errorf("", tandem.Exhausted, "the demo needs about %s of memory, and %s allows %s", memory.Bytes(need),
			available.By, memory.Bytes(max(0, available.Bytes))))
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
