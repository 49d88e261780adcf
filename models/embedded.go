//go:build !nomodels

package models

import "embed"

//go:embed gopher-*.gguf gopher-*.plan.json
var files embed.FS
