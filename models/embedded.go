//go:build !nomodels

package models

import "embed"

//go:embed gopher-19m-q8_0.gguf gopher-draft-all-f16.gguf
var files embed.FS
