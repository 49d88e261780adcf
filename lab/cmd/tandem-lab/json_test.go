package main

import (
	"testing"

	"github.com/tandem-llm/tandem/lab/guesses"
	"github.com/tandem-llm/tandem/lab/passes"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestJSONFields: what --json prints keeps its fields, with their types, in this order. Scripts read them.
func TestJSONFields(t *testing.T) {
	testkit.JSONFields(t, "testdata/json.golden", []testkit.Printed{
		{Command: "bench kernels", Result: new(passes.KernelsResult)},
		{Command: "bench experts", Result: new(passes.ExpertsResult)},
		{Command: "bench guesses", Result: new(guesses.Result)},
	})
}
