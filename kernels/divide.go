package kernels

import (
	"fmt"
	"time"
)

// Divider is a Device made of two that divide each pass.
type Divider interface {
	Device
	// Sides returns the two; the left one has the first outputs of each matrix and the first blocks of attention. They belong to whoever
	// made the device.
	Sides() (left, right Device)
	// Divide says how later passes are divided. A pass takes the divisions with the fewest Rows that are at least its own, or with the most
	// Rows if it has more. Of these it takes the first whose Context is at least its own, or the last one if none is that long. Without
	// divisions each side gets half. Errors: those of CheckDivisions; then nothing has changed.
	Divide(all []Division) error
	// Apart returns why the two have a copy each of weights and cache, with what one lacks; nil if they share one.
	Apart() error
	// MeetingTime measures how long it takes the two to meet if both come at once: what a pass pays where one needs what the other has
	// computed. 0 for two that do not share memory, and hand over rows instead.
	MeetingTime() (time.Duration, error)
}

// Division is how passes of up to so many rows, behind a context of up to so many positions, are divided between two devices.
type Division struct {
	Rows    int     `json:"rows"`
	Context int     `json:"context"`
	Columns float64 `json:"columns"` // the left's share of the outputs of every matrix: 0 none, 1 all
	Blocks  float64 `json:"blocks"`  // the left's share of the blocks of 256 positions that a row attends to
}

// CheckDivisions returns an error if a share is below 0 or above 1, or if divisions are not ordered by rows and then by context.
func CheckDivisions(all []Division) error {
	for i, x := range all {
		switch {
		case x.Rows < 1 || x.Context < 0:
			return fmt.Errorf("division %d is for %d rows behind %d positions, want at least 1 and 0", i, x.Rows, x.Context)
		case !(x.Columns >= 0 && x.Columns <= 1) || !(x.Blocks >= 0 && x.Blocks <= 1):
			return fmt.Errorf("division %d gives the left device %v of the columns and %v of the blocks, want 0 to 1", i, x.Columns,
				x.Blocks)
		case i > 0 && !all[i-1].before(x):
			return fmt.Errorf("division %d, %d rows behind %d positions, comes after %d behind %d: want ascending rows, then contexts", i,
				x.Rows, x.Context, all[i-1].Rows, all[i-1].Context)
		}
	}
	return nil
}

func (a Division) before(b Division) bool {
	return a.Rows < b.Rows || a.Rows == b.Rows && a.Context < b.Context
}
