package token

import (
	"strings"
	"sync"

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
	pre   *pre
	lines []string       // the merges of a byte-level vocabulary as they are in the file, checked
	table func() *merged // made when it is first wanted: see index
}

// merged are the tables with which merges are found.
type merged struct {
	bytes  [256]tandem.Token // the symbol of each byte
	merges map[uint64]merge  // by the two symbols: left<<32 | right
	order  []uint64          // the keys of merges, the best first
	extra  []string
}

// add adds a merge unless there is one of these symbols.
func (m *merged) add(left, right tandem.Token, to func() tandem.Token) {
	key := mergeKey(left, right)
	if _, twice := m.merges[key]; !twice {
		m.merges[key] = merge{uint32(len(m.order)), to()}
		m.order = append(m.order, key)
	}
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

// rawBytes returns the bytes that a piece stands for, as a part of b or of the piece, and false if it is not written in the alphabet.
func rawBytes(piece string, b *strings.Builder) (string, bool) {
	same := 0
	for same < len(piece) && '!' <= piece[same] && piece[same] <= '~' {
		same++
	}
	if same == len(piece) {
		return piece, true
	}
	from := b.Len()
	b.WriteString(piece[:same])
	for _, r := range piece[same:] {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return "", false
		}
		b.WriteByte(byte(runeBytes[r]))
	}
	return b.String()[from:], true
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
	v.bpe = &bpe{pre: p, table: sync.OnceValue(v.merged)}
	if v.bpe.lines, err = v.mergeLines(f); err != nil {
		return err
	}
	for i, line := range v.bpe.lines {
		left, right, two := strings.Cut(line, " ")
		if !two || !alphabetic(left) || !alphabetic(right) {
			return corrupt(f, "%s has %.80q as element %d: want two pieces in GPT-2's alphabet of bytes, with a space between",
				merges, line, i)
		}
	}
	return nil
}

// alphabetic reports whether a piece is written in the alphabet of bytes, and not empty.
func alphabetic(piece string) bool {
	for _, r := range piece {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return false
		}
	}
	return piece != ""
}

// eachMerge calls do with the two texts of each merge. In a byte-level vocabulary right lies behind left, and both are valid until do
// returns.
func (v *Vocab) eachMerge(do func(left, right []byte)) {
	if !v.byteLevel() {
		for _, key := range v.bpe.table().order {
			do([]byte(v.prints[key>>32]), []byte(v.prints[uint32(key)]))
		}
	}
	var buf []byte
	for _, line := range v.bpe.lines {
		buf = buf[:0]
		at := 0
		for _, r := range line {
			if r == ' ' {
				at = len(buf)
			} else {
				buf = append(buf, byte(runeBytes[r]))
			}
		}
		do(buf[:at], buf[at:])
	}
}

// merged makes the tables of a byte-level vocabulary.
func (v *Vocab) merged() *merged {
	m, ids, extra := &merged{merges: make(map[uint64]merge, len(v.bpe.lines))}, v.ids(), map[string]tandem.Token{}
	symbol := func(s []byte) tandem.Token {
		if id, ok := ids[string(s)]; ok {
			return id
		}
		id, ok := extra[string(s)]
		if !ok {
			id = tandem.Token(len(v.pieces) + len(extra))
			extra[string(s)] = id
			m.extra = append(m.extra, string(s))
		}
		return id
	}
	for b := range m.bytes {
		m.bytes[b] = symbol([]byte{byte(b)})
	}
	v.eachMerge(func(left, right []byte) {
		m.add(symbol(left), symbol(right), func() tandem.Token { return symbol(left[:len(left)+len(right)]) })
	})
	return m
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
	ids, others := v.ids(), map[string]bool{} // others: pieces that are not text
	for _, piece := range v.pieces {
		if _, text := ids[piece]; !text {
			others[piece] = true
		}
	}
	m := &merged{merges: make(map[uint64]merge, len(lines))}
	v.bpe = &bpe{pre: pieceMerges, table: func() *merged { return m }}
	for i, line := range lines {
		l, r, two := strings.Cut(line, " ")
		if !two || l == "" || r == "" || strings.Contains(r, " ") {
			return corrupt(f, "%s has %.80q as element %d: want two pieces with a space between", merges, line, i)
		}
		var of [3]tandem.Token
		text := true
		for j, piece := range []string{l, r, l + r} {
			id, ok := ids[piece]
			if !ok && !others[piece] {
				return corrupt(f, "%s has %.80q as element %d, but %.80q is no token: want merges of tokens to tokens",
					merges, line, i, piece)
			}
			of[j], text = id, text && ok
		}
		if text {
			m.add(of[0], of[1], func() tandem.Token { return of[2] })
		}
	}
	return nil
}
