package wire

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// TestAnnouncementsHoldNoPrompts: what a verifier announces, and so enters into the registry, depends on its prompts in keyed hashes alone:
// without them two verifiers with other prompts say the same. The hashes are not those of the tokens, hold no run of tokens, and are
// others for each tenant and each key. That a count of sessions changes with time is no part of this promise.
func TestAnnouncementsHoldNoPrompts(t *testing.T) {
	const identity, page = tandem.Identity("i-1"), 4
	tokens := func(first tandem.Token) (text []tandem.Token) {
		for i := range tandem.Token(8 * page) {
			text = append(text, first+i*31)
		}
		return text
	}
	kept := func(tenant string, text []tandem.Token) (out []tandem.Prefix) {
		for pages := 1; pages <= len(text)/page; pages *= 2 {
			out = append(out, tandem.Prefix{Tenant: tenant, Pages: pages, Hash: tandem.EmptyPrefix.Add(text[:pages*page]...)})
		}
		return out
	}
	announce := func(key tandem.PrefixKey, prefixes []tandem.Prefix) (message []byte, hashes []uint64) {
		t.Helper()
		hashes = key.Summary(identity, prefixes)
		b, err := verifierOf(VerifierLoad{Sessions: 1, Prefixes: hashes}).Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b, hashes
	}
	bare := func(message []byte) *peerv1.Announcement {
		t.Helper()
		m := new(peerv1.Announcement)
		if err := proto.Unmarshal(message, m); err != nil {
			t.Fatal(err)
		}
		m.Verifier.Load.Prefixes = nil
		return m
	}
	one, two := tokens(1000), tokens(77)
	message, hashes := announce(tandem.PrefixKey{1}, kept("a", one))
	other, others := announce(tandem.PrefixKey{1}, kept("a", two))
	if !proto.Equal(bare(message), bare(other)) {
		t.Errorf("beside the hashes two verifiers with other prompts say\n%v\n%v", bare(message), bare(other))
	}
	_, ofTenant := announce(tandem.PrefixKey{1}, kept("b", one))
	_, ofKey := announce(tandem.PrefixKey{2}, kept("a", one))
	for name, others := range map[string][]uint64{"another prompt": others, "another tenant": ofTenant, "another key": ofKey} {
		for _, h := range others {
			if len(others) != len(hashes) || slices.Contains(hashes, h) {
				t.Errorf("%s has hash %x too", name, h)
			}
		}
	}
	for _, p := range kept("a", one) {
		if slices.Contains(hashes, uint64(p.Hash)) {
			t.Errorf("the hash of the first %d pages is there without a key", p.Pages)
		}
	}
	for i := range one[:len(one)-2] {
		for name, run := range runs(one[i : i+2]) {
			if bytes.Contains(message, run) {
				t.Errorf("tokens %v are in the message, as %s", one[i:i+2], name)
			}
		}
	}
}

// runs returns tokens in the forms in which a message could hold them.
func runs(tokens []tandem.Token) map[string][]byte {
	out := map[string][]byte{}
	for _, id := range tokens {
		out["varints"] = binary.AppendUvarint(out["varints"], uint64(id))
		out["four bytes"] = binary.LittleEndian.AppendUint32(out["four bytes"], uint32(id))
		out["four bytes, the largest first"] = binary.BigEndian.AppendUint32(out["four bytes, the largest first"], uint32(id))
	}
	return out
}
