package gguf

import (
	"fmt"
	"strings"
)

// towers are parts of a file that read pictures or sound and have no part in continuing text, by the beginnings of their tensors' names:
// those of Ollama's files, and of llama.cpp's --mmproj files.
var towers = map[string]string{"v.": "a vision tower", "a.": "an audio tower", "mm.": "a projector of pictures or sound"}

// Tower says, in words, to which part that reads pictures or sound a tensor belongs; "" for all others.
func Tower(tensor string) string {
	first, _, _ := strings.Cut(tensor, ".")
	return towers[first+"."]
}

// TowerPart is a part of a file that reads pictures or sound.
type TowerPart struct {
	What    string // in words
	Tensors int
	Bytes   int64
}

// Towers lists the parts of f that read pictures or sound, in order of their first tensors.
func (f *File) Towers() (parts []TowerPart) {
	at := map[string]int{}
	for i := range f.tensors {
		t := &f.tensors[i]
		what := Tower(t.Name)
		if what == "" {
			continue
		}
		j, known := at[what]
		if !known {
			j, at[what] = len(parts), len(parts)
			parts = append(parts, TowerPart{What: what})
		}
		parts[j].Tensors++
		parts[j].Bytes += int64(t.size)
	}
	return parts
}

// String says what it is and how large.
func (p TowerPart) String() string {
	return fmt.Sprintf("%s: %d tensors, %.1f MiB", p.What, p.Tensors, float64(p.Bytes)/(1<<20))
}
