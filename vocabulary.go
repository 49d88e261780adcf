package tandem

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Token is an index into the vocabulary of the target model, 0 ≤ t < vocabulary size.
type Token int32

// Position is an absolute index into a session's tokens; 0 is the first prompt token.
type Position int32

// SessionID names one request's decoding state in all three processes. Zero names no session.
type SessionID uint64

// NewSessionID returns a random non-zero id.
func NewSessionID() SessionID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
		if id := SessionID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id
		}
	}
}

func (s SessionID) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// Epoch counts how often a session was opened again from its committed tokens. A ticket or verdict of
// another epoch is stale.
type Epoch uint32

// PrefixHash is the FNV-1a hash (64 bits) of a sequence of tokens, four little-endian bytes each. It
// shows that two processes hold different prefixes; it is no defence against an attacker.
type PrefixHash uint64

// EmptyPrefix is the hash of no tokens.
const EmptyPrefix PrefixHash = 14695981039346656037

// Add returns the hash of the sequence followed by tokens.
func (h PrefixHash) Add(tokens ...Token) PrefixHash {
	for _, t := range tokens {
		for s := 0; s < 32; s += 8 {
			h = (h ^ PrefixHash(byte(uint32(t)>>s))) * 1099511628211
		}
	}
	return h
}

// Identity names all that decides which tokens follow. For the same tokens and Sampling, processes of one identity produce the
// same ids, whatever machine, threads or instruction set they run on; processes of different identities may not. A session keeps
// the identity that it began with. It is short enough for OpenAI's system_fingerprint; "" means unknown.
//
// It is written tensors-shape-rope-kv-aN, such as 9f3ac2d1e8b746057f21c0aa5d3e9b84-51c03bd2-0f6e1c77-q8_0-a1, so that two of them
// show which part differs; see IdentityParts. Compare identities as a whole: a later release may add parts.
type Identity string

// IdentityParts is what an Identity is made of.
type IdentityParts struct {
	Tensors    string // digest over names, types, shapes and bytes of the file's tensors: 32 hexadecimal digits
	Shape      string // digest over the file's keys that define the function, except RoPE's: 8 digits
	Rope       string // digest over RoPE's frequencies in effect, which LongRoPE chooses by --ctx: 8 digits
	KV         string // type of keys and values in the cache
	Arithmetic int    // version of the arithmetic: the reference kernels, and how tokens are drawn
}

// MaxIdentity is the most bytes that an Identity or a lineage has.
const MaxIdentity = 128

// Identity joins the parts.
func (p IdentityParts) Identity() Identity {
	return Identity(fmt.Sprintf("%s-%s-%s-%s-a%d", p.Tensors, p.Shape, p.Rope, p.KV, p.Arithmetic))
}

// Parts splits i into its parts; ok is false if it has another form.
func (i Identity) Parts() (p IdentityParts, ok bool) {
	f := strings.Split(string(i), "-")
	if len(f) != 5 || !strings.HasPrefix(f[4], "a") {
		return p, false
	}
	n, err := strconv.Atoi(f[4][1:])
	return IdentityParts{f[0], f[1], f[2], f[3], n}, err == nil
}

// Difference says in words what two identities differ in, such as "tensors and KV type"; "" if they are equal.
func (i Identity) Difference(j Identity) string {
	if i == j {
		return ""
	}
	a, known := i.Parts()
	b, too := j.Parts()
	if !known || !too {
		return "form"
	}
	var out []string
	for _, d := range []struct {
		name string
		same bool
	}{{"tensors", a.Tensors == b.Tensors}, {"shape", a.Shape == b.Shape}, {"rope", a.Rope == b.Rope}, {"KV type", a.KV == b.KV},
		{"arithmetic", a.Arithmetic == b.Arithmetic}} {
		if !d.same {
			out = append(out, d.name)
		}
	}
	return strings.Join(out, " and ")
}

// ValidName returns Invalid for an identity or lineage that is too long or not printable; what is its name in the error.
func ValidName(what, name string) error {
	if len(name) > MaxIdentity {
		return Errorf("identity", Invalid, "%s has %d bytes: at most %d", what, len(name), MaxIdentity)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' {
			return Errorf("identity", Invalid, "%s %q: want printable characters without spaces", what, name)
		}
	}
	return nil
}
