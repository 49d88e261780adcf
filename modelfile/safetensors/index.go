package safetensors

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

const (
	indexEnding = ".index.json"
	maxIndex    = 64 << 20 // bytes
	maxShards   = 1024
)

func isIndex(path string) bool { return strings.HasSuffix(path, indexEnding) }

// openIndex opens the shards that the index at path lists. Its weight_map names the file of each tensor: all of them, and no others,
// must be there.
func openIndex(path string) (*File, error) {
	s, err := openSource(path)
	if err != nil {
		return nil, err
	}
	places, err := s.index()
	if err := cmp.Or(err, s.close()); err != nil {
		return nil, err
	}
	whole := &File{path: s.path, byName: map[string]int{}}
	for _, name := range slices.Sorted(maps.Keys(shardsOf(places))) {
		if err := whole.add(filepath.Join(filepath.Dir(path), name), name, places); err != nil {
			whole.Close()
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(places)) {
		if _, ok := whole.byName[name]; !ok {
			whole.Close()
			return nil, tandem.Errorf(op, tandem.Corrupt, "%s: tensor %s is not in %s, where the index has it", s.path, short(name),
				short(places[name]))
		}
	}
	return whole, nil
}

// index reads which file holds each tensor.
func (s *source) index() (map[string]string, error) {
	fail := func(format string, args ...any) (map[string]string, error) {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: %w", s.path, fmt.Errorf(format, args...))
	}
	if s.size > maxIndex {
		return nil, tandem.Errorf(op, tandem.Unsupported, "%s: an index of %d bytes: want at most %d", s.path, s.size, maxIndex)
	}
	var text struct {
		Places map[string]string `json:"weight_map"`
	}
	d := json.NewDecoder(io.NewSectionReader(s.at, 0, s.size))
	if err := d.Decode(&text); err != nil {
		return fail("the index is no JSON object with a weight_map of tensors and their files: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail("the index has more after its object, at byte %d", d.InputOffset())
	}
	if len(text.Places) == 0 || len(text.Places) > maxTensors {
		return fail("the index has a weight_map of %d tensors: want 1 to %d", len(text.Places), maxTensors)
	}
	for tensor, name := range text.Places {
		if filepath.Base(name) != name || strings.ContainsAny(name, `/\`) || !strings.HasSuffix(name, ".safetensors") {
			return fail("the index has tensor %s in file %s: want the name of a .safetensors file beside it", short(tensor), short(name))
		}
	}
	if n := len(shardsOf(text.Places)); n > maxShards {
		return fail("the index names %d files: want at most %d", n, maxShards)
	}
	return text.Places, nil
}

func shardsOf(places map[string]string) map[string]bool {
	names := map[string]bool{}
	for _, name := range places {
		names[name] = true
	}
	return names
}

// add opens a shard and adds its tensors.
func (f *File) add(path, name string, places map[string]string) error {
	shard, err := Open(path)
	if err != nil {
		return err
	}
	f.sources = append(f.sources, shard.sources...)
	for _, t := range shard.tensors {
		if places[t.Name] != name {
			return tandem.Errorf(op, tandem.Corrupt, "%s: tensor %s is in %s: the index has it in %s", f.path, short(t.Name), shard.path,
				short(places[t.Name]))
		}
		f.byName[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	return nil
}
