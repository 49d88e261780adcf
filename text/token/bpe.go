package token

import (
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// bpe holds the pre-tokenizer and merges of a byte-level tokenizer (Radford et al., "Language Models are
// Unsupervised Multitask Learners", 2019, section 2.2).
//
// A symbol stands for a string of bytes that merges make. It is a token's id (the lowest for that string) or, for a
// string that is not a token, the number of tokens plus an index into extra. A merge makes one longer string
// of two, so merging always ends, whatever the file says.
type bpe struct {
	pre    *pre
	bytes  [256]tandem.Token // the symbol of each byte
	merges map[uint64]merge  // by the two symbols: left<<32 | right
	order  []uint64          // the keys of merges, the best first
	extra  []string
}

type merge struct {
	rank   uint32 // lower ranks are merged first
	symbol tandem.Token
}

func mergeKey(left, right tandem.Token) uint64 {
	return uint64(uint32(left))<<32 | uint64(uint32(right))
}

// runeBytes maps the characters in which byte-level pieces are written back to bytes. A byte that prints in Latin-1 is
// written as itself, the others as U+0100, U+0101 … in order. -1 for any other character.
var runeBytes = func() (table [0x144]int16) {
	for i := range table {
		table[i] = -1
	}
	next := 0x100
	for b := range 0x100 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b != 0xAD {
			table[b] = int16(b)
		} else {
			table[next] = int16(b)
			next++
		}
	}
	return table
}()

// rawBytes returns the bytes that a piece stands for, and false if it is not written in the alphabet.
func rawBytes(piece string) (string, bool) {
	var b strings.Builder
	b.Grow(len(piece))
	for _, r := range piece {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return "", false
		}
		b.WriteByte(byte(runeBytes[r]))
	}
	return b.String(), true
}

const (
	merges     = "tokenizer.ggml.merges"
	defaultPre = "default"
)

// mergeLines reads the merges, none if the file has none.
func (v *Vocab) mergeLines(f *gguf.File) ([]string, error) {
	if !f.Has(merges) {
		v.missing(merges, "nothing is merged, so texts become single bytes or characters")
		return nil, nil
	}
	return f.Strings(merges)
}

// readBPE reads the pre-tokenizer and the merges. It needs ids and prints.
func (v *Vocab) readBPE(f *gguf.File) error {
	const preKey = "tokenizer.ggml.pre"
	name, err := f.StringOr(preKey, defaultPre)
	if err != nil {
		return err
	}
	if !f.Has(preKey) {
		v.missing(preKey, `texts are cut as the pre-tokenizer "`+defaultPre+`" does, which may cost quality; convert the model anew`)
	}
	p, known := findPre(name)
	if p == nil {
		return tandem.Errorf(op, tandem.Unsupported, "%s: %s is %.80q: want one of %s", f.Path(), preKey, name, strings.Join(known, ", "))
	}
	v.bpe = &bpe{pre: p}
	lines, err := v.mergeLines(f)
	if err != nil {
		return err
	}
	extra := map[string]tandem.Token{}
	symbol := func(s string) tandem.Token {
		if id, ok := v.ids[s]; ok {
			return id
		}
		id, ok := extra[s]
		if !ok {
			id = tandem.Token(len(v.pieces) + len(extra))
			extra[s] = id
			v.bpe.extra = append(v.bpe.extra, s)
		}
		return id
	}
	for b := range v.bpe.bytes {
		v.bpe.bytes[b] = symbol(string([]byte{byte(b)}))
	}
	v.bpe.merges = make(map[uint64]merge, len(lines))
	for i, line := range lines {
		l, r, two := strings.Cut(line, " ")
		left, ok := rawBytes(l)
		right, ok2 := rawBytes(r)
		if !two || !ok || !ok2 || left == "" || right == "" {
			return corrupt(f, "%s has %.80q as element %d: want two pieces in GPT-2's alphabet of bytes, with a space between",
				merges, line, i)
		}
		key := mergeKey(symbol(left), symbol(right))
		if _, twice := v.bpe.merges[key]; !twice {
			v.bpe.merges[key] = merge{uint32(len(v.bpe.order)), symbol(left + right)}
			v.bpe.order = append(v.bpe.order, key)
		}
	}
	return nil
}

// pieceMerges stands for a pre-tokenizer where there is none: merges may cross all of a text, and it begins with a token.
var pieceMerges = &pre{names: []string{"gemma4"}, addBOS: true}

// readPieceMerges reads the merges of a vocabulary of characters: "gemma4" is SentencePiece's pieces and byte tokens, in which the
// merges say what is joined, and not the scores. A merge with a token that is not text is left out: user-defined tokens are cut out of
// a text before. It needs ids.
func (v *Vocab) readPieceMerges(f *gguf.File) error {
	lines, err := v.mergeLines(f)
	if err != nil {
		return err
	}
	others := map[string]bool{} // pieces that are not text
	for _, piece := range v.pieces {
		if _, text := v.ids[piece]; !text {
			others[piece] = true
		}
	}
	v.bpe = &bpe{pre: pieceMerges, merges: make(map[uint64]merge, len(lines))}
	for i, line := range lines {
		l, r, two := strings.Cut(line, " ")
		if !two || l == "" || r == "" || strings.Contains(r, " ") {
			return corrupt(f, "%s has %.80q as element %d: want two pieces with a space between", merges, line, i)
		}
		var ids [3]tandem.Token
		text := true
		for j, piece := range []string{l, r, l + r} {
			id, ok := v.ids[piece]
			if !ok && !others[piece] {
				return corrupt(f, "%s has %.80q as element %d, but %.80q is no token: want merges of tokens to tokens",
					merges, line, i, piece)
			}
			ids[j], text = id, text && ok
		}
		key := mergeKey(ids[0], ids[1])
		if _, twice := v.bpe.merges[key]; text && !twice {
			v.bpe.merges[key] = merge{uint32(len(v.bpe.order)), ids[2]}
			v.bpe.order = append(v.bpe.order, key)
		}
	}
	return nil
}

// symbolText returns the bytes of a symbol.
func (v *Vocab) symbolText(t tandem.Token) string {
	if n := len(v.pieces); int(t) >= n {
		return v.bpe.extra[int(t)-n]
	}
	return v.prints[t]
}

// mergeText returns the i-th merge as two strings of bytes.
func (v *Vocab) mergeText(i int) (left, right string) {
	key := v.bpe.order[i]
	return v.symbolText(tandem.Token(key >> 32)), v.symbolText(tandem.Token(uint32(key)))
}
