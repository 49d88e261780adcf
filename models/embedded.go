//go:build !nomodels

package models

import "embed"

//go:embed gopher-19m-q8_0.gguf gopher-draft-all-f16.gguf gopher-draft-go-f16.gguf gopher-draft-py-f16.gguf gopher-draft-prose-f16.gguf
var files embed.FS
