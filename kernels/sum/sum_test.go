package sum

import (
	"math/rand/v2"
	"testing"
)

func TestSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[uint32]int{}
	for n := range 200 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		want := Of(b)
		var s Sum
		for rest := b; len(rest) > 0; {
			k := 1 + r.IntN(len(rest))
			s.Add(rest[:k])
			rest = rest[k:]
		}
		if got := s.Value(); got != want {
			t.Fatalf("%d bytes in parts: %#x, want %#x", n, got, want)
		}
		if was, ok := seen[want]; ok {
			t.Errorf("%d and %d bytes have one checksum", was, n)
		}
		seen[want] = n
	}
}

// TestDefinition: the checksum of the words 1, 2, …, 16 was computed by the definition, apart from this program: in Python, with integers
// of any size.
func TestDefinition(t *testing.T) {
	b := make([]byte, 64)
	for i := range 16 {
		b[4*i] = byte(i + 1)
	}
	const want = 0x24a97c45
	if got := Of(b); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// TestChanges: a bit that flips, two that flip, words that change places and a part that became zero change the checksum.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 6912)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	want := Of(b)
	differs := func(what string, change func(b []byte)) {
		c := append([]byte(nil), b...)
		change(c)
		if Of(c) == want {
			t.Errorf("%s: not seen", what)
		}
	}
	for i := range 8 * len(b) {
		differs("a bit", func(b []byte) { b[i/8] ^= 1 << (i % 8) })
	}
	for i := range len(b)/32 - 2 { // both of the highest bits of a lane's words
		differs("two bits", func(b []byte) { b[32*i+3] ^= 128; b[32*i+67] ^= 128 })
		differs("words that change places", func(b []byte) {
			for k := range 4 {
				b[32*i+k], b[32*i+64+k] = b[32*i+64+k], b[32*i+k]
			}
		})
	}
	differs("zeros", func(b []byte) { clear(b[4096:4608]) })
	differs("the end", func(b []byte) { b[len(b)-1]++ })
}

func BenchmarkSum(b *testing.B) {
	m := make([]byte, 1<<29)
	for i := range m {
		m[i] = byte(i)
	}
	for name, n := range map[string]int{"hot": 1 << 18, "cold": len(m)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(1 << 18)
			for i := 0; b.Loop(); i++ {
				at := i % (n >> 18) << 18
				Of(m[at : at+1<<18])
			}
		})
	}
}
