package tandem

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// MostPrefixes bounds the summary of the prompts that a verifier keeps.
const MostPrefixes = 256

// PrefixKey hashes the prefixes in the summary of a verifier. All processes of a fleet have the same key and nobody else has it, so
// whoever reads a summary without it can neither tell nor check what the prompts are. The zero value is no key: it hashes nothing.
type PrefixKey [32]byte

// Prefix is a kept prefix as its key hashes it: the first Pages full pages of a tenant's text, whose tokens have the hash.
type Prefix struct {
	Tenant string
	Pages  int // a power of two
	Hash   PrefixHash
}

// Hash returns the keyed hash of a prefix at processes of an identity. Prefixes of two tenants never have the same, but by chance.
func (k PrefixKey) Hash(identity Identity, p Prefix) uint64 {
	mac := hmac.New(sha256.New, k[:])
	var n [8]byte
	for _, part := range []string{string(identity), p.Tenant} {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write([]byte(part))
	}
	for _, part := range []uint64{uint64(p.Pages), uint64(p.Hash)} {
		binary.BigEndian.PutUint64(n[:], part)
		mac.Write(n[:])
	}
	return binary.BigEndian.Uint64(mac.Sum(nil))
}

// Summary returns the hashes of the first MostPrefixes prefixes; nil without a key.
func (k PrefixKey) Summary(identity Identity, prefixes []Prefix) []uint64 {
	if k == (PrefixKey{}) {
		return nil
	}
	var out []uint64
	for _, p := range prefixes[:min(len(prefixes), MostPrefixes)] {
		out = append(out, k.Hash(identity, p))
	}
	return out
}

// PrefixQuery is what to look for in summaries: the hashes of a text's first 1, 2, 4 … full pages. It holds for all verifiers of one
// identity and page size.
type PrefixQuery struct {
	pageTokens int
	hashes     []uint64
}

// Query returns the query for a tenant's text. pageTokens are the tokens of a page at the verifiers; without a key, or if it is not
// positive, nothing is found.
func (k PrefixKey) Query(identity Identity, tenant string, pageTokens int, tokens []Token) PrefixQuery {
	q := PrefixQuery{pageTokens: pageTokens}
	if k == (PrefixKey{}) || pageTokens < 1 {
		return q
	}
	hash, done := EmptyPrefix, 0
	for pages := 1; pages <= len(tokens)/pageTokens; pages *= 2 {
		hash, done = hash.Add(tokens[done:pages*pageTokens]...), pages*pageTokens
		q.hashes = append(q.hashes, k.Hash(identity, Prefix{Tenant: tenant, Pages: pages, Hash: hash}))
	}
	return q
}

// Longest returns how many tokens of the text a verifier with that summary keeps, as far as the summary tells; 0 if it tells of none.
func (q PrefixQuery) Longest(summary []uint64) (tokens int) {
	for i := len(q.hashes) - 1; i >= 0; i-- {
		if slices.Contains(summary, q.hashes[i]) {
			return q.pageTokens << i
		}
	}
	return 0
}
