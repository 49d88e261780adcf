package gguf

import "io"

// Header reads and checks the header of one GGUF file of size bytes through src, of which it reads no more than the header needs, from the
// beginning on: the file may lie on a server. name is for messages. A file of a split model is taken alone, with the keys and tensors that
// it has. The caller owns src and keeps it open as long as it reads tensors. Errors as Open's, and those of src as Unavailable.
func Header(src io.ReaderAt, size int64, name string) (*File, error) {
	return openPart(&part{path: printable(name), src: src, size: size})
}
