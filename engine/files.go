package engine

import (
	"context"

	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/inspect"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/open"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// What is known of a model's files before they are opened.
type (
	Info = inspect.Info
	Work = plan.Work
)

// Inspect describes the model file at path: see inspect.Model.
func Inspect(path string) (*Info, error) { return inspect.Model(path) }

// SideOf describes the side file at path: see header.SideOf.
func SideOf(path string) (side.Spec, error) { return header.SideOf(path) }

// CheckTarget returns Invalid for a model that cannot be a target: see header.CheckTarget.
func CheckTarget(name string, c Config) error { return header.CheckTarget(name, c) }

// Identify returns the names that the model in the file at path would have if opened with o: see open.Identify.
func Identify(ctx context.Context, path string, o Options) (Names, error) {
	return open.Identify(ctx, path, o)
}

// Measure returns the memory that Open and OpenSide would take: see open.Measure.
func Measure(path string, o Options, sides ...string) (memory.Footprint, error) {
	return open.Measure(path, o, sides...)
}

// MeasureDraft returns the memory that OpenDraft would take: see open.MeasureDraft.
func MeasureDraft(path, target string, o Options) (memory.Footprint, error) {
	return open.MeasureDraft(path, target, o)
}
