package profile

import (
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// Divided says how the passes of a model on two devices were best divided: ARCA's second half (Ghidorah, section III-C).
type Divided struct {
	What
	Points []DividedPoint `json:"points"`
	// MeetingNS is how long the two take to meet if both come at once, in nanoseconds; 0 for two that hand over rows instead.
	MeetingNS int64 `json:"meeting_ns,omitempty"`
}

// DividedPoint is how one kind of pass is divided, with its median times in nanoseconds: as divided, and by each device alone.
type DividedPoint struct {
	kernels.Division
	NS      int64 `json:"ns"`
	LeftNS  int64 `json:"left_ns"`
	RightNS int64 `json:"right_ns"`
}

// Divisions returns how passes of what are divided, if the plan says it for this box and version. Errors: Stale, with the reason in words.
func (p *Plan) Divisions(box Box, version string, what What) (all []kernels.Division, err error) {
	m, err := p.current(box, version)
	if err != nil {
		return nil, err
	}
	why := fmt.Sprintf("it divides no passes of a %s", what.Kind)
	for _, d := range m.Divided {
		if d.What == what {
			for _, x := range d.Points {
				all = append(all, x.Division)
			}
			return all, nil
		}
		why = d.otherwise(what, why)
	}
	return nil, stale("%s", why)
}

func validDivided(all []Divided) error {
	if len(all) > mostSubjects {
		return corrupt("%d divided subjects: want at most %d", len(all), mostSubjects)
	}
	seen := map[What]bool{}
	for i, d := range all {
		if err := d.validate(); err != nil {
			return fmt.Errorf("divided %d: %w", i, err)
		}
		if seen[d.What] {
			return corrupt("divided %d: a second one of %s %s", i, d.Kind, d.Identity)
		}
		seen[d.What] = true
	}
	return nil
}

func (d Divided) validate() error {
	if err := d.What.validate(); err != nil {
		return err
	}
	if n := len(d.Points); n == 0 || n > mostPoints {
		return corrupt("%d points: want 1 to %d", n, mostPoints)
	}
	if d.MeetingNS < 0 || d.MeetingNS > int64(mostTime) {
		return corrupt("a meeting takes %d ns: want 0 to %d", d.MeetingNS, int64(mostTime))
	}
	var all []kernels.Division
	for i, x := range d.Points {
		if x.Rows > mostRows || x.Context > mostContext {
			return corrupt("point %d has %d rows behind %d positions: want up to %d rows and %d positions", i, x.Rows, x.Context, mostRows,
				mostContext)
		}
		for _, ns := range []int64{x.NS, x.LeftNS, x.RightNS} {
			if ns < 1 || ns > int64(mostTime) {
				return corrupt("point %d takes %d ns: want 1 to %d", i, ns, int64(mostTime))
			}
		}
		all = append(all, x.Division)
	}
	if err := kernels.CheckDivisions(all); err != nil {
		return corrupt("%w", err)
	}
	return nil
}
