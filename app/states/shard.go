package states

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	magic   = "TDMSTATE"
	version = 1

	prelude   = len(magic) + 4 + 4 // magic, version, length of the header
	align     = 64                 // of the arrays as a whole
	mostShard = 1 << 33            // bytes of a file that is read

	// What a shard takes beside its arrays, at most: for the bound of --max-size.
	perShard = 1024 + align + sha256.Size
	perText  = 160
)

// Shape describes the model of a shard, and the sizes of its arrays. All shards of a folder have the same.
type Shape struct {
	Name       string          `json:"name"` // as the model's file has it
	Identity   tandem.Identity `json:"identity"`
	Lineage    string          `json:"lineage"`
	Vocabulary string          `json:"vocabulary"` // fingerprint
	Layers     int             `json:"layers"`
	Dim        int             `json:"dim"`
	Vocab      int             `json:"vocab"`
	Taps       []int           `json:"taps"`
	Top        int             `json:"top"`
}

// tokenSize returns the bytes of a token in the arrays.
func (s *Shape) tokenSize() int64 { return int64(4 + 4 + s.Top*(4+2) + len(s.Taps)*s.Dim*2) }

// Kinds of texts.
const (
	KindText   = "text"   // a piece of a file
	KindAnswer = "answer" // a prompt and the target's own answer
	KindChat   = "chat"   // a finished chat
)

// Text describes the tokens of one text in a shard. They follow those of the text before.
type Text struct {
	Origin string `json:"origin"` // file and piece, or file and line, or the prompt's id
	Kind   string `json:"kind"`
	Held   bool   `json:"held"`   // not for training: to judge with
	Prompt int    `json:"prompt"` // tokens before the answer; 0 for plain text
	Tokens int    `json:"tokens"`
}

// place is where a text stands in the order of all: the number of texts before it, and of pieces of its own text.
type place struct {
	Text  int `json:"text"`
	Piece int `json:"piece"`
}

// Header is what a shard says of itself: its shape, its texts, and where they come from in the order of all texts.
type Header struct {
	Shape
	Tokens  int    `json:"tokens"`
	Texts   []Text `json:"texts"`
	TooLong int    `json:"too_long"` // chats that were skipped between these texts
	From    place  `json:"from"`
	Next    place  `json:"next"` // where the next shard begins
}

// Arrays are the data of a shard: a row for each token, of all texts one after the other.
type Arrays struct {
	IDs      []int32   // (tokens)
	LogSum   []float32 // (tokens): the logarithm of the sum of exp(logit) over the vocabulary
	TopIDs   []int32   // (tokens, top): the likeliest next tokens, best first
	TopProbs []uint16  // (tokens, top): their log-probabilities, logit − LogSum, as f16
	States   []uint16  // (tokens, taps, dim): as f16; what is too large is the largest f16
}

// cut keeps the first n rows.
func (a *Arrays) cut(s *Shape, n int) {
	a.IDs, a.LogSum, a.TopIDs, a.TopProbs = a.IDs[:n], a.LogSum[:n], a.TopIDs[:n*s.Top], a.TopProbs[:n*s.Top]
	a.States = a.States[:n*len(s.Taps)*s.Dim]
}

// add appends the rows of b.
func (a *Arrays) add(b *Arrays) {
	a.IDs, a.LogSum = append(a.IDs, b.IDs...), append(a.LogSum, b.LogSum...)
	a.TopIDs, a.TopProbs, a.States = append(a.TopIDs, b.TopIDs...), append(a.TopProbs, b.TopProbs...), append(a.States, b.States...)
}

// Shard is the content of one file of a folder.
type Shard struct {
	Header
	Arrays
}

