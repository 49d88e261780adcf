// Package models embeds the shipped models in the program, so that tandem writes text without a checkout and
// without a download. The build tag nomodels leaves them out: the program is then 38 MB smaller and needs --target and --draft.
//
// The files are part of the program's read-only data. The system reads a page of them from the program's file when it is
// touched, and may drop it again; nothing is copied at the start.
package models

import (
	"io/fs"
	"slices"
)

// The names of the shipped target, and of the draft for everything, in Files and in the folder models of a checkout.
const (
	Target = "gopher-19m-q8_0.gguf"
	Draft  = "gopher-draft-all-f16.gguf"
)

// Experts returns the names of the drafts that each know one domain best. Together they draft better than Draft.
func Experts() []string {
	return []string{"gopher-draft-go-f16.gguf", "gopher-draft-py-f16.gguf", "gopher-draft-prose-f16.gguf"}
}

// The names of the shipped side files: heads and prompt tokens for the target itself, and a draft that reads its hidden states.
const (
	Medusa   = "gopher-medusa-q8_0.gguf"
	PPD      = "gopher-ppd-f16.gguf"
	Dovetail = "gopher-dovetail-q8_0.gguf"
)

// Plan is the name of Target's plan: how right its side files and drafts are on calibration text.
const Plan = "gopher-19m-q8_0.plan.json"

// Sides returns the names of the side files for Target that this program carries: those of Medusa, PPD and Dovetail that it was built with.
func Sides() []string {
	return slices.DeleteFunc([]string{Medusa, PPD, Dovetail}, func(name string) bool {
		_, err := fs.Stat(files, name)
		return err != nil
	})
}

// Files returns the files that this program carries, named Target, Draft, Experts, Sides and Plan, in its root folder. It is empty in a
// program built with the tag nomodels. The files implement io.ReaderAt.
func Files() fs.FS { return files }
