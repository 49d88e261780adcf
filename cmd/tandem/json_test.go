package main

import (
	"testing"

	"github.com/tandem-llm/tandem/app/bench"
	benchpair "github.com/tandem-llm/tandem/app/bench/pair"
	"github.com/tandem-llm/tandem/app/bench/system"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/talk/status"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/settings/config"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestJSONFields: what --json prints keeps its fields, with their types, in this order. Scripts read them.
func TestJSONFields(t *testing.T) {
	testkit.JSONFields(t, "testdata/json.golden", []testkit.Printed{
		{Command: "generate", Result: new(talk.Generation)},
		{Command: "up", Result: new(upResult)},
		{Command: "health", Result: new(healthResult)},
		{Command: "ps", Result: new(status.Status)},
		{Command: "drain", Result: new(drainResult)},
		{Command: "logits", Result: new(bench.Logits)},
		{Command: "model info", Result: new(modelinfo.Model)},
		{Command: "model quantize, model expand, model random", Result: new(convert.Result)},
		{Command: "bench decode", Result: new(bench.DecodeResult)},
		{Command: "bench system", Result: new(system.Result)},
		{Command: "bench pair", Result: new(benchpair.Result)},
		{Command: "profile", Result: new(profile.Plan)},
		{Command: "profile --explain", Result: new(profile.Decision)},
		{Command: "config", Result: new(config.Setting)},
		{Command: "version", Result: new(versionInfo)},
	})
}
