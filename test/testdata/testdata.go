// Package testdata embeds the prompts that measurements take by default, so that they need no checkout.
package testdata

import "embed"

// Prompts holds chats.jsonl, which are chats, and prompts.jsonl, which are texts to continue (app/bench/prompts).
//
//go:embed chats.jsonl prompts.jsonl
var Prompts embed.FS
