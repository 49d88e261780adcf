package engine

import (
	"testing"

	"github.com/tandem-llm/tandem/testkit/family"
)

// draftShapes are of every kind, with one to four taps, with and without matrices, and with all tokens, some of them, and an output matrix
// for these.
var draftShapes = []family.DraftShape{
	{Kind: "eagle", Taps: []int{-1}, Bare: -1},
	{Kind: "eagle", Taps: []int{3, 1, 2}, Bare: 1},
	{Kind: "eagle", Taps: []int{1, 2, -1}, Bare: -1, Tokens: 70},
	{Kind: "eagle", Taps: []int{1, 2, 3, -1}, Bare: 3, Tokens: 101, Output: true},
	{Kind: "dovetail", Taps: []int{-1}, Bare: 0, Tokens: 33},
	{Kind: "dovetail", Taps: []int{2, 3, -1}, Bare: 2, Tokens: 64},
	{Kind: "dovetail", Taps: []int{3, 2, 1, -1}, Bare: -1, Tokens: 5, Output: true},
	{Kind: "eagle3", Taps: []int{2}, Tokens: 90},
	{Kind: "eagle3", Taps: []int{1, 2, -1}, Tokens: 250},
	{Kind: "eagle3", Taps: []int{3, -1, 1, 2}, Tokens: 50, Output: true},
}

// draftFiles returns drafts for the tiny target by what they are: those of testdata, and one of each shape.
func draftFiles(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range draftNames {
		files[name] = sidePath(name)
	}
	dir, target := t.TempDir(), family.Read(t, sidePath("target"))
	for i, s := range draftShapes {
		files[s.String()] = family.Draft(s, target, "dd9a29545807bb2b924edc09679dc0eb", "934910ae626e7b3f", uint64(i)).Write(t, dir)
	}
	return files
}
