package grammar

import "unicode/utf8"

// mode says how a node's characters are written.
type mode uint8

const (
	raw    mode = iota // every byte is a character
	plain              // UTF-8
	quoted             // a JSON string, from its quote to its quote
)

// Groups of characters, for a quick answer to whether all of a subtree of tokens leads from a state to itself.
const (
	lowerGroup   = iota
	upperGroup   = iota
	digitGroup   = iota
	controlGroup = iota // but \n, \t, \r
	wideGroup    = iota // complete characters of several bytes
	brokenGroup  = iota // other bytes above 0x7f: an incomplete character
	firstAlone   = iota // a group each: \n \t \r, the blank, DEL, and 32 marks of punctuation
)

// groupOf is the group of each ASCII character.
var groupOf = func() (out [utf8.RuneSelf]uint8) {
	alone := uint8(firstAlone)
	for c := range out {
		switch {
		case 'a' <= c && c <= 'z':
			out[c] = lowerGroup
		case 'A' <= c && c <= 'Z':
			out[c] = upperGroup
		case '0' <= c && c <= '9':
			out[c] = digitGroup
		case c < ' ' && c != '\n' && c != '\t' && c != '\r':
			out[c] = controlGroup
		default:
			out[c] = alone
			alone++
		}
	}
	return out
}()

// inStrings are the groups that may stand in a JSON string as they are.
var inStrings = func() (out uint64) {
	out = ^uint64(0) &^ (1<<controlGroup | 1<<brokenGroup)
	for _, c := range "\n\t\r\"\\" {
		out &^= 1 << groupOf[c]
	}
	return out
}()

// The phases of a character that is written in several bytes: the top four bits of conf.dec. Below them stand two bits, how many bytes
// follow, and what is known of the character.
const (
	boundary  = iota << phaseShift // between characters
	opening                        // before the quote that begins a string
	wide                           // UTF-8: of the character's length − 1 bytes, at lengthShift, some follow
	escape                         // after a backslash
	hex                            // of \uXXXX, one more digit than the number of bytes follows
	highDone                       // after the first half of a surrogate pair
	highSlash                      // after the backslash behind it
	low                            // hex, for the second half; the first stands above 16 bits
)

const (
	phaseShift  = 28
	followShift = 26
	lengthShift = 21
	valueMask   = 1<<followShift - 1
	contBits    = 6 // of a character in a byte that continues it
)

// readChar moves c, a configuration of a chars node, over b. live: something may follow in the node; end: the node may end after b.
func (c *conf) readChar(b byte) (live, end bool) {
	n := c.n
	switch phase := c.dec &^ (1<<phaseShift - 1); phase {
	case boundary:
		switch {
		case n.mode == raw:
			return c.char(rune(b))
		case n.mode == quoted && b == '"':
			return false, n.auto.accept[c.q] && c.lo == 0
		case n.mode == quoted && b == '\\':
			c.dec = escape
			return c.hi >= n.auto.onward[c.q], false
		case n.mode == quoted && b < ' ':
			return false, false
		case b < utf8.RuneSelf:
			return c.char(rune(b))
		case b < 0xC2 || b > 0xF4:
			return false, false
		}
		length := uint32(1)
		if b >= 0xE0 {
			length++
		}
		if b >= 0xF0 {
			length++
		}
		lead := uint32(b) & (1<<(contBits-length) - 1)
		return c.partial(length, length, lead), false
	case opening:
		c.dec = boundary
		return b == '"', false
	case wide:
		if b&0xC0 != 0x80 {
			return false, false
		}
		follow, length := c.dec>>followShift&3-1, c.dec>>lengthShift&3
		value := c.dec&(1<<lengthShift-1)<<contBits | uint32(b)&(1<<contBits-1)
		if follow == 0 {
			return c.char(rune(value))
		}
		return c.partial(follow, length, value), false
	case escape:
		return c.escaped(b)
	case highDone:
		c.dec = highSlash | c.dec&valueMask
		return b == '\\', false
	case highSlash:
		c.dec = low | 3<<followShift | c.dec&valueMask
		return b == 'u', false
	default:
		digit, ok := hexDigit(b)
		if !ok {
			return false, false
		}
		return c.digit(digit)
	}
}

// leastOf is the least character of each length in UTF-8, minus one.
var leastOf = [4]rune{0, utf8.RuneSelf, 1 << 11, 1 << 16}

// partial stores the state of a wide character. It returns false if no character that it may become is allowed.
func (c *conf) partial(follow, length, value uint32) bool {
	c.dec = wide | follow<<followShift | length<<lengthShift | value
	first := rune(value << (follow * contBits))
	last := min(first+1<<(follow*contBits)-1, utf8.MaxRune)
	first = max(first, leastOf[length])
	return first <= last && c.n.auto.any(c.q, first, last, c.hi)
}

// escapes are what may follow a backslash, and what each stands for.
const escapes, escapedAs = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

func (c *conf) escaped(b byte) (live, end bool) {
	if b == 'u' {
		c.dec = hex | 3<<followShift
		return true, false
	}
	for i := range len(escapes) {
		if escapes[i] == b {
			return c.char(rune(escapedAs[i]))
		}
	}
	return false, false
}

func hexDigit(b byte) (uint32, bool) {
	switch {
	case '0' <= b && b <= '9':
		return uint32(b - '0'), true
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		return uint32(b|0x20-'a') + 10, true
	}
	return 0, false
}

const (
	hexBits   = 4
	halfBits  = 10 // of a character beyond the first plane in each half of a surrogate pair
	unitMask  = 1<<16 - 1
	beyondBMP = 1 << 16
)

// digit takes a digit of \uXXXX.
func (c *conf) digit(d uint32) (live, end bool) {
	phase, follow, high := c.dec&^(1<<phaseShift-1), c.dec>>followShift&3, c.dec&valueMask&^unitMask
	value := c.dec&unitMask<<hexBits | d
	first := rune(value << (hexBits * follow))
	last := first + 1<<(hexBits*follow) - 1
	next := phase | (follow-1)&3<<followShift | high | value&unitMask
	if phase == low {
		first, last = max(first, lowSurrogate), min(last, lastSurrogate)
		base := beyondBMP + rune(high>>16)<<halfBits - lowSurrogate
		if first > last {
			return false, false
		}
		if follow == 0 {
			return c.char(base + first)
		}
		c.dec = next
		return c.n.auto.any(c.q, base+first, base+last, c.hi), false
	}
	if follow == 0 && (first < firstSurrogate || first > lastSurrogate) {
		return c.char(first)
	}
	from, to := max(first, firstSurrogate), min(last, lowSurrogate-1)
	pairs := from <= to &&
		c.n.auto.any(c.q, beyondBMP+(from-firstSurrogate)<<halfBits, beyondBMP+(to+1-firstSurrogate)<<halfBits-1, c.hi)
	if follow == 0 {
		c.dec = highDone | uint32(from-firstSurrogate)<<16
		return pairs, false
	}
	c.dec = next
	return pairs || c.n.auto.any(c.q, first, last, c.hi), false
}

// char takes a complete character.
func (c *conf) char(r rune) (live, end bool) {
	a := c.n.auto
	q := a.move(c.q, r)
	if q < 0 || c.hi <= a.far[q] {
		return false, false
	}
	c.q, c.dec = q, boundary
	if c.lo > 0 {
		c.lo--
	}
	if c.hi != unbounded {
		c.hi--
	}
	if c.n.mode == quoted {
		return true, false
	}
	return c.hi >= a.onward[q], a.accept[q] && c.lo == 0 || c.n.exits != nil && len(c.n.exits[q]) > 0
}
