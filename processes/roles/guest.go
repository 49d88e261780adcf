package roles

import (
	"cmp"
	"context"
	"net"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// A guest is a draft with states that runs in the process of its target, in place of one of its own. It takes the least memory: one Go, one
// program, one vocabulary, and buffers for the rows that it drafts. What serves it is the same (Process.Host).

// guestRows is the largest pass of a guest: a level of a tree, or a piece of a prompt.
const guestRows = 64

// GuestFeatures returns the memory in bytes, whole MiB, for hidden states that a guest of that kind may still read. It takes them as they
// come, a pass of the target at a time: there is room for those of two passes.
func GuestFeatures(spec side.Spec) int64 {
	const passes, f16, mib = 2, 2, 1 << 20
	width, _ := spec.StateWidth()
	return (int64(passes*passRows*width*f16)/mib + 1) * mib
}

// Guest says which draft with states a process runs beside its only model, the draft's target.
type Guest struct {
	Path    string // GGUF file of the draft
	Nodes   int    // tree rows of a session
	Threads int    // of its passes
}

// addGuest plans the guest at path beside the room's first model, which is its target.
func (r *Room) addGuest(path string, nodes int) error {
	if spec, err := engine.SideOf(path); err != nil || !spec.Kind.IsDraft() {
		return cmp.Or(err, tandem.Errorf("", tandem.Invalid, "draft %s reads no hidden states of its target: "+
			"want a process of its own for it", path))
	}
	return r.add(Tenant{path: path, nodes: nodes, rows: guestRows, wanted: guestRows, Footprint: memory.Footprint{Guest: true}})
}

// Hosting returns a room for r's models in which the last, a draft with states, is a guest of the first. Errors: those of Add.
func (r *Room) Hosting() (*Room, error) {
	out := r.Of(true, 0)
	last := &r.Models[len(r.Models)-1]
	spec, err := engine.SideOf(last.path)
	if err != nil {
		return nil, err
	}
	out.Target, out.Beside = r.Models[0].path, min(r.Beside, GuestFeatures(spec))
	return out, out.addGuest(last.path, last.nodes)
}

// DraftMemory returns what a draft with states takes beside its target, in bytes: in that one's process, and in a process of its own; with
// keys and values of one session. Errors: those of Room.Add.
func DraftMemory(target, draft string, o engine.Options, s settings.Sizes, nodes int) (inside, apart int64, err error) {
	r := Room{Sizes: s.OrDefault(), Options: o, Target: target, Lends: true}
	if err = r.Add(draft, nodes, DraftRows(r.Sizes)); err == nil {
		apart = r.Models[0].Model() + drafterBytes
		err = r.addGuest(draft, nodes)
	}
	if err != nil {
		return 0, 0, err
	}
	return r.Models[1].Total(), apart, nil
}

// others returns what the models but the first take of memory that all processes share or, if it bounds each by itself, of the first's.
func (r *Room) others(each bool) (sum int64) {
	for i := range r.Models[1:] {
		switch t := &r.Models[i+1]; {
		case t.Guest:
			sum += t.Total()
		case !each:
			sum += t.Model()
		}
	}
	return sum
}

// guests returns what of that is in the first model's process, and whether there are processes of others.
func (r *Room) guests() (bytes int64, apart bool) {
	for i := range r.Models[1:] {
		if t := &r.Models[i+1]; t.Guest {
			bytes += t.Total()
		} else {
			apart = true
		}
	}
	return bytes, apart
}

// openGuest opens the guest of a planned room, whose first model, target, is open, with the room's options, o.
func (r *Process) openGuest(g *Guest, k Models, room *Room, o engine.Options, target *engine.Model, undo *Cleanup) (*engine.Model, error) {
	_, gpu := o.Device.(kernels.MemoryOwner)
	if _, lends := o.Device.(kernels.Lendable); !gpu || !lends { // a GPU alone computes both
		d, err := k.Device(max(1, g.Threads))
		if err != nil {
			return nil, err
		}
		undo.Add(d.Close)
		o.Device = d
	}
	t := &room.Models[len(room.Models)-1]
	o.Taps, o.Shared, o.Images = nil, nil, nil
	target.Lend(&o)
	o.MaxRows, o.MaxWanted, o.Context, o.KVPages = t.rows, t.wanted, r.ContextOf(t.Context), t.Pages
	m, err := engine.OpenDraft(g.Path, room.Target, o)
	if err != nil {
		return nil, err
	}
	undo.Add(m.Close)
	r.tellMapped(g.Path, m, false)
	return m, nil
}

// Host starts another role in r's process, for a model of r's: with a server at an address beside r's, counters and traces of its own, and
// r's pulse. Errors: Start's. The caller serves and closes it.
func (r *Process) Host(ctx context.Context, role rpc.Role, m *engine.Model, drain func()) (*Process, error) {
	peer, program := r.Peer, r.Program
	peer.Listen, program.ReadyFD, program.PulseFD, program.Ready = DraftAddress(r.Server.Addr()), 0, 0, nil
	guest, err := Start(ctx, role, peer, program, drain)
	if err != nil {
		return nil, err
	}
	guest.pulse = r.pulse
	guest.pages([]*engine.Model{m})
	return guest, nil
}

// DraftAddress returns where a process at addr serves the draft beside its target: on a socket beside its own, or at a port that the system
// chooses.
func DraftAddress(addr string) string {
	if path, unix := strings.CutPrefix(addr, "unix://"); unix {
		return "unix://" + strings.TrimSuffix(path, ".sock") + "-draft.sock"
	}
	host, _, _ := net.SplitHostPort(addr) // of a server that listens
	return net.JoinHostPort(host, "0")
}

// Again reports whether this process's supervisor has started it in place of one that has died, hung or moved.
func (r *Process) Again() bool {
	if r.pulse == nil {
		return false
	}
	all, _ := r.pulse.Restarts()
	return all > 0
}

// Spares reports whether a process goes on without its guest, which err is about: one that was there before, so that a file which was
// damaged meanwhile does not cost the target's sessions.
func (r *Process) Spares(draft string, err error) bool {
	if err == nil || !r.Again() {
		return false
	}
	r.Log.Error("the draft beside the target is left", "draft", draft, "error", err)
	return true
}
