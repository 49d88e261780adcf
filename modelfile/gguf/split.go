package gguf

import (
	"fmt"
	"math"
	"strings"

	"github.com/tandem-llm/tandem"
)

// A split model is a set of files NAME-00001-of-00003.gguf … as made by llama.cpp's gguf-split. Each states its
// number (split.no, from 0), how many files there are (split.count), and how many tensors they hold together
// (split.tensors.count); the first has the model's keys.
const (
	maxParts  = 1024
	splitKeys = "split."
)

// place is what a file says about the split: its number, from 0, the number of files, and the number of tensors in
// all files, -1 if not stated.
type place struct{ no, count, tensors int }

// place reads f's place; a model in a single file is file 0 of 1.
func (f *File) place() (place, error) {
	count, err := f.IntOr("split.count", 0, math.MaxUint16, 0)
	if err != nil || count <= 1 {
		return place{0, 1, -1}, err
	}
	if count > maxParts {
		return place{}, tandem.Errorf(op, tandem.Unsupported, "%s: key \"split.count\" is %d: want at most %d files", f.Path(), count,
			maxParts)
	}
	no, err := f.Int("split.no", 0, count-1)
	if err != nil {
		return place{}, err
	}
	tensors, err := f.IntOr("split.tensors.count", 0, math.MaxInt32, -1)
	return place{no, count, tensors}, err
}

// whole returns the whole model of f, which was opened by path: f itself or, for a split model, all its files, which it
// opens. f belongs to the result; on an error it is closed.
func (f *File) whole(path string, open func(path string) (*File, error)) (*File, error) {
	at, err := f.place()
	if err == nil && at.count == 1 {
		return f, nil
	}
	var parts []*File
	if err == nil {
		parts, err = f.siblings(path, at, open)
	}
	if err == nil {
		var all *File
		if all, err = join(parts, at.tensors); err == nil {
			return all, nil
		}
	}
	f.Close()
	for _, p := range parts {
		if p != nil {
			p.Close()
		}
	}
	return nil, err
}

// siblings opens the other files of f's model and returns all in order. After an error the caller closes those
// that are not nil.
func (f *File) siblings(path string, at place, open func(path string) (*File, error)) ([]*File, error) {
	parts := make([]*File, at.count)
	parts[at.no] = f
	ending := func(i int) string { return fmt.Sprintf("-%05d-of-%05d.gguf", i+1, at.count) }
	stem, ok := strings.CutSuffix(path, ending(at.no))
	if !ok {
		return parts, tandem.Errorf(op, tandem.Invalid,
			"%s is file %d of a model split into %d, the others are sought by its name: want one that ends in %q",
			f.Path(), at.no+1, at.count, ending(at.no))
	}
	for i := range parts {
		if i == at.no {
			continue
		}
		p, err := open(stem + ending(i))
		if err != nil {
			return parts, tandem.Errorf(op, tandem.KindOf(err), "file %d of the %d that the model was split into: %w", i+1, at.count, err)
		}
		parts[i] = p
		says, err := p.place()
		if err == nil {
			err = at.fits(i, says, p.Path())
		}
		if err != nil {
			return parts, err
		}
		if i > 0 {
			p.data, p.keys, p.keyAt = nil, nil, nil // the first file has the model's keys
		}
	}
	return parts, nil
}

// fits refuses file i if it states another number or another model.
func (p place) fits(i int, says place, path string) error {
	switch {
	case says.no != i || says.count != p.count:
		return tandem.Errorf(op, tandem.Corrupt, "%s says that it is file %d of %d: want %d of %d", path, says.no+1, says.count, i+1,
			p.count)
	case says.tensors != p.tensors:
		return tandem.Errorf(op, tandem.Corrupt, "%s counts %d tensors in all files: another of the files counts %d", path, says.tensors,
			p.tensors)
	}
	return nil
}

// join makes one File of the files of a split model, in order; tensors is their total number (-1: not
// stated). The keys about the split are left out, since the result is whole.
func join(parts []*File, tensors int) (*File, error) {
	first := parts[0]
	whole := &File{data: first.data, version: first.version, align: first.align, keyAt: map[string]int32{}, byName: map[string]int32{}}
	for _, k := range first.keys {
		if !strings.HasPrefix(k.Name, splitKeys) {
			whole.keyAt[k.Name] = int32(len(whole.keys))
			whole.keys = append(whole.keys, k)
		}
	}
	for _, f := range parts {
		whole.parts = append(whole.parts, f.parts...)
		for _, t := range f.tensors {
			if j, twice := whole.byName[t.Name]; twice {
				return nil, tandem.Errorf(op, tandem.Corrupt, "tensor %s is there twice, in %s and %s", short(t.Name),
					whole.tensors[j].part.path, f.Path())
			}
			whole.byName[t.Name] = int32(len(whole.tensors))
			whole.tensors = append(whole.tensors, t)
		}
	}
	if tensors >= 0 && tensors != len(whole.tensors) {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: key \"split.tensors.count\" is %d: the %d files hold %d tensors", first.Path(),
			tensors, len(parts), len(whole.tensors))
	}
	return whole, nil
}
