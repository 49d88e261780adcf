package campaign

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kinds of faults.
const (
	Kill        = "kill"        // SIGKILL of a process
	Box         = "box"         // SIGKILL of all processes of a box
	Stop        = "stop"        // SIGSTOP of a process for at least 10 s
	Partition   = "partition"   // nothing passes between two boxes
	Asymmetric  = "asymmetric"  // nothing passes from one box to another; the other way all does
	HalfOpen    = "halfopen"    // what is connected now hears no more of one box; new connections work
	Cut         = "cut"         // what is connected now between two boxes is reset
	Loss        = "loss"        // a box loses some of what is sent to it
	Delay       = "delay"       // connections to a process take longer, and not always equally long
	Bandwidth   = "bandwidth"   // a box sends slowly
	Slots       = "slots"       // shared memory of a drafter or gateway is overwritten with garbage
	Disk        = "disk"        // a box's folder of temporary files is full
	Memory      = "memory"      // a box may use no more memory than it does
	Descriptors = "descriptors" // a process can open no more files
	Cancel      = "cancel"      // many clients come and go at once
	Mixed       = "mixed"       // a process goes on with the program of another release
)

// Kinds are all kinds of faults.
var Kinds = []string{Kill, Box, Stop, Partition, Asymmetric, HalfOpen, Cut, Loss, Delay, Bandwidth, Slots, Disk, Memory, Descriptors,
	Cancel, Mixed}

// fault is one planned fault.
type fault struct {
	at   time.Duration // since the faults' begin
	span time.Duration // how long it lasts
	kind string
	name string // of the victim, a process; "" where boxes are
	box  int    // the victim, or that which hears nothing; 0 is the clients'
	from int    // the other one
	seed uint64 // of what else is drawn
}

// target names the victims.
func (f fault) target() string {
	switch {
	case f.name != "":
		return f.name
	case f.kind == Partition || f.kind == Asymmetric || f.kind == HalfOpen || f.kind == Cut:
		return fmt.Sprintf("box %d from box %d", f.box, f.from)
	}
	return fmt.Sprintf("box %d", f.box)
}

// ParseKinds returns the kinds of faults in a list with commas: "all", "none", or names.
func ParseKinds(list string) ([]string, error) {
	switch list {
	case "all":
		return Kinds, nil
	case "none", "":
		return nil, nil
	}
	kinds := strings.Split(list, ",")
	for _, k := range kinds {
		if !slices.Contains(Kinds, k) {
			return nil, fmt.Errorf("fault %q: want all, none, or some of %s", k, strings.Join(Kinds, ","))
		}
	}
	return kinds, nil
}

// least and most are how long a fault lasts; a stopped process and connections that hear nothing take longer.
const least, most = 3 * time.Second, 8 * time.Second

// schedule returns faults for that long, the same for the same seed. Kills come one a beat. The other kinds take turns beside them. One
// begins a while after the one before has ended; only those that take longer than most last beside others.
func schedule(l Layout, kinds []string, length, beat time.Duration, seed uint64) (all []fault) {
	r := rand.New(rand.NewPCG(seed, 35))
	others := slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return k == Kill })
	if len(others) < len(kinds) {
		order := map[string][]Member{}
		for i, at := 0, beat; at < length; i, at = i+1, at+beat/2+upTo(beat, r) {
			role := Roles[i%len(Roles)] // equally often, whatever the layout has more of
			if len(order[role]) == 0 {
				order[role] = l.of(role, 0)
				r.Shuffle(len(order[role]), func(i, j int) { order[role][i], order[role][j] = order[role][j], order[role][i] })
			}
			all = append(all, fault{at: at, kind: Kill, name: order[role][0].Name})
			order[role] = order[role][1:]
		}
	}
	for i, at := 0, beat/2; len(others) > 0 && at < length; i++ {
		if i%len(others) == 0 {
			r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		}
		f := draw(l, others[i%len(others)], r)
		f.at, f.span = at, min(f.span, length-at)
		all = append(all, f)
		at += min(f.span, most) + beat + upTo(beat, r)
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}

// upTo draws a time below most.
func upTo(most time.Duration, r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}

// draw chooses victims and length of a fault.
func draw(l Layout, kind string, r *rand.Rand) fault {
	f := fault{kind: kind, seed: r.Uint64(), box: 1 + r.IntN(l.Boxes), span: least + upTo(most-least, r)}
	victims := l.Members
	switch kind {
	case Box, Cut:
		f.span = 0
	case Stop:
		f.span += 7 * time.Second
	case HalfOpen:
		f.span += 27 * time.Second // longer than keepalives need
	case Cancel:
		f.span = 2 * time.Second
	case Slots:
		victims = slices.DeleteFunc(slices.Clone(victims), func(m Member) bool { return !m.Local || m.Role == NATS || m.Role == Verifier })
	case Delay:
		victims = slices.DeleteFunc(slices.Clone(victims), func(m Member) bool { return m.Local && m.Role != Gateway })
	case Mixed:
		victims = slices.DeleteFunc(slices.Clone(victims), func(m Member) bool { return m.Role == NATS })
	}
	switch kind {
	case Stop, Slots, Delay, Descriptors, Mixed:
		if len(victims) == 0 {
			victims = l.Members
		}
		m := victims[r.IntN(len(victims))]
		f.name, f.box = m.Name, m.Box
	case Partition, Asymmetric, HalfOpen, Cut:
		f.from = (f.box + 1 + r.IntN(l.Boxes)) % (l.Boxes + 1) // another box, or the clients
	}
	return f
}
