package start

import (
	"github.com/tandem-llm/tandem/app/modelinfo"
)

// Room is the memory for keys and values, as Checked has divided it among the processes. The zero value: each process finds its own.
type Room struct {
	modelinfo.Capacity
	target int64 // bytes of the target's pool
	drafts int64 // of all drafts' pools
}

// context returns what a session may have at most, as the gateway has it; 0: the model's.
func (s Setup) context() int {
	if s.Room.Cut() {
		return s.Room.One
	}
	return s.Ctx
}
