package source

import (
	"sync"

	"github.com/tandem-llm/tandem/spec"
)

// mostTables bounds the tenants whose successors are kept: the table of the one that was served longest ago goes first.
const mostTables = 8

// successors holds, for all sessions of a gateway, what verdicts have said of likely tokens: a table for each tenant. No other tenant's
// texts change it, and no other tenant's drafts are made of it. How much a guess is worth is learned from all sessions, as costs and
// acceptance are. Safe for concurrent use; the zero value knows nothing.
type successors struct {
	mu      sync.Mutex
	tables  []tenantTable              // at most mostTables, the latest used last
	chances map[bool]*spec.RankChances // greedy, and sampled
}

type tenantTable struct {
	tenant string
	table  *spec.Successors
}

// of returns a tenant's table, nil if it has none. x.mu must be held.
func (x *successors) of(tenant string) *spec.Successors {
	for i, t := range x.tables {
		if t.tenant == tenant {
			x.tables = append(append(x.tables[:i], x.tables[i+1:]...), t)
			return t.table
		}
	}
	return nil
}

// begin returns a tenant's table, a new one if it has none. x.mu must be held.
func (x *successors) begin(tenant string) *spec.Successors {
	if t := x.of(tenant); t != nil {
		return t
	}
	if len(x.tables) == mostTables {
		x.tables = append(x.tables[:0], x.tables[1:]...)
	}
	x.tables = append(x.tables, tenantTable{tenant, spec.NewSuccessors()})
	return x.tables[len(x.tables)-1].table
}

// worth returns the chances of guesses. x.mu must be held.
func (x *successors) worth(sampled bool) *spec.RankChances {
	if x.chances == nil {
		x.chances = map[bool]*spec.RankChances{false: {}, true: {}}
	}
	return x.chances[sampled]
}
