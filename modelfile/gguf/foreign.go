package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem"
)

// headBytes is how much of a file that is no GGUF file says what it is.
const headBytes = 64

// foreign says what a file is that begins with head and is no GGUF file, and what would be right.
func foreign(head []byte) string {
	text := strings.ToLower(strings.TrimLeft(string(head), "\ufeff \t\r\n"))
	for _, k := range []struct {
		at   int
		mark string
		is   string
	}{
		{0, "PK\x03\x04", "a zip archive, as PyTorch's files are: want the model as GGUF"},
		{0, "\x80\x02", "a pickle of PyTorch's: want the model as GGUF"},
		{0, "\x1f\x8b", "compressed with gzip: unpack it"},
		{0, "\x28\xb5\x2f\xfd", "compressed with zstd: unpack it"},
		{0, "\xfd7zXZ", "compressed with xz: unpack it"},
		{0, "BZh", "compressed with bzip2: unpack it"},
		{0, "7z\xbc\xaf", "a 7z archive: unpack it"},
		{0, "lmgg", oldModel}, {0, "fmgg", oldModel}, {0, "tjgg", oldModel},
		{0, "algg", "a LoRA adapter of llama.cpp's time before GGUF: want the model itself"},
		{4, "TFL3", "a model of TensorFlow Lite: want one as GGUF"},
		{0, "MZ", "a program, perhaps a llamafile: want the GGUF file alone, which is within it"},
		{0, "\x7fELF", "a program, perhaps a llamafile: want the GGUF file alone, which is within it"},
	} {
		if len(head) >= k.at && bytes.HasPrefix(head[k.at:], []byte(k.mark)) {
			return k.is
		}
	}
	switch {
	case strings.HasPrefix(text, "version https://git-lfs"):
		return "a pointer of Git LFS in place of the model: fetch that with \"git lfs pull\", or download the file itself"
	case strings.HasPrefix(text, "<!doctype") || strings.HasPrefix(text, "<html") || strings.HasPrefix(text, "<?xml"):
		return "a web page or an error message of the site that it comes from: download the file itself"
	case len(head) > 8 && head[8] == '{' && binary.LittleEndian.Uint64(head) < maxHeader:
		return "a safetensors file: want the model as GGUF, which llama.cpp's convert_hf_to_gguf.py makes of its folder"
	case isMatrix(head):
		return matrix
	case strings.HasPrefix(text, "{") || strings.HasPrefix(text, "["):
		return "JSON, such as a configuration or an error message of the site that it comes from: want the model's GGUF file"
	}
	return fmt.Sprintf("it begins with %q, want %q", head[:min(len(magic), len(head))], magic)
}

const (
	oldModel = "a model of llama.cpp's time before GGUF: want one as GGUF"
	matrix   = "an importance matrix (imatrix), which helps to quantise a model and is none: want the model's own file"
)

// isMatrix reports whether a file begins as llama.cpp's older importance matrices: a number of entries, then the first one's name with its
// length in front, a tensor's of a layer.
func isMatrix(head []byte) bool {
	if len(head) < 16 {
		return false
	}
	n := int(binary.LittleEndian.Uint32(head[4:]))
	name := head[8:min(len(head), 8+max(0, min(n, headBytes)))]
	return n > 4 && n < 256 && (bytes.HasPrefix(name, []byte("blk.")) || bytes.HasSuffix(name, []byte(".weight")))
}

// LanguageModel returns Unsupported, with what f is, if it is a file of another kind than a language model: general.type, the architecture
// and the keys of its kind say so, of which older files lack some.
func (f *File) LanguageModel() error {
	arch, _ := f.StringOr("general.architecture", "")
	kind, _ := f.StringOr("general.type", "")
	is := ""
	switch {
	case kind == "mmproj" || arch == "clip" || arch == "mmproj":
		is = fmt.Sprintf("architecture %q: a projector, a tower that reads pictures or sound, without a language model: want the "+
			"file of the language model, whose texts do not depend on it", arch)
	case kind == "adapter" || f.Has("adapter.type"):
		is = fmt.Sprintf("an adapter (LoRA) of a model of architecture %q: want the model itself, or both merged into one file; "+
			"tandem applies no adapters", arch)
	case kind == "imatrix" || f.Has("imatrix.chunk_count") || f.Has("imatrix.datasets"):
		is = matrix
	default:
		return nil
	}
	return tandem.Errorf(op, tandem.Unsupported, "%s: %s", f.Path(), is)
}
