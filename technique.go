package tandem

import "strings"

// techniqueNames are the names of single techniques, by bit.
var techniqueNames = [...]string{"branches", "adaptive", "ahead"}

// ParseTechniques returns the set of the named techniques.
func ParseTechniques(names []string) (t Technique, err error) {
next:
	for _, name := range names {
		for bit, known := range techniqueNames {
			if name == known {
				t |= 1 << bit
				continue next
			}
		}
		return 0, invalid("without", "technique %.50q: want %s", name, strings.Join(techniqueNames[:], ", "))
	}
	return t, nil
}

// Names returns the names of the techniques in t; nil for none.
func (t Technique) Names() (names []string) {
	for bit, name := range techniqueNames {
		if t&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return names
}
