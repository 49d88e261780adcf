// Package src holds the CUDA sources of tandem's kernels. tandem.cu includes all others.
package src

import "embed"

// Files are the sources.
//
//go:embed *.cu *.h
var Files embed.FS
