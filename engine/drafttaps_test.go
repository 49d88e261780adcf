package engine_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/test/testkit/family"
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

// blockShapes are of block drafts.
var blockShapes = []family.DraftShape{
	{Kind: "dflash", Taps: []int{3, -1, 1, 2}},
	{Kind: "dflash", Taps: []int{2}, Tokens: 50, Output: true},
	{Kind: "dflash", Taps: []int{2, 3}, Two: true},
}

// draftFiles returns drafts for the tiny target by what they are: those of testdata, and one of each shape.
func draftFiles(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range draftNames {
		files[name] = sidePath(name)
	}
	makeDrafts(t, draftShapes, files)
	return files
}

// makeDrafts adds random drafts of these shapes to files.
func makeDrafts(t testing.TB, shapes []family.DraftShape, files map[string]string) {
	t.Helper()
	dir, target := t.TempDir(), family.Read(t, sidePath("target"))
	for i, s := range shapes {
		files[s.String()] = family.Draft(s, target, "dd9a29545807bb2b924edc09679dc0eb", "934910ae626e7b3f", uint64(i)).Write(t, dir)
	}
}

// TestDraftMemory: a draft takes memory for its own matrices and for the rows of the target's output matrix that it knows, and none for
// embeddings.
func TestDraftMemory(t *testing.T) {
	o := engine.Options{Device: testdevice.CPU(t, 1), KVPages: 3, MaxRows: 40}
	target := family.Read(t, sidePath("target"))
	head := target.Tensor("output.weight")
	if head == nil {
		head = target.Tensor("token_embd.weight")
	}
	files := draftFiles(t)
	makeDrafts(t, blockShapes, files)
	for name, path := range files {
		m := openDraftFile(t, path, o)
		var want int64
		packed := func(x *family.Tensor, rows int) {
			want += int64(kernels.Groups16.Bytes(kernels.Type(x.Type), rows, x.Shape[0]))
		}
		own := family.Read(t, path)
		for i := range own.Tensors {
			if x := &own.Tensors[i]; len(x.Shape) > 1 && x.Name != side.SelectorBefore && x.Name != side.SelectorAfter {
				packed(x, x.Shape[1])
			}
		}
		switch ids := engine.DraftOf(m).Spec.Draft.IDs; {
		case own.Tensor("output.weight") != nil:
		case ids != nil:
			packed(head, len(ids))
		default:
			packed(head, head.Shape[1])
		}
		o.KVPages = m.Pages()
		planned, err := engine.MeasureDraft(path, sidePath("target"), o)
		if err != nil || planned.Weights != engine.StoredBy(m) || planned.Weights != want {
			t.Errorf("%s: planned %d bytes of weights, taken %d, %v: want %d", name, planned.Weights, engine.StoredBy(m), err, want)
		}
	}
}

// TestDraftFileChanged: a pass reads embeddings from the target's file, which must stay as it is. One that was written to or cut short is
// an error of the pass, after which the sequence is as before.
func TestDraftFileChanged(t *testing.T) {
	whole, err := os.ReadFile(sidePath("target"))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 5000) },
		"touched": func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) },
		"removed": os.Remove,
	} {
		path := writeSide(t, whole)
		m, err := engine.OpenDraft(sidePath("eagle"), path, engine.Options{Device: testdevice.CPU(t, 1), KVPages: engine.PagesFor(1, 64,
			64)})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s := enginetest.NewSeq(t, m, 10, 2)
		enginetest.Forward(t, m, 1, engine.Part{Seq: s, Extend: []tandem.Token{1}, States: make([]engine.State, 1)})
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		_, err = m.Forward([]engine.Part{{Seq: s, Extend: []tandem.Token{2}, States: make([]engine.State, 1)}}, 0)
		if what == "removed" {
			if err != nil || s.Len() != 2 {
				t.Errorf("%s: %v", what, err)
			}
		} else if tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), path) || s.Len() != 1 {
			t.Errorf("%s: %d tokens, %v", what, s.Len(), err)
		}
	}
}
