package profile

import (
	"fmt"
	"slices"
	"time"
)

// Placed says where a target and its drafts were found to be fastest on a box with a GPU, as measured in idle moments.
type Placed struct {
	Target     Sighting    `json:"target"`
	Drafts     []Sighting  `json:"drafts,omitempty"`
	KV         string      `json:"kv"`         // type of keys and values
	Now        Placement   `json:"now"`        // where they were while it was measured
	Placements []Placement `json:"placements"` // the chosen one first
}

const placedFile = ".placed.json"

// SeePlaced returns a Placed that says of which models it is. Errors: those of See.
func SeePlaced(target string, drafts []string, kv string) (p Placed, err error) {
	p.KV = kv
	if p.Target, err = See(target); err != nil {
		return p, err
	}
	for _, d := range drafts {
		x, err := See(d)
		if err != nil {
			return p, err
		}
		p.Drafts = append(p.Drafts, x)
	}
	return p, nil
}

// of reports whether both are about the same models.
func (p Placed) of(o Placed) bool {
	return p.Target == o.Target && p.KV == o.KV && slices.Equal(p.Drafts, o.Drafts)
}

// Placed returns where the target and the drafts of a Placed were found to be fastest, for this box, its GPUs and this version. Errors:
// Stale if nothing is kept of them; Corrupt and Unavailable as of Costs. Then it is measured anew.
func (k Kept) Placed(of Placed) (Placed, error) {
	p, err := k.read(placedFile)
	if err != nil {
		return of, err
	}
	m, err := p.current(k.box(placedFile), k.Version)
	if err != nil {
		return of, err
	}
	if i := slices.IndexFunc(m.Placed, of.of); i >= 0 {
		return m.Placed[i], nil
	}
	return of, stale("it places no such models")
}

// Place keeps where models are fastest, in place of what was kept of them; what was written first goes when there is too much. A file that
// cannot be used is replaced. Errors: Corrupt for impossible figures, Unavailable for a file that cannot be written.
func (k Kept) Place(now Placed) error {
	if k.Cache == "" {
		return nil
	}
	p, err := k.read(placedFile)
	if err != nil {
		p = &Plan{}
	}
	p = (&Plan{Machine: p.Machine}).Begin(k.box(placedFile), k.Version)
	m := p.Machine
	m.Placed = append(slices.DeleteFunc(m.Placed, now.of), now)
	m.Placed = m.Placed[max(0, len(m.Placed)-mostSubjects):]
	m.Measured = time.Now().UTC().Truncate(time.Second)
	return p.Write(k.file(placedFile))
}

func validPlaced(all []Placed) error {
	if len(all) > mostSubjects {
		return corrupt("%d targets are placed: want at most %d", len(all), mostSubjects)
	}
	for i, x := range all {
		err := firstError(name("target", x.Target.Name), name("type of keys and values", x.KV), x.Now.validate(),
			validPlacements(x.Placements))
		for _, d := range x.Drafts {
			err = firstError(err, name("draft", d.Name))
		}
		if err != nil {
			return fmt.Errorf("placed %d: %w", i, err)
		}
		if slices.ContainsFunc(all[:i], x.of) {
			return corrupt("placed %d: a second one of %s", i, x.Target.Name)
		}
	}
	return nil
}
