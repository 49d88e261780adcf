package gguf

import (
	"io"
	"sync"
)

// Header reads and checks the header of one GGUF file of size bytes through src, of which it reads no more than the header needs, from the
// beginning on: the file may lie on a server. name is for messages. A file of a split model is taken alone, with the keys and tensors that
// it has. The caller owns src and keeps it open as long as it reads tensors. Errors as Open's, and those of src as Unavailable.
func Header(src io.ReaderAt, size int64, name string) (*File, error) {
	return openPart(&part{path: printable(name), src: src, size: size})
}

// lent are the parts that stand for files: see Lend. It is a global because paths, too, mean the same in the whole process.
var lent sync.Map

// Lend lets Open open src, of size bytes, at path as if a file lay there, until back is called. So whatever takes a path can look at a file
// that lies on a server, and nothing is left behind when the process is killed. shown stands for the path in messages. The caller owns src.
func Lend(path, shown string, src io.ReaderAt, size int64) (back func()) {
	lent.Store(path, part{path: printable(shown), src: src, size: size})
	return func() { lent.Delete(path) }
}
