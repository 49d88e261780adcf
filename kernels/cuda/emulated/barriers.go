package emulated

import (
	"bufio"
	"bytes"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Barrier is a line of the sources with a __syncthreads or __syncwarp.
type Barrier struct {
	File string
	Line int // from 1
}

var waits = regexp.MustCompile(`__sync(threads|warp)\s*\(`)

// Barriers returns the barriers of sources, in order of file and line, for Options.Drop.
func Barriers(sources fs.FS) ([]Barrier, error) {
	names, err := fs.Glob(sources, "*")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []Barrier
	for _, name := range names {
		text, err := fs.ReadFile(sources, name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for n := 1; lines.Scan(); n++ {
			code, _, _ := strings.Cut(lines.Text(), "//")
			if waits.MatchString(code) {
				all = append(all, Barrier{name, n})
			}
		}
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
