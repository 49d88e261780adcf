package gguf

import (
	"io"
	"io/fs"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Builtin begins the path of a file that the program carries: "builtin:" and its name without the ending .gguf. Such a path means
// the same in every process of the same program, so it can be passed to a child like any other. A file on disk whose
// name begins with it is opened as "./builtin:…".
const Builtin = "builtin:"

// carried are the files that the program carries.
var carried fs.FS

// Carry lets Open open the files in the root folder of files, as Builtin followed by their names without the ending .gguf. They must
// implement io.ReaderAt and never change. The program's main calls it at most once, before the first Open. It is a global because paths,
// too, mean the same in the whole process.
func Carry(files fs.FS) { carried = files }

// Carries reports whether the program carries the file of that name (with its ending), and returns its path for Open.
func Carries(name string) (path string, ok bool) {
	if carried == nil {
		return "", false
	}
	_, err := fs.Stat(carried, name)
	return Builtin + strings.TrimSuffix(name, ending), err == nil
}

// ReadCarried returns the contents of a file that the program carries, by its whole name. Errors: fs.ErrNotExist if it carries no such
// file.
func ReadCarried(name string) ([]byte, error) {
	if carried == nil {
		return nil, &fs.PathError{Op: "read", Path: Builtin + name, Err: fs.ErrNotExist}
	}
	return fs.ReadFile(carried, name)
}

const ending = ".gguf"

// openBuiltin opens a file that the program carries, through io.ReaderAt, so that only what is read is copied.
func openBuiltin(name string) (*File, error) {
	shown := printable(Builtin + name)
	if carried == nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: this program carries no models: want the path of a GGUF file", shown)
	}
	file, err := carried.Open(name + ending)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: this program carries %s: want one of them, or the path of a GGUF file", shown,
			listed())
	}
	st, err := file.Stat()
	src, ok := file.(io.ReaderAt)
	if err != nil || !ok {
		file.Close()
		return nil, tandem.Errorf(op, tandem.Unavailable, "%s: cannot be read: %T, %v", shown, file, err)
	}
	return openPart(&part{path: shown, src: src, size: st.Size()}) // nothing to close: the bytes are part of the program
}

// listed names the files that the program carries.
func listed() string {
	names, err := fs.Glob(carried, "*"+ending)
	if err != nil || len(names) == 0 {
		return "no models"
	}
	for i, name := range names {
		names[i] = Builtin + strings.TrimSuffix(name, ending)
	}
	return strings.Join(names, ", ")
}
