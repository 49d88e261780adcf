//go:build nomodels

package models

import "embed"

var files embed.FS
