package grammar

import (
	"bytes"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Vocabulary is a model's tokens as a trie over their bytes. It is built once, and is safe for concurrent use.
type Vocabulary struct {
	size  int
	ends  []tandem.Token
	text  []byte   // of all tokens, one after the other
	begin []uint32 // of each token in text, and text's length

	// The trie in preorder; node 0 is the root. ids are the tokens in the same order: those of the subtree of a node are
	// ids[node.first:nodes[node.skip].first], and those of the node itself come first.
	nodes  []trieNode
	ids    []tandem.Token
	groups []uint64 // what occurs below a node, by trieNode.below: a set of groups (see groupOf)
	all    Mask
	masks  cache
}

// trieNode takes 12 bytes, since there are several for each token.
type trieNode struct {
	skip   int32 // the first node behind its subtree
	first  int32 // see Vocabulary.ids
	below  uint16
	height uint8 // bytes below it in the longest token; longest at most
	byte   byte
}

// longest bounds what trieNode.height says; a longer subtree is never left out.
const longest = math.MaxUint8

// Mask is a set of tokens: bit t%64 of word t/64. It is shared: nobody changes it.
type Mask []uint64

// Has reports whether t is in m.
func (m Mask) Has(t tandem.Token) bool {
	return t >= 0 && int(t)>>6 < len(m) && m[t>>6]>>(t&63)&1 != 0
}

// NewVocabulary makes the trie of the tokens 0 to n−1. bytesOf returns the bytes of a token, none for a control token, which then matches
// never; it may reuse them. ends are the tokens that end a text: they are allowed exactly where it may end.
func NewVocabulary(bytesOf func(tandem.Token) []byte, n int, ends []tandem.Token) *Vocabulary {
	v := &Vocabulary{size: n, ends: slices.Clone(ends), begin: make([]uint32, n+1), all: make(Mask, (n+63)/64)}
	for t := range n {
		v.all[t>>6] |= 1 << (t & 63)
		if !slices.Contains(ends, tandem.Token(t)) {
			v.text = append(v.text, bytesOf(tandem.Token(t))...)
		}
		if v.begin[t+1] = uint32(len(v.text)); v.begin[t+1] > v.begin[t] {
			v.ids = append(v.ids, tandem.Token(t))
		}
	}
	slices.SortStableFunc(v.ids, func(a, b tandem.Token) int { return bytes.Compare(v.bytes(a), v.bytes(b)) })
	v.plant()
	v.describe()
	return v
}

func (v *Vocabulary) bytes(t tandem.Token) []byte { return v.text[v.begin[t]:v.begin[t+1]] }

// plant makes the nodes from the sorted tokens.
func (v *Vocabulary) plant() {
	v.nodes = make([]trieNode, 1, 2*len(v.ids)+1)
	path := []int32{0} // from the root to the last node
	leave := func(depth int) {
		for len(path) > depth+1 {
			v.nodes[path[len(path)-1]].skip = int32(len(v.nodes))
			path = path[:len(path)-1]
		}
	}
	var before []byte
	for i, t := range v.ids {
		text, same := v.bytes(t), 0
		for same < len(before) && same < len(text) && before[same] == text[same] {
			same++
		}
		leave(same)
		for _, c := range text[same:] {
			path = append(path, int32(len(v.nodes)))
			v.nodes = append(v.nodes, trieNode{first: int32(i), byte: c})
		}
		before = text
	}
	leave(0)
	v.nodes[0].skip = int32(len(v.nodes))
	v.nodes = append(slices.Clip(v.nodes), trieNode{first: int32(len(v.ids)), skip: math.MaxInt32}) // behind all
}

// describe fills what the nodes say of their subtrees.
func (v *Vocabulary) describe() {
	sets, known := make([]uint64, len(v.nodes)), map[uint64]uint16{}
	v.groups = append(v.groups, math.MaxUint64) // of those that are too many to be told apart: everything may occur there
	for i := int32(len(v.nodes)) - 2; i >= 0; i-- {
		n := &v.nodes[i]
		for c := i + 1; c < n.skip; c = v.nodes[c].skip {
			child := &v.nodes[c]
			n.height = max(n.height, uint8(min(longest, int(child.height)+1)))
			if child.byte < utf8.RuneSelf {
				sets[i] |= sets[c] | 1<<groupOf[child.byte]
			} else {
				sets[i] |= v.wide(c, []byte{child.byte}, sets)
			}
		}
		below, ok := known[sets[i]]
		if !ok && len(v.groups) < math.MaxUint16 {
			below = uint16(len(v.groups))
			known[sets[i]] = below
			v.groups = append(v.groups, sets[i])
		}
		n.below = below
	}
}

// wide returns the groups below node i, at which a character of several bytes has begun: with its bytes so far.
func (v *Vocabulary) wide(i int32, so []byte, sets []uint64) (groups uint64) {
	if r, n := utf8.DecodeRune(so); n == len(so) && r != utf8.RuneError || string(so) == string(utf8.RuneError) {
		return sets[i] | 1<<wideGroup
	}
	n := &v.nodes[i]
	if utf8.FullRune(so) {
		return sets[i] | 1<<brokenGroup
	}
	if v.own(i) {
		groups = 1 << brokenGroup
	}
	for c := i + 1; c < n.skip; c = v.nodes[c].skip {
		groups |= v.wide(c, append(so, v.nodes[c].byte), sets)
	}
	return groups
}

// own reports whether a token ends at node i.
func (v *Vocabulary) own(i int32) bool { return v.nodes[i+1].first > v.nodes[i].first }
