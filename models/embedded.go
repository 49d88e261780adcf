//go:build !nomodels

package models

import "embed"

//go:embed gopher-*.gguf
var files embed.FS
