package system

import (
	"fmt"
	"strings"
)

// copied is a text that repeats itself with small changes, so that its continuation copies what it says.
type copied struct {
	kind string // of work that produces such text
	unit string // what is repeated: NAME and Name become each of names in turn; the prompt ends in the last unit, at endMark
	by   string // names, separated by spaces
}

// endMark is where a prompt of the class copy breaks off.
const endMark = "¦"

// copyPrompts returns the prompts of the class copy: edits of code, tables, quotations and agents' loops by turns. Each is text of the
// kind that the shipped target has learned; it is small, and copies only what is regular.
func copyPrompts() []benchPrompt {
	out := make([]benchPrompt, len(copies))
	for i, c := range copies {
		var b strings.Builder
		names := strings.Fields(c.by)
		for k, name := range names {
			title := strings.ToUpper(name[:1]) + name[1:]
			unit := strings.NewReplacer("NAME", name, "Name", title).Replace(c.unit)
			if before, after, _ := strings.Cut(unit, endMark); k < len(names)-1 {
				unit = before + after
			} else {
				unit = before
			}
			b.WriteString(unit)
		}
		out[i] = benchPrompt{ID: fmt.Sprintf("copy-%s-%02d", c.kind, i/4+1), Domain: setCopy, Prompt: b.String()}
	}
	return out
}

var copies = []copied{
	{"edit", `// Name returns the NAME of the field.
func (f *Field) Name() string {¦
	return f.NAME
}

// SetName sets the NAME of the field.
func (f *Field) SetName(NAME string) {
	f.NAME = NAME
}

`, "name title label value format"},
	{"table", `var tests = []struct {
	name string
	a, b, want int
	err error
}{¦
	{"add", 1, NAME, 3, nil},
	{"sub", 1, NAME, -1, nil},
	{"mul", 1, NAME, 2, nil},
	{"div", 1, NAME, 0, nil},
	{"mod", 1, NAME, 1, nil},
}

`, "2 3 4 5"},
	{"quotation", `Permission is hereby granted, free of charge, to¦ any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in
all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,

To repeat what it says above:

`, "first second"},
	{"agent", `// step: read NAME.go
package¦ main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Println(os.Args)
}

`, "name size mode time owner group"},

	{"edit", `    def get_NAME(self):
        """Return¦ the NAME of the object."""
        return self._NAME

    def set_NAME(self, NAME):
        """Set the NAME of the object."""
        self._NAME = NAME

`, "name title label value format"},
	{"table", `    0x0NAME, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0x7f,¦
`, "0 1 2 3 4 5 6 7"},
	{"quotation", `Name returns the NAME of¦ the file.
If the file is closed, it returns an error.
It is safe for concurrent use by multiple goroutines.

`, "name size mode time owner group"},
	{"agent", `>>> a = array('i', [1, 2, 3])
>>> a.NAME(¦)
array('i', [1, 2, 3])
`, "append extend insert remove reverse pop"},

	{"edit", `	if v, ok := m["NAME"]¦; ok {
		c.NAME = v
	}
`, "name size mode time owner"},
	{"table", `	{0x04NAME0, 0x04NAMEf, 1},¦
`, "0 1 2 3 4 5 6 7 8 9 a b"},
	{"quotation", `Return True if the NAME is¦ valid, False otherwise.
Raise ValueError if the argument is not a string.

`, "name size mode time"},
	{"agent", `>>> from collections import NAME
>>> c¦ = NAME()
>>> c
NAME()
>>> len(c)
0
`, "deque OrderedDict Counter ChainMap UserDict"},

	{"edit", `        if NAME is None:¦
            raise ValueError("no NAME given")
        if not isinstance(NAME, str):
            raise TypeError("NAME must be a string")
`, "name size mode time"},
	{"table", `	{"NAME",¦ "NAME.txt", 0644, nil},
`, "input output error config log cache lock socket data index"},
	{"agent", `func TestName(t *testing.T) {¦
	f, err := Open("testdata")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Name()
}

`, "Read Write Close Stat Sync"},
}
