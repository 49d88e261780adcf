package worth

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Spread is how many experts passes use by their rows, counted layer by layer: what is expected of the next pass. A row adds those of its
// experts that no row before it has used. For each doubling of the rows a running mean says which share of the experts that
// the new rows chose were new to the pass; it never rises with the rows. Not safe for concurrent use.
type Spread struct {
	each   float64   // of one row; 0: not known
	levels []level   // by doubling, as many as a pass may have
	curve  []float64 // expected of 1, 2, 4 … rows
}

// level is a running mean.
type level struct{ share, weight float64 }

// NewSpread returns a spread as measured. Without a measurement of one row, rows share no experts until Observe has seen passes.
func NewSpread(measured []tandem.Cost) *Spread {
	doublings := bits.Len(tandem.MostUsed) - 1
	s := &Spread{levels: make([]level, doublings), curve: make([]float64, doublings+1)}
	for i := range s.levels {
		s.levels[i].share = 1
	}
	known := slices.DeleteFunc(slices.Clone(measured), func(c tandem.Cost) bool { return c.Rows < 1 || c.Experts < 1 || c.Time <= 0 })
	slices.SortStableFunc(known, func(a, b tandem.Cost) int { return cmp.Compare(a.Rows, b.Rows) })
	known = slices.CompactFunc(known, func(a, b tandem.Cost) bool { return a.Rows == b.Rows })
	if len(known) == 0 || known[0].Rows != 1 {
		return s
	}
	s.each = float64(known[0].Experts)
	used := func(rows float64) float64 { // between two measurements a power of the rows
		for i := 1; i < len(known); i++ {
			if a, b := known[i-1], known[i]; rows <= float64(b.Rows) {
				power := math.Log(float64(b.Experts)/float64(a.Experts)) / math.Log(float64(b.Rows)/float64(a.Rows))
				return float64(a.Experts) * math.Pow(rows/float64(a.Rows), power)
			}
		}
		return -1
	}
	for i := range s.levels {
		rows := float64(int(1) << i)
		switch to := used(2 * rows); {
		case to >= 0:
			s.levels[i].share = min(max((to-used(rows))/(s.each*rows), 0), 1)
		case i > 1 && s.levels[i-2].share > 0: // as between the two before
			s.levels[i].share = s.levels[i-1].share * min(s.levels[i-1].share/s.levels[i-2].share, 1)
		case i > 0:
			s.levels[i].share = s.levels[i-1].share
		}
	}
	s.bend()
	return s
}

// Observe takes a pass of that many rows and the experts that it used.
func (s *Spread) Observe(rows int, used tandem.Experts) {
	if len(used) == 0 || used.Validate(rows) != nil {
		return
	}
	s.each = float64(used[0])
	for i := 1; i < len(used) && i <= len(s.levels); i++ {
		from, to := int(1)<<(i-1), min(int(1)<<i, rows)
		l := &s.levels[i-1]
		part := float64(to-from) / float64(from) // of the doubling
		share := float64(used[i]-used[i-1]) / (s.each * float64(to-from))
		l.weight = min(l.weight+part, 1/CostGain)
		l.share += (share - l.share) * part / (l.weight + 2)
	}
	s.bend()
}

// bend adds up what is expected.
func (s *Spread) bend() {
	s.curve[0] = s.each
	share := 1.0
	for i, l := range s.levels {
		share = min(share, max(l.share, 0))
		s.curve[i+1] = s.curve[i] + share*s.each*float64(int(1)<<i)
	}
}

// Used returns how many experts a pass of that many rows is expected to use, never less than for fewer rows; 0: not known.
func (s *Spread) Used(rows int) float64 {
	if rows < 1 {
		return 0
	}
	i := bits.Len(uint(rows)) - 1
	if i >= len(s.levels) {
		return s.curve[len(s.levels)]
	}
	from := int(1) << i
	return s.curve[i] + (s.curve[i+1]-s.curve[i])*float64(rows-from)/float64(from)
}
