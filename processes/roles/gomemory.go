package roles

import (
	"os"
	"runtime/debug"

	"github.com/tandem-llm/tandem/engine/memory"
)

// leastGo is the smallest limit for Go's memory, in bytes: with less, the garbage collector would run all the time.
const leastGo = 128 << 20

// BoundGo makes Go collect its garbage before the process's control group is full. models is the memory of the models
// in bytes, outside of Go. A GOMEMLIMIT in the environment takes precedence.
func BoundGo(models int64) {
	if group, ok := memory.GroupLimit(); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(goBound(group, models))
	}
}

// gatewayGo is how much of Go's memory a gateway takes before it collects garbage more often, in bytes. Between two collections clients can
// make as much garbage as there is: streams that are reset, bodies that are refused.
const gatewayGo = 160 << 20

// BoundGateway makes a gateway's Go collect its garbage before that takes much memory. A GOMEMLIMIT in the environment takes precedence.
func BoundGateway() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(min(debug.SetMemoryLimit(-1), gatewayGo))
	}
}

// programBytes is the memory of a process that belongs neither to Go nor to its models: pages of the program, C's stacks.
const programBytes = 24 << 20

// BoundGoIn makes Go collect its garbage before the process takes more than limit bytes. needs is the process's need in all, as in
// memory.Footprint. A GOMEMLIMIT in the environment takes precedence.
func BoundGoIn(limit, needs int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(0, limit-needs) + memory.ProcessBytes - programBytes)
	}
}

// goBound returns the memory of a group that Go may take: what models leave, less a tenth of the group for C's stacks and
// libraries and page tables.
func goBound(group, models int64) int64 { return max(group-group/10-models, leastGo) }
