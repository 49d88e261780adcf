// Package token turns text into the token ids of a model and back.
//
// One tokenizer is known: SentencePiece byte-pair encoding with byte fallback
// (tokenizer.ggml.model = "llama"), described in Kudo and Richardson, "SentencePiece", EMNLP 2018.
package token

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
)

const (
	op        = "token"
	spaceRune = '\u2581' // stands for a space within pieces
	space     = string(spaceRune)
	maxUser   = 256 // bytes of a user-defined token
)

// kind is a token's type, by its number in tokenizer.ggml.token_type.
type kind uint8

const (
	undefined   kind = iota
	normal           // a piece of text
	unknown          // prints nothing
	control          // steers the model: prints nothing, is never read out of text
	userDefined      // text that is always one token
	unused           // a piece of text
	single           // one byte, written <0xXX>
	kinds
)

// Vocab is a model's vocabulary and tokenizer. Immutable and safe for concurrent use.
type Vocab struct {
	model  string
	pieces []string
	scores []float32
	kinds  []kind

	bos, eos    tandem.Token // -1 for none
	ends        []tandem.Token
	addBOS      bool
	addEOS      bool
	spacePrefix bool

	ids     map[string]tandem.Token // of the pieces that text can become
	longest int                     // of those pieces, in bytes
	bytes   [256]tandem.Token
	inside  map[rune]bool // characters that some piece has right before a space
	user    *users        // nil for none
}

// Size returns the number of tokens.
func (v *Vocab) Size() int { return len(v.pieces) }

// Model returns the tokenizer's name, "llama".
func (v *Vocab) Model() string { return v.model }

// BOS returns the token that begins a text, if the model has one.
func (v *Vocab) BOS() (tandem.Token, bool) { return v.bos, v.bos >= 0 }

// EOS returns the token that ends a text, if the model has one.
func (v *Vocab) EOS() (tandem.Token, bool) { return v.eos, v.eos >= 0 }

// IsEnd reports whether t ends a generation: the end of the text, of a turn or of a message.
func (v *Vocab) IsEnd(t tandem.Token) bool {
	for _, e := range v.ends {
		if t == e {
			return true
		}
	}
	return false
}

// Piece returns t as it is in the file; "" for a token that is not in the vocabulary.
func (v *Vocab) Piece(t tandem.Token) string {
	if !v.has(t) {
		return ""
	}
	return v.pieces[t]
}

func (v *Vocab) has(t tandem.Token) bool { return t >= 0 && int(t) < len(v.pieces) }

// Bytes returns what t prints: nothing for control and unknown tokens and for those that are not in
// the vocabulary, otherwise text with its spaces, or a single byte of it.
func (v *Vocab) Bytes(t tandem.Token) []byte { return v.AppendBytes(nil, t) }

// AppendBytes appends what t prints to dst.
func (v *Vocab) AppendBytes(dst []byte, t tandem.Token) []byte {
	if !v.has(t) {
		return dst
	}
	piece := v.pieces[t]
	switch v.kinds[t] {
	case unknown, control:
		return dst
	case single:
		b, _ := parseByte(piece)
		return append(dst, b)
	}
	for {
		i := strings.Index(piece, space)
		if i < 0 {
			return append(dst, piece...)
		}
		dst = append(append(dst, piece[:i]...), ' ')
		piece = piece[i+len(space):]
	}
}

