package side

import (
	"fmt"
	"strings"
)

// MTP is a layer that guesses further tokens (multi-token prediction). A model's own file has it, or a side file has one to use in its
// place: then its tensors are called as in the model's file, as those of layer 0, and the target's embedding and output matrix serve it.
const MTP Kind = "mtp"

// mtpLayer begins the names of the layer's tensors in a side file.
const mtpLayer = "blk.0."

// mtp: the shapes of the tensors before and behind the layer are known here; those of the layer follow from its target's shape, with which
// the engine compares them.
var mtp = layout{kind: MTP, taps: 1, read: readMTP, set: setIDs, check: checkMTP, describe: describeDraft,
	tensors: func(l *slots, s *Spec) {
		l.add(mtpLayer+"nextn.eh_proj.weight", Zeros, 2*s.Dim, s.Dim)
		for _, name := range []string{"enorm", "hnorm", "shared_head_norm"} {
			l.add(mtpLayer+"nextn."+name+".weight", Norm, s.Dim)
		}
	},
	others: func(name string) bool {
		return strings.HasPrefix(name, mtpLayer) && !strings.HasPrefix(name, mtpLayer+"nextn.")
	}}

func readMTP(r *reader) {
	if r.spec.Blocks, r.spec.Draft.Width = 1, r.spec.Dim; r.hasIDs() {
		readIDs(r)
	}
}

func checkMTP(s *Spec) error {
	switch {
	case s.Draft.Width != s.Dim:
		return fmt.Errorf("a draft of width %d for a target of %d: want the same", s.Draft.Width, s.Dim)
	case len(s.Draft.IDs) == 0:
		return nil
	}
	return s.checkIDs()
}

const mtpPrefix = "mtp:"

// MTPPath returns a name for the draft inside the model's own file at path. It may stand wherever the path of a side file may.
func MTPPath(path string) string { return mtpPrefix + path }

// IsMTPPath reports whether path was made by MTPPath.
func IsMTPPath(path string) bool { return strings.HasPrefix(path, mtpPrefix) }

// FileOf returns the path of the file to open: the model's for a name made by MTPPath, else path itself.
func FileOf(path string) string { return strings.TrimPrefix(path, mtpPrefix) }
