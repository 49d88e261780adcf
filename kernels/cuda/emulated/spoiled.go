package emulated

import (
	"fmt"
	"io/fs"
	"strings"
	"testing/fstest"

	"github.com/tandem-llm/tandem/kernels/cuda/src"
)

// Spoiled returns the kernels' sources with now in place of every was, for an emulated GPU that gives wrong bits. Errors: the sources have
// no was.
func Spoiled(was, now string) (fs.FS, error) {
	names, err := fs.Glob(src.Files, "*")
	if err != nil {
		return nil, err
	}
	spoiled, found := fstest.MapFS{}, 0
	for _, name := range names {
		text, err := fs.ReadFile(src.Files, name)
		if err != nil {
			return nil, err
		}
		found += strings.Count(string(text), was)
		spoiled[name] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(string(text), was, now))}
	}
	if found == 0 || was == "" {
		return nil, fmt.Errorf("emulated GPU: no %q in the kernels' sources to put %q in its place", was, now)
	}
	return spoiled, nil
}

// Inexact is Spoiled with other last bits in the exponential function, on which attention and gates depend.
func Inexact() (fs.FS, error) { return Spoiled("0x1.5554dcp-3f", "0x1.5564dcp-3f") }