// FromGGUF reads the vocabulary of a model file and checks it; it keeps nothing of f. Errors:
// Unsupported for a tokenizer that tandem does not have, Corrupt for a vocabulary that makes no sense.
func FromGGUF(f *gguf.File) (*Vocab, error) {
	model, err := f.String("tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	if model != "llama" {
		return nil, tandem.Errorf(op, tandem.Unsupported, "%s: tokenizer.ggml.model is %.80q: want \"llama\" (SentencePiece)", f.Path(), model)
	}
	v := &Vocab{model: model}
	for _, read := range []func(*gguf.File) error{v.readPieces, v.readFlags, v.readSpecials, v.index} {
		if err := read(f); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func corrupt(f *gguf.File, format string, args ...any) error {
	return tandem.Errorf(op, tandem.Corrupt, "%s: "+format, append([]any{f.Path()}, args...)...)
}

func (v *Vocab) readPieces(f *gguf.File) (err error) {
	const tokens, scores, types = "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"
	if v.pieces, err = f.Strings(tokens); err != nil {
		return err
	}
	if len(v.pieces) == 0 {
		return corrupt(f, "%s is empty: want at least the 256 byte tokens", tokens)
	}
	if v.scores, err = f.Floats(scores); err != nil {
		return err
	}
	if len(v.scores) != len(v.pieces) {
		return corrupt(f, "%s has %d elements: want %d, as many as %s", scores, len(v.scores), len(v.pieces), tokens)
	}
	kindOf, err := f.Ints(types, 0, int(kinds)-1)
	if err != nil {
		return err
	}
	if len(kindOf) != len(v.pieces) {
		return corrupt(f, "%s has %d elements: want %d, as many as %s", types, len(kindOf), len(v.pieces), tokens)
	}
	v.kinds = make([]kind, len(kindOf))
	for i, k := range kindOf {
		v.kinds[i] = kind(k)
	}
	return nil
}

func (v *Vocab) readFlags(f *gguf.File) error {
	for _, flag := range []struct {
		key string
		def bool
		to  *bool
	}{
		{"tokenizer.ggml.add_bos_token", true, &v.addBOS},
		{"tokenizer.ggml.add_eos_token", false, &v.addEOS},
		{"tokenizer.ggml.add_space_prefix", true, &v.spacePrefix},
	} {
		var err error
		if *flag.to, err = f.BoolOr(flag.key, flag.def); err != nil {
			return err
		}
	}
	return nil
}

// readSpecials reads the ids that have a meaning. Files without ids for the beginning and end of a text
// mean SentencePiece's own, 1 and 2, if those are control tokens.
func (v *Vocab) readSpecials(f *gguf.File) error {
	id := func(name string, def int) (tandem.Token, error) {
		if def >= len(v.kinds) || def >= 0 && v.kinds[def] != control {
			def = -1
		}
		n, err := f.IntOr("tokenizer.ggml."+name+"_token_id", 0, len(v.pieces)-1, def)
		return tandem.Token(n), err
	}
	var eot, eom tandem.Token
	for _, s := range []struct {
		name string
		def  int
		to   *tandem.Token
	}{{"bos", 1, &v.bos}, {"eos", 2, &v.eos}, {"eot", -1, &eot}, {"eom", -1, &eom}} {
		var err error
		if *s.to, err = id(s.name, s.def); err != nil {
			return err
		}
	}
	for _, t := range []tandem.Token{v.eos, eot, eom} {
		if t >= 0 {
			v.ends = append(v.ends, t)
		}
	}
	if v.addBOS && v.bos < 0 {
		return corrupt(f, "a text begins with a token (add_bos_token) but tokenizer.ggml.bos_token_id is missing")
	}
	if v.addEOS && v.eos < 0 {
		return corrupt(f, "a text ends with a token (add_eos_token) but tokenizer.ggml.eos_token_id is missing")
	}
	return nil
}

// index builds what Encode looks up. Of equal pieces the one with the lowest id counts.
func (v *Vocab) index(f *gguf.File) error {
	v.ids = make(map[string]tandem.Token, len(v.pieces))
	v.inside = map[rune]bool{}
	for i := range v.bytes {
		v.bytes[i] = -1
	}
	var list []user
	for i, piece := range v.pieces {
		t := tandem.Token(i)
		switch v.kinds[i] {
		case unknown, control:
			continue
		case single:
			b, ok := parseByte(piece)
			if !ok {
				return corrupt(f, "token %d is %.80q of type byte: want <0x00> to <0xFF>", i, piece)
			}
			if v.bytes[b] < 0 {
				v.bytes[b] = t
			}
			continue
		case userDefined:
			if len(piece) > maxUser {
				return corrupt(f, "user-defined token %d has %d bytes: at most %d allowed", i, len(piece), maxUser)
			}
			if !utf8.ValidString(piece) { // it could be found within a character
				return corrupt(f, "user-defined token %d is %.80q: want valid UTF-8", i, piece)
			}
			if piece != "" {
				list = append(list, user{strings.ReplaceAll(piece, " ", space), t})
			}
			continue
		}
		if _, twice := v.ids[piece]; !twice && piece != "" {
			v.ids[piece] = t
			v.longest = max(v.longest, len(piece))
			noteInside(v.inside, piece)
		}
	}
	v.user = newUsers(list)
	for b, t := range v.bytes {
		if t < 0 {
			return corrupt(f, "the vocabulary has no token <0x%02X> of type byte: want all 256, so that any text can be encoded", b)
		}
	}
	return nil
}

// noteInside adds the characters of piece that have a space right behind them.
func noteInside(set map[rune]bool, piece string) {
	before := rune(-1)
	for _, r := range piece {
		if r == spaceRune && before >= 0 {
			set[before] = true
		}
		before = r
	}
}

// parseByte reads <0xXX>.
func parseByte(piece string) (byte, bool) {
	if len(piece) != 6 || piece[:3] != "<0x" || piece[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(piece[3:5], 16, 8)
	return byte(b), err == nil
}
