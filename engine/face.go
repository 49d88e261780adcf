package engine

import "github.com/tandem-llm/tandem/engine/memory"

type (
	Footprint = memory.Footprint
	Available = memory.Available
	Own       = memory.Own
)

const ProcessBytes = memory.ProcessBytes

func AvailableMemory() memory.Available  { return memory.Free() }
func TotalMemory() memory.Available      { return memory.Total() }
func GroupLimit() (bytes int64, ok bool) { return memory.GroupLimit() }
func Bytes(n int64) string               { return memory.Bytes(n) }
