package token

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// Encode turns text into tokens; special adds the tokens that begin and end a text if the model wants them. Any bytes can be encoded: text
// in no piece becomes the tokens of its bytes. (Some byte-level vocabularies lack bytes that hardly ever occur in UTF-8: such a byte
// becomes the unknown token, or nothing if there is none, as in other engines.) Control tokens are never recognised in text; user-defined
// tokens are, the leftmost first and of those the longest.
//
// The text between those tokens is brought into the form that the model knows, each part by itself: it begins with an added space
// (add_space_prefix), and its characters are composed (NFC), if the model's own tokenizer does so. White space beside a token goes with
// it if the model wants that (Phi-3). So tokens do not always decode to the same bytes. With SentencePiece a U+2581 in
// text cannot be told from a space. The time is O(n log n) in the length of the text.
func (v *Vocab) Encode(text string, special bool) []tandem.Token {
	return v.encode(v.user, text, special)
}

// EncodeWithControl is Encode for a conversation rendered by a template: control and unknown tokens written in text are recognised as
// user-defined ones are. So the author of any part of the text can write control tokens.
func (v *Vocab) EncodeWithControl(text string, special bool) []tandem.Token {
	return v.encode(v.written, text, special)
}

func (v *Vocab) encode(written *texts, text string, special bool) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4)}
	if special && v.addBOS {
		e.out = append(e.out, v.bos)
	}
	e.cut(text, written, nil, nil)
	if special && v.addEOS {
		e.out = append(e.out, v.eos)
	}
	return e.out
}

// encoder is the state of one Encode.
//
// A text is cut at the tokens that are written in it. The text between them is cut into
// words that no merge can cross: by the pre-tokenizer or, without one, between two characters that stand
// side by side in no piece.
type encoder struct {
	v    *Vocab
	out  []tandem.Token
	word string
	syms []symbol
	heap []pair
	asIs bool // text is encoded as it is: see EncodeNext
}

const maxWord = 1 << 28 // bytes; longer words are cut, so that offsets fit

// cut encodes a text. Tokens of free are found everywhere in it, those of fenced only within gaps.
func (e *encoder) cut(text string, free, fenced *texts, gaps []Span) {
	anywhere, within := token{at: -1}, token{at: -1}
	from := 0 // where the text behind the last token begins, without the white space that it takes with it
	for done := 0; done < len(text); {
		gaps = after(gaps, done)
		if within.at < done {
			within.at, within.id, within.size = fenced.findIn(text, gaps, done)
		}
		if anywhere.at < done {
			anywhere.at, anywhere.id, anywhere.size = free.find(text[done:])
			anywhere.at += done
		}
		next := anywhere
		if within.at < anywhere.at || within.at == anywhere.at && within.size > anywhere.size {
			next = within
		}
		to := max(from, next.at)
		done = next.at + next.size
		before := text[from:to]
		if from = max(from, done); next.size > 0 && !e.asIs {
			before, from = e.v.strip(next.id, before, text, from)
		}
		if before != "" {
			e.plain(before)
		}
		if next.size > 0 {
			e.out = append(e.out, next.id)
		}
	}
}

// token is a token written in a text, its position and size; size 0 at the text's end stands for none.
type token struct {
	at, size int
	id       tandem.Token
}

// plain encodes a part of a text without written tokens; it is not empty.
func (e *encoder) plain(text string) {
	if v := e.v; e.asIs {
		text = v.spaced(text)
	} else {
		text = v.normalize(text)
	}
	e.words(text)
}

// spaced returns text as pieces spell it.
func (v *Vocab) spaced(text string) string {
	if v.byteLevel() {
		return text
	}
	return strings.ReplaceAll(text, " ", space)
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
		if id, ok := e.v.ids()[word]; ok {
			e.out = append(e.out, id)
			return
		}
	}
	e.merge(word)
}
