package token

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// index builds the tables of Encode and AppendBytes. Of equal pieces the one with the lowest id counts. Maps of 150,000 texts take most of
// the time that a vocabulary takes; a verifier encodes nothing. So they are made when they are first wanted, and what could be wrong with
// them is checked before.
func (v *Vocab) index(f *gguf.File) error {
	v.ids = sync.OnceValue(v.listed)
	v.prints = make([]string, len(v.pieces))
	if !v.byteLevel() {
		v.joins = &joins{beforeSpace: map[rune]bool{}}
	}
	for i := range v.bytes {
		v.bytes[i] = -1
	}
	var users, controls []written
	var made strings.Builder // one piece of memory for all texts
	made.Grow(v.size())
	findable := func(piece string) bool { return 0 < len(piece) && len(piece) <= maxText && utf8.ValidString(piece) }
	for i, piece := range v.pieces {
		t := tandem.Token(i)
		switch v.kinds[i] {
		case unknown, control:
			if findable(piece) { // others are not found in writing
				controls = append(controls, written{piece, t})
			}
		case userDefined:
			if len(piece) > maxText {
				return corrupt(f, "user-defined token %d has %d bytes: at most %d allowed", i, len(piece), maxText)
			}
			if !utf8.ValidString(piece) { // it could be found within a character
				return corrupt(f, "user-defined token %d is %.80q: want valid UTF-8", i, piece)
			}
			v.prints[i], _ = printed(v.model, userDefined, piece)
			if piece != "" {
				users = append(users, v.spellings(piece, t)...)
			}
		case single:
			b, ok := parseByte(piece)
			if !ok {
				return corrupt(f, "token %d is %.80q of type byte: want <0x00> to <0xFF>", i, piece)
			}
			v.prints[i] = string([]byte{b})
			if v.bytes[b] < 0 {
				v.bytes[b] = t
			}
		default:
			v.indexText(t, piece, &made)
		}
	}
	v.user, v.control = newTexts(users), newTexts(controls)
	v.written = newTexts(slices.Concat(users, controls))
	return nil
}

// spellings returns the ways in which a user-defined token is written in a text. Files spell the spaces of such a token as spaces or as
// U+2581, and so may texts.
func (v *Vocab) spellings(piece string, t tandem.Token) []written {
	all := []written{{piece, t}}
	if v.byteLevel() || !strings.Contains(piece, " ") && !strings.Contains(piece, space) {
		return all
	}
	return append(all, written{strings.ReplaceAll(piece, space, " "), t}, written{v.spaced(piece), t})
}

// size returns the bytes of all pieces.
func (v *Vocab) size() (n int) {
	for _, piece := range v.pieces {
		n += len(piece)
	}
	return n
}

// indexText enters a piece of text. In a byte-level vocabulary, a piece that is not written in the alphabet
// of bytes prints as it is, and no text is encoded as it.
func (v *Vocab) indexText(t tandem.Token, piece string, made *strings.Builder) {
	if !v.byteLevel() {
		v.prints[t], _ = printed(v.model, v.kinds[t], piece)
		v.longest = max(v.longest, len(piece))
		v.joins.add(piece)
		return
	}
	text, ok := rawBytes(piece, made)
	if v.prints[t] = text; !ok {
		if v.prints[t] = piece; v.foreign == nil {
			v.foreign = map[tandem.Token]bool{}
		}
		v.foreign[t] = true
		return
	}
	if v.longest = max(v.longest, len(text)); len(text) == 1 && (v.bytes[text[0]] < 0 || v.kinds[v.bytes[text[0]]] == single) {
		v.bytes[text[0]] = t
	}
}

// becomes returns the text that is encoded as t; "" for a token that no text becomes.
func (v *Vocab) becomes(t int) string {
	switch v.kinds[t] {
	case unknown, control, userDefined, single:
		return ""
	}
	switch {
	case !v.byteLevel():
		return v.pieces[t]
	case v.foreign[tandem.Token(t)]:
		return ""
	}
	return v.prints[t]
}

// listed makes the map of ids.
func (v *Vocab) listed() map[string]tandem.Token {
	all := make(map[string]tandem.Token, len(v.pieces))
	for i := len(v.pieces) - 1; i >= 0; i-- { // the lowest id is entered last
		if text := v.becomes(i); text != "" {
			all[text] = tandem.Token(i)
		}
	}
	return all
}

// printed returns what a token of text prints; ok is false for a piece that should be written in the alphabet of bytes but
// is not.
func printed(model string, k kind, piece string) (text string, ok bool) {
	switch {
	case model != modelBytes:
		return strings.ReplaceAll(piece, space, " "), true
	case k == userDefined:
		return piece, true
	}
	if raw, ok := rawBytes(piece, new(strings.Builder)); ok {
		return raw, true
	}
	return piece, false
}

// needBytes fills the table of bytes and refuses a vocabulary that cannot encode all text. Real byte-level
// vocabularies lack bytes that never occurred in training, but never printable ones.
func (v *Vocab) needBytes(f *gguf.File) error {
	if !v.byteLevel() {
		for b, t := range v.bytes {
			if t < 0 {
				return corrupt(f, "the vocabulary has no token <0x%02X> of type byte: want all 256, so that any text can be encoded", b)
			}
		}
		return nil
	}
	unk, err := f.IntOr("tokenizer.ggml.unknown_token_id", 0, len(v.pieces)-1, -1)
	if err != nil {
		return err
	}
	if unk >= 0 && v.kinds[unk] != unknown {
		unk = -1 // some files name the end-of-text token
	}
	for b := range v.bytes {
		if v.bytes[b] >= 0 {
			continue
		}
		if b >= ' ' && b <= '~' || b == '\n' {
			return corrupt(f, "the vocabulary has no token for the byte %q: want all that print, so that text can be encoded", b)
		}
		v.bytes[b] = tandem.Token(unk)
	}
	return nil
}

// joins knows which characters stand side by side in some piece of a SentencePiece vocabulary: other
// neighbours cannot be merged. It is exact for ASCII and the space, and allows all other pairs.
type joins struct {
	pairs       [utf8.RuneSelf + 1][utf8.RuneSelf + 1]bool // ASCII, then the space
	beforeSpace map[rune]bool
}

func joinIndex(r rune) int {
	switch {
	case r == spaceRune:
		return utf8.RuneSelf
	case uint32(r) < utf8.RuneSelf:
		return int(r)
	}
	return -1
}

func (j *joins) add(piece string) {
	before := rune(-1)
	for _, r := range piece {
		if a, b := joinIndex(before), joinIndex(r); a >= 0 && b >= 0 {
			j.pairs[a][b] = true
		} else if r == spaceRune && before >= 0 {
			j.beforeSpace[before] = true
		}
		before = r
	}
}

func (j *joins) has(a, b rune) bool {
	x, y := joinIndex(a), joinIndex(b)
	switch {
	case x >= 0 && y >= 0:
		return j.pairs[x][y]
	case b == spaceRune:
		return j.beforeSpace[a]
	}
	return true
}

// parseByte reads <0xXX>.
func parseByte(piece string) (byte, bool) {
	if len(piece) != 6 || piece[:3] != "<0x" || piece[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(piece[3:5], 16, 8)
	return byte(b), err == nil
}
