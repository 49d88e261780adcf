//go:build !cgo

package compiler

// Not a number on purpose: the compiler prints this text.
var _ int = "tandem's kernels are C: install gcc, and do not set CGO_ENABLED=0 (see README.md, \"See it\")"
