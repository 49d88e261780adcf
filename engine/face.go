package engine

import (
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
)

// Available and Own are package memory's.
type (
	Available = memory.Available
	Own       = memory.Own
)

// ProcessBytes is package memory's.
const ProcessBytes = memory.ProcessBytes

// AvailableMemory is memory.Free.
func AvailableMemory() memory.Available { return memory.Free() }

// TotalMemory is memory.Total.
func TotalMemory() memory.Available { return memory.Total() }

// GroupLimit is memory.GroupLimit.
func GroupLimit() (bytes int64, ok bool) { return memory.GroupLimit() }

// Bytes is memory.Bytes.
func Bytes(n int64) string { return memory.Bytes(n) }

// SetThreads is Passes().SetThreads.
func (m *Model) SetThreads(n int) error { return m.passes.SetThreads(n) }

// Sides is Passes().Sides.
func (m *Model) Sides() (left, right kernels.Device) { return m.passes.Sides() }

// Divide is Passes().Divide.
func (m *Model) Divide(all []kernels.Division) error { return m.passes.Divide(all) }
