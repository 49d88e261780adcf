package roles

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/profile"
)

// CostsNotUsed logs why the costs that earlier processes have kept are not used, if that is worth a warning: that there are none is not.
func (r *Process) CostsNotUsed(why error) {
	if tandem.KindOf(why) == tandem.Stale {
		r.Log.Info("costs of passes are measured", "why", why)
		return
	}
	r.Log.Warn("kept costs of passes not used: they are measured again", "error", why)
}

// KeepCosts keeps what was measured for later processes. If that fails, as on a full disk, it is logged.
func (r *Process) KeepCosts(k profile.Kept, what profile.What, costs []tandem.Cost) {
	turn, ok, err := k.Turn()
	if ok {
		defer turn.End()
		if err == nil {
			err = turn.Keep(what, costs)
		}
	}
	if err != nil {
		r.Log.Warn("costs of passes not kept for the next start", "error", err)
	}
}
