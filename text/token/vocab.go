// Package token turns text into the token ids of a model and back.
//
// Three tokenizers are known: SentencePiece byte-pair encoding with byte fallback
// (tokenizer.ggml.model = "llama"), described in Kudo and Richardson, "SentencePiece", EMNLP 2018;
// byte-level byte-pair encoding with merges and a pre-tokenizer ("gpt2"), see bpe; and merges of SentencePiece's pieces ("gemma4").
package token

import (
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const (
	op        = "token"
	spaceRune = '\u2581' // stands for a space within pieces
	space     = string(spaceRune)

	modelBytes = "gpt2" // tokenizer.ggml.model of byte-level vocabularies
	maxText    = 256    // bytes of a token that is found in writing
)

// kind is a token's type, by its number in tokenizer.ggml.token_type.
type kind uint8

const (
	undefined   kind = iota
	normal           // a piece of text
	unknown          // prints nothing
	control          // steers the model: prints nothing, is read out of text by EncodeWithControl alone
	userDefined      // text that is always one token
	unused           // a piece of text
	single           // one byte, written <0xXX>
	kinds
)

// Vocab is a model's vocabulary and tokenizer. Immutable but for a cache, and safe for concurrent use.
type Vocab struct {
	model  string
	notes  []string  // what the file lacks
	pieces []string  // as they are in the file
	prints []string  // what they print
	scores []float32 // nil without
	kinds  []kind

	infill      infill
	bos, eos    tandem.Token   // -1 for none
	declared    []tandem.Token // eos, eot and eom, as far as the file has them
	ends        []tandem.Token // those and what else ends a generation
	inTurns     []tandem.Token // markers that look like ends but are none
	addBOS      bool
	addEOS      bool
	spacePrefix bool

	ids     func() map[string]tandem.Token // of the pieces that text can become: SentencePiece's as they are, bytes otherwise. See index
	foreign map[tandem.Token]bool          // text in a byte-level vocabulary that is not written in the alphabet: no text becomes it
	longest int                            // of the others, in bytes
	bytes   [256]tandem.Token              // by byte; a byte that the vocabulary lacks has the unknown token, or -1
	control *texts                         // control and unknown tokens
	user    *texts                         // user-defined tokens
	written *texts                         // all of these
	marks   *texts                         // of these: the markers
	others  *texts                         // of user: those that are none
	strips  map[tandem.Token]sides         // the tokens that take white space beside them with them
	joins   *joins                         // nil for byte-level vocabularies
	bpe     *bpe                           // nil for a vocabulary without merges
	cache   *cache
	share   [256]float64 // what a byte adds to AtLeast

	begin *beginnings   // for Firm
	print func() uint64 // Fingerprint
}

// Size returns the number of tokens.
func (v *Vocab) Size() int { return len(v.pieces) }

// byteLevel reports whether pieces are bytes in GPT-2's alphabet, not characters with U+2581 for a space.
func (v *Vocab) byteLevel() bool { return v.model == modelBytes }

// Model returns the tokenizer's name, "llama", "gpt2" or "gemma4".
func (v *Vocab) Model() string { return v.model }

// Pre returns the name of the pre-tokenizer, "" for a tokenizer without one.
func (v *Vocab) Pre() string {
	if !v.byteLevel() {
		return ""
	}
	return v.bpe.pre.names[0]
}

// Notes returns a line for each key that the file lacks although nearly all have it, and says what stands in for it. v owns the lines.
func (v *Vocab) Notes() []string { return v.notes }

func (v *Vocab) missing(key, instead string) { v.notes = append(v.notes, key+" is missing: "+instead) }

// BOS returns the token that begins a text, if the model has one.
func (v *Vocab) BOS() (tandem.Token, bool) { return v.bos, v.bos >= 0 }

// EOS returns the token that ends a text, if the model has one.
func (v *Vocab) EOS() (tandem.Token, bool) { return v.eos, v.eos >= 0 }

// IsEnd reports whether t ends a generation. Such tokens are the file's ends of a text, a turn or a message; markers that well-known
// models end with; the marker with which the chat template ends the assistant's turn (WithTemplate).
func (v *Vocab) IsEnd(t tandem.Token) bool { return slices.Contains(v.ends, t) }

// Piece returns t as it is in the file; "" for a token that is not in the vocabulary.
func (v *Vocab) Piece(t tandem.Token) string {
	if !v.has(t) {
		return ""
	}
	return v.pieces[t]
}

func (v *Vocab) has(t tandem.Token) bool { return t >= 0 && int(t) < len(v.pieces) }

// Bytes returns what t prints: nothing for control and unknown tokens and for ids outside the
// vocabulary, otherwise text with its spaces, or a single byte of it.
func (v *Vocab) Bytes(t tandem.Token) []byte { return v.AppendBytes(nil, t) }

// AppendBytes appends what t prints to dst.
func (v *Vocab) AppendBytes(dst []byte, t tandem.Token) []byte {
	if !v.has(t) {
		return dst
	}
	return append(dst, v.prints[t]...)
}

// Open reads the vocabulary of the model file at path alone, as FromGGUF does.
func Open(path string) (*Vocab, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return FromGGUF(f)
}

// read are the vocabularies of this process that somebody still holds (weak.Pointer[Vocab]), by their files' stamps: a start looks at one
// file many times, and a vocabulary of 150,000 tokens takes .1 to .2 s. It is a global because the same file has the same vocabulary.
var read sync.Map

// FromGGUF reads the vocabulary of a model file and checks it; it keeps nothing of f. While a vocabulary of the same unchanged file is in
// use, it is that one. GGUF's description calls all keys but the tokenizer's
// model and tokens optional; Notes says what stands in for those that are missing. A "gpt2" file
// without tokenizer.ggml.pre, as files from before May 2024 are, gets the pre-tokenizer "default", as in
// llama.cpp: the model's own may cut numbers and punctuation differently, which costs some quality.
// Errors: Unsupported for a file of another kind than a language model, and for a tokenizer or pre-tokenizer that tandem does not have,
// Corrupt for an inconsistent vocabulary.
func FromGGUF(f *gguf.File) (*Vocab, error) {
	if err := f.LanguageModel(); err != nil {
		return nil, err
	}
	stamp, unsure := f.Stamp()
	if p, ok := read.Load(stamp); ok && unsure == nil {
		if v := p.(weak.Pointer[Vocab]).Value(); v != nil {
			return v, nil
		}
	}
	v, err := fromGGUF(f)
	if err == nil && unsure == nil {
		p := weak.Make(v)
		read.Store(stamp, p)
		runtime.AddCleanup(v, func(stamp string) { read.CompareAndDelete(stamp, p) }, stamp)
	}
	return v, err
}

func fromGGUF(f *gguf.File) (*Vocab, error) {
	model, err := f.String("tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	v := &Vocab{model: model, cache: newCache(), begin: new(beginnings)}
	steps := []func(*gguf.File) error{v.readPieces, v.index}
	switch model {
	case "llama":
		steps = append(steps, v.readScores)
	case modelBytes:
		steps = append(steps, v.readBPE)
	case "gemma4":
		steps = append(steps, v.readPieceMerges)
	default:
		return nil, tandem.Errorf(op, tandem.Unsupported,
			"%s: tokenizer.ggml.model is %.80q: want \"llama\" (SentencePiece), \"gpt2\" (byte-level) or \"gemma4\" (merges of pieces)",
			f.Path(), model)
	}
	for _, step := range append(steps, v.readStrips, v.readFlags, v.readSpecials, v.readMarkers, v.readInfill, v.needBytes) {
		if err := step(f); err != nil {
			return nil, err
		}
	}
	v.shareOut()
	v.print = sync.OnceValue(v.fingerprint)
	return v, nil
}

func corrupt(f *gguf.File, format string, args ...any) error {
	return tandem.Errorf(op, tandem.Corrupt, "%s: "+format, append([]any{f.Path()}, args...)...)
}

func (v *Vocab) readPieces(f *gguf.File) (err error) {
	const tokens, types = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
	if v.pieces, err = f.Strings(tokens); err != nil {
		return err
	}
	if len(v.pieces) == 0 {
		return corrupt(f, "%s is empty: want at least the 256 byte tokens", tokens)
	}
	if !f.Has(types) {
		return v.guessKinds(f)
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

// guessKinds gives the tokens types if the file has none: <0xXX> are bytes of a vocabulary of characters, the tokens with special ids are
// control tokens or unknown, and all others are text.
func (v *Vocab) guessKinds(f *gguf.File) error {
	v.missing("tokenizer.ggml.token_type", "tokens with a special id count as control tokens, <0xXX> as bytes and all others as text")
	v.kinds = make([]kind, len(v.pieces))
	for i, piece := range v.pieces {
		v.kinds[i] = normal
		if _, ok := parseByte(piece); ok && !v.byteLevel() {
			v.kinds[i] = single
		}
	}
	for _, s := range []struct {
		name, piece string // piece: that of SentencePiece's usual id
		id          int
		kind        kind
	}{{"bos", "<s>", 1, control}, {"eos", "</s>", 2, control}, {"eot", "", -1, control}, {"eom", "", -1, control},
		{"unknown", "<unk>", 0, unknown}} {
		if v.byteLevel() || s.id >= len(v.pieces) || s.id >= 0 && v.pieces[s.id] != s.piece {
			s.id = -1
		}
		id, err := f.IntOr("tokenizer.ggml."+s.name+"_token_id", 0, len(v.pieces)-1, s.id)
		if err != nil {
			return err
		}
		if id >= 0 && v.kinds[id] == normal {
			v.kinds[id] = s.kind
		}
	}
	return nil
}

func (v *Vocab) readScores(f *gguf.File) (err error) {
	const scores = "tokenizer.ggml.scores"
	if !f.Has(scores) {
		v.missing(scores, "all pieces count as equally likely, so texts are cut otherwise than the model has learned")
		v.scores = make([]float32, len(v.pieces))
		return nil
	}
	if v.scores, err = f.Floats(scores); err != nil {
		return err
	}
	if len(v.scores) != len(v.pieces) {
		return corrupt(f, "%s has %d elements: want %d, as many as tokenizer.ggml.tokens", scores, len(v.scores), len(v.pieces))
	}
	return nil
}

func (v *Vocab) readFlags(f *gguf.File) error {
	for _, flag := range []struct {
		key string
		def bool
		to  *bool
	}{
		{"tokenizer.ggml.add_bos_token", v.bpe == nil || v.bpe.pre.addBOS, &v.addBOS},
		{"tokenizer.ggml.add_eos_token", false, &v.addEOS},
		{"tokenizer.ggml.add_space_prefix", v.bpe == nil, &v.spacePrefix},
	} {
		if flag.to == &v.spacePrefix && v.byteLevel() {
			continue // byte-level texts never begin with an added space
		}
		var err error
		if *flag.to, err = f.BoolOr(flag.key, flag.def); err != nil {
			return err
		}
	}
	return nil
}

// readSpecials reads the special ids. SentencePiece files without ids for the beginning and end of a text
// get SentencePiece's, 1 and 2, if those are control tokens; those with merges have no such default.
func (v *Vocab) readSpecials(f *gguf.File) error {
	id := func(name string, def int) (tandem.Token, error) {
		if def >= len(v.kinds) || def >= 0 && (v.kinds[def] != control || v.bpe != nil) {
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
			v.declared = append(v.declared, t)
		}
	}
	if v.bos < 0 && v.bpe != nil && !f.Has("tokenizer.ggml.add_bos_token") {
		v.addBOS = false // the pre-tokenizer's default, for models that have one
	}
	if v.addBOS && v.bos < 0 {
		return corrupt(f, "a text begins with a token (add_bos_token) but tokenizer.ggml.bos_token_id is missing")
	}
	if v.addEOS && v.eos < 0 {
		return corrupt(f, "a text ends with a token (add_eos_token) but tokenizer.ggml.eos_token_id is missing")
	}
	return nil
}