// bytes returns the shard as a file.
func (s *Shard) bytes() ([]byte, error) {
	header, err := json.Marshal(&s.Header)
	if err != nil {
		return nil, err
	}
	for (prelude+len(header))%align != 0 {
		header = append(header, ' ')
	}
	b := bytes.NewBuffer(make([]byte, 0, prelude+len(header)+int(s.tokenSize())*s.Tokens+sha256.Size))
	b.WriteString(magic)
	for _, part := range []any{uint32(version), uint32(len(header)), header, s.IDs, s.LogSum, s.TopIDs, s.TopProbs, s.States} {
		if err := binary.Write(b, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256(b.Bytes())
	return append(b.Bytes(), sum[:]...), nil
}

// Read reads the shard at path. Errors: Invalid (no such file), Corrupt (damaged, or no shard), Unsupported (another version).
func Read(path string) (*Shard, error) {
	b, err := files.ReadFile(path, mostShard)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "%w", err)
	}
	s, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// parse takes a shard apart. The sum comes first: what it covers is as it was written.
func parse(b []byte) (*Shard, error) {
	damaged := func(format string, args ...any) error { return tandem.Errorf(op, tandem.Corrupt, format, args...) }
	if len(b) < prelude+sha256.Size || string(b[:len(magic)]) != magic {
		return nil, damaged("no shard of states: it does not begin with %s, or is too short", magic)
	}
	if v := binary.LittleEndian.Uint32(b[len(magic):]); v != version {
		return nil, tandem.Errorf(op, tandem.Unsupported, "version %d of states: want %d", v, version)
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, damaged("damaged: its sum is %x, and it says %x", got[:8], sum[:8])
	}
	n := int64(binary.LittleEndian.Uint32(b[len(magic)+4:]))
	if n > int64(len(body)-prelude) {
		return nil, damaged("a header of %d bytes in a file of %d", n, len(b))
	}
	s := &Shard{}
	if err := json.Unmarshal(body[prelude:prelude+int(n)], &s.Header); err != nil {
		return nil, damaged("its header: %w", err)
	}
	return s, s.fill(body[prelude+int(n):])
}

// fill reads the arrays, after a check that the header describes them.
func (s *Shard) fill(b []byte) error {
	tokens := 0
	for _, t := range s.Texts {
		if t.Tokens < 1 || t.Prompt < 0 || t.Prompt > t.Tokens || t.Tokens > math.MaxInt32 {
			return tandem.Errorf(op, tandem.Corrupt, "text %q has %d tokens, %d of them its prompt", t.Origin, t.Tokens, t.Prompt)
		}
		tokens += t.Tokens
	}
	few := func(n int) bool { return n >= 0 && n <= 1<<24 }
	if !few(s.Dim) || !few(s.Top) || tokens != s.Tokens || s.tokenSize()*int64(s.Tokens) != int64(len(b)) {
		return tandem.Errorf(op, tandem.Corrupt, "%d tokens of %d bytes, and %d tokens in its texts: the arrays have %d bytes", s.Tokens,
			s.tokenSize(), tokens, len(b))
	}
	n := s.Tokens
	s.Arrays = Arrays{IDs: make([]int32, n), LogSum: make([]float32, n), TopIDs: make([]int32, n*s.Top),
		TopProbs: make([]uint16, n*s.Top), States: make([]uint16, n*len(s.Taps)*s.Dim)}
	r := bytes.NewReader(b)
	var all error
	for _, to := range []any{s.IDs, s.LogSum, s.TopIDs, s.TopProbs, s.States} {
		all = errors.Join(all, binary.Read(r, binary.LittleEndian, to))
	}
	return all
}

// write writes the shard as a whole and returns its size.
func (s *Shard) write(path string) (int64, error) {
	b, err := s.bytes()
	if err == nil {
		err = room(path, int64(len(b)))
	}
	if err == nil {
		err = files.Replace(path, b)
	}
	return int64(len(b)), err
}

// fits returns Invalid for a shard that is not one of the model and taps of shape.
func (s *Shard) fits(path string, of *Shape) error {
	if s.Identity != of.Identity || s.Dim != of.Dim || s.Top != of.Top || !slices.Equal(s.Taps, of.Taps) {
		return tandem.Errorf(op, tandem.Invalid,
			"%s is of a model with identity %v, width %d, taps %v and top %d: want %v, %d, %v and %d, as this run has", path, s.Identity,
			s.Dim, s.Taps, s.Top, of.Identity, of.Dim, of.Taps, of.Top)
	}
	return nil
}

// textSize returns the most bytes that a text takes in a header.
func textSize(origin string) int64 { return perText + 6*int64(len(origin)) }
