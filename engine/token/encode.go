package token

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// Encode turns text into tokens; special adds the tokens that begin and end a text if the model
// wants them. Any bytes will do: text in no piece becomes the tokens of its bytes. (Some byte-level
// vocabularies lack bytes that never or hardly ever occur in UTF-8: such a byte becomes the unknown token,
// or nothing without one, as in other engines.) Control tokens are never recognised in text;
// user-defined tokens are, the leftmost first and of those the longest. With SentencePiece a U+2581 in
// text cannot be told from a space. The time is O(n log n) in the length of the text.
func (v *Vocab) Encode(text string, special bool) []tandem.Token {
	return v.encode(nil, text, special)
}

// EncodeWithControl is Encode for a conversation rendered by a template: control tokens written in
// text are recognised, before user-defined ones, the leftmost first and of those the longest. So whoever
// wrote a part of text can steer the model. A SentencePiece text begins anew, with an added space, after each
// control token.
func (v *Vocab) EncodeWithControl(text string, special bool) []tandem.Token {
	return v.encode(v.control, text, special)
}

func (v *Vocab) encode(control *texts, text string, special bool) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4)}
	if special && v.addBOS {
		e.out = append(e.out, v.bos)
	}
	e.cut(control, text, e.plain)
	if special && v.addEOS {
		e.out = append(e.out, v.eos)
	}
	return e.out
}

// encoder is the state of one Encode.
//
// A text is cut at control tokens, if they are wanted, then at user-defined ones. The text between them is cut into
// words that no merge can cross: by the pre-tokenizer or, without one, between two characters that stand
// side by side in no piece.
type encoder struct {
	v    *Vocab
	out  []tandem.Token
	word string
	syms []symbol
	heap []pair
}

const maxWord = 1 << 28 // bytes; longer words are cut, so that offsets fit

// cut emits the tokens that are written in s and passes the text between them to rest.
func (e *encoder) cut(tokens *texts, s string, rest func(string)) {
	for s != "" {
		at, id, n := tokens.find(s)
		if at > 0 {
			rest(s[:at])
		}
		if n > 0 {
			e.out = append(e.out, id)
		}
		s = s[at+n:]
	}
}

// plain encodes text without control tokens; it is not empty.
func (e *encoder) plain(text string) {
	if !e.v.byteLevel() {
		text = e.v.normalize(text)
	}
	e.cut(e.v.user, text, e.words)
}

func (v *Vocab) normalize(text string) string {
	var b strings.Builder
	b.Grow(len(text) + (len(space)-1)*strings.Count(text, " ") + len(space))
	if v.spacePrefix {
		b.WriteString(space)
	}
	for {
		i := strings.IndexByte(text, ' ')
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		b.WriteString(space)
		text = text[i+1:]
	}
}

func (e *encoder) words(s string) {
	if e.v.byteLevel() {
		split(s, e.v.bpe.pre.stages, e.encodeWord)
		return
	}
	from, before := 0, rune(-1)
	for i, r := range s {
		if i > from && !e.v.joins.has(before, r) {
			e.encodeWord(s[from:i])
			from = i
		}
		before = r
	}
	if from < len(s) {
		e.encodeWord(s[from:])
	}
}

// encodeWord encodes a word, which is not empty.
func (e *encoder) encodeWord(word string) {
	if len(word) > cacheWord {
		for len(word) > maxWord {
			e.wordTokens(word[:maxWord])
			word = word[maxWord:]
		}
		e.wordTokens(word)
		return
	}
	slot := e.v.cache.slot(word)
	if c := slot.Load(); c != nil && c.word == word {
		e.out = append(e.out, c.tokens...)
		return
	}
	from := len(e.out)
	e.wordTokens(word)
	slot.Store(newCached(word, e.out[from:]))
}

func (e *encoder) wordTokens(word string) {
	if b := e.v.bpe; b != nil && b.pre.whole && len(word) <= e.v.longest {
		if id, ok := e.v.ids[word]; ok {
			e.out = append(e.out, id)
			return
		}
	}
	e.merge(word)
}
