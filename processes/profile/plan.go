// Package profile is the plan file: what `tandem profile` measured once for a machine and a model, so that a planner need not learn it
// (ARCA's first half, Ghidorah, section III-C). A plan has two parts. One depends on the machine: the times of passes. The other does not:
// how often drafts and the target's own guesses are right on calibration text. It names the target's lineage, so it holds for every
// quantisation of a model, and may ship beside it.
//
//	CACHE/plan.json        both parts, written by `tandem profile`
//	MODEL.plan.json        the second part, beside MODEL.gguf
//
// A plan only makes a start quicker. Nothing may depend on it: a plan that is missing, damaged, of another machine or out of date is
// left out with a note that says why, and a false one costs time, never text.
package profile

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/shape"
)

const op = "plan"

// Format is the version of the file's format. A file of another version is not used.
const Format = 1

// Bounds of a plan.
const (
	mostSubjects = 64
	mostPoints   = 1024
	mostTables   = 256
	mostText     = 256  // bytes of a name
	mostDevice   = 4096 // bytes of a device's name, which may list cores
	mostRows     = 1 << 16
	mostContext  = 1 << 24
	mostTime     = time.Hour
)

// Plan is a plan file. Plain values; Validate has been called on a plan that was read.
type Plan struct {
	Format  int      `json:"format"`
	Machine *Machine `json:"machine,omitempty"` // what depends on the machine; nil in a file that ships beside a model
	Tables  []Table  `json:"tables,omitempty"`
}

// Machine is the part that depends on the machine.
type Machine struct {
	Box      Box       `json:"box"`
	Version  string    `json:"version"` // tandem's: another may be faster
	Measured time.Time `json:"measured"`
	Subjects []Subject `json:"subjects"`

	Divided   []Divided  `json:"divided,omitempty"`
	Decisions []Decision `json:"decisions,omitempty"`
	Pairs     []Paired   `json:"pairs,omitempty"`
	Earned    []Earned   `json:"earned,omitempty"`
	Placed    []Placed   `json:"placed,omitempty"`
}

// Subject is something that takes time: a model that runs passes, or heads that run behind one.
type Subject struct {
	What
	Points []Point `json:"points"`
}

// What says what was measured, and how it ran.
type What struct {
	Kind     string          `json:"kind"`     // "target", "draft", or a way of the target's own such as "medusa"
	Identity tandem.Identity `json:"identity"` // the model's; for heads, the lineage of their file
	Threads  int             `json:"threads"`  // 0: not the CPU's
	Device   string          `json:"device"`   // the device's own name, such as an instruction set
}

// Point is the time of one kind of pass.
type Point struct {
	Rows    int   `json:"rows"`    // with logits, root included; of heads: the accepted rows
	Context int   `json:"context"` // committed positions before them
	NS      int64 `json:"ns"`      // the lower quartile of several passes, in nanoseconds
	// Of a model with experts: those that the passes used, counted layer by layer, and what one more costs, in nanoseconds; 0: not known.
	Experts  int   `json:"experts,omitempty"`
	ExpertNS int64 `json:"expert_ns,omitempty"`
}

// Table says how often a drafter or a way of the target's own is right on a calibration text.
type Table struct {
	Target      string          `json:"target"`            // lineage of the target
	Name        string          `json:"name"`              // the drafter's or way's, as in statistics
	Lineage     string          `json:"lineage,omitempty"` // the draft model's or the side file's; "" for a drafter without a model
	Temperature float64         `json:"temperature"`       // temperature of the target's sampling
	Text        Text            `json:"text"`
	Accuracy    *shape.Accuracy `json:"accuracy,omitempty"` // how right a way is that guesses levels
	Depths      []float64       `json:"depths,omitempty"`   // how often token i+1 of a drafter's chains is right if those before are
	Accept      []float64       `json:"accept,omitempty"`   // chance of a node of a drafter's trees, by tandem.AcceptBin, never rising
	Lengths     []Length        `json:"lengths,omitempty"`
}

// Text names a calibration text.
type Text struct {
	Name   string `json:"name"`   // such as a domain
	Digest string `json:"digest"` // digest of its tokens
	Tokens int    `json:"tokens"`
}

// Length is an acceptance length by the number of nodes.
type Length struct {
	Nodes    int     `json:"nodes"`
	Expected float64 `json:"expected"` // acceptance length that the table predicts
	Measured float64 `json:"measured"` // decoding the text
}

// Costs returns the points as a planner takes them.
func (s Subject) Costs() []tandem.Cost {
	var out []tandem.Cost
	for _, p := range s.Points {
		out = append(out, tandem.Cost{Rows: p.Rows, Context: p.Context, Time: time.Duration(p.NS), Experts: p.Experts,
			Expert: time.Duration(p.ExpertNS)})
	}
	return out
}

// Nearest returns the costs behind the shortest of their contexts.
func Nearest(costs []tandem.Cost) []tandem.Cost {
	if len(costs) == 0 {
		return nil
	}
	shortest := slices.MinFunc(costs, func(a, b tandem.Cost) int { return a.Context - b.Context }).Context
	return slices.DeleteFunc(slices.Clone(costs), func(c tandem.Cost) bool { return c.Context != shortest })
}

// Points returns costs as a plan holds them, in order. Errors: none; Validate says what is impossible.
func Points(costs []tandem.Cost) []Point {
	var out []Point
	for _, c := range costs {
		out = append(out, Point{c.Rows, c.Context, int64(c.Time), c.Experts, int64(c.Expert)})
	}
	slices.SortFunc(out, comparePoints)
	return out
}

func comparePoints(a, b Point) int {
	return cmp.Or(cmp.Compare(a.Context, b.Context), cmp.Compare(a.Rows, b.Rows))
}

// Validate returns Corrupt if p is no plan: what is wrong, with which value, and what would be right.
func (p *Plan) Validate() error {
	if p.Format != Format {
		return corrupt("format %d: want %d: measure again with `tandem profile`", p.Format, Format)
	}
	if len(p.Tables) > mostTables {
		return corrupt("%d tables: want at most %d", len(p.Tables), mostTables)
	}
	if p.Machine != nil {
		if err := p.Machine.validate(); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for i, t := range p.Tables {
		if err := t.validate(); err != nil {
			return fmt.Errorf("table %d: %w", i, err)
		}
		if seen[t.key()] {
			return corrupt("table %d: a second one of %s for target %s at temperature %v on %s", i, t.Name, t.Target, t.Temperature,
				t.Text.Name)
		}
		seen[t.key()] = true
	}
	return nil
}

func (m *Machine) validate() error {
	if err := m.Box.validate(); err != nil {
		return err
	}
	if err := text("version", m.Version); err != nil {
		return err
	}
	if len(m.Subjects) > mostSubjects {
		return corrupt("%d subjects: want at most %d", len(m.Subjects), mostSubjects)
	}
	seen := map[What]bool{}
	for i, s := range m.Subjects {
		if err := s.validate(); err != nil {
			return fmt.Errorf("subject %d: %w", i, err)
		}
		if seen[s.What] {
			return corrupt("subject %d: a second one of %s %s", i, s.Kind, s.Identity)
		}
		seen[s.What] = true
	}
	return firstError(validDivided(m.Divided), validDecisions(m.Decisions), validPairs(m.Pairs), validEarned(m.Earned),
		validPlaced(m.Placed))
}

func (w What) validate() error {
	if err := firstError(name("kind", w.Kind), identity("identity", string(w.Identity)), device("device", w.Device)); err != nil {
		return err
	}
	if w.Threads < 0 || w.Threads > mostRows {
		return corrupt("%d threads: want 0 to %d", w.Threads, mostRows)
	}
	return nil
}

func (s Subject) validate() error {
	if err := s.What.validate(); err != nil {
		return err
	}
	if n := len(s.Points); n == 0 || n > mostPoints {
		return corrupt("%d points: want 1 to %d", n, mostPoints)
	}
	for i, p := range s.Points {
		switch {
		case p.Rows < 1 || p.Rows > mostRows || p.Context < 0 || p.Context > mostContext:
			return corrupt("point %d has %d rows behind %d positions: want 1 to %d rows, 0 to %d positions", i, p.Rows, p.Context, mostRows,
				mostContext)
		case p.NS < 1 || p.NS > int64(mostTime):
			return corrupt("point %d takes %d ns: want 1 to %d", i, p.NS, int64(mostTime))
		case p.Experts < 0 || p.Experts > tandem.MostUsed || p.ExpertNS < 0 || p.ExpertNS > int64(mostTime):
			return corrupt("point %d uses %d experts, one more for %d ns: want 0 to %d experts, 0 to %d ns", i, p.Experts, p.ExpertNS,
				tandem.MostUsed, int64(mostTime))
		case i > 0 && comparePoints(s.Points[i-1], p) >= 0:
			return corrupt("point %d has %d rows behind %d positions: want points ordered by positions and rows, each once", i, p.Rows,
				p.Context)
		}
	}
	return nil
}

func (t Table) key() string {
	return fmt.Sprintf("%s %q %v %q", t.Target, t.Name, t.Temperature, t.Text.Name)
}

func (t Table) validate() error {
	if err := firstError(lineage("target", t.Target), name("name", t.Name), text("text's name", t.Text.Name),
		text("text's digest", t.Text.Digest)); err != nil {
		return err
	}
	if t.Lineage != "" {
		if err := lineage("lineage", t.Lineage); err != nil {
			return err
		}
	}
	switch {
	case !(t.Temperature >= 0 && t.Temperature <= 100):
		return corrupt("temperature %v: want 0 to 100", t.Temperature)
	case t.Text.Tokens < 1:
		return corrupt("a text of %d tokens: want 1 or more", t.Text.Tokens)
	case t.Accuracy == nil && len(t.Depths) == 0 && len(t.Accept) == 0:
		return corrupt("%s has neither accuracy, depths nor accept: want one of them", t.Name)
	case len(t.Depths) > tandem.MaxHindsight || len(t.Lengths) > tandem.MaxHindsight:
		return corrupt("%d depths and %d lengths: want at most %d", len(t.Depths), len(t.Lengths), tandem.MaxHindsight)
	case len(t.Accept) != 0 && len(t.Accept) != tandem.AcceptBins():
		return corrupt("accept has %d bins: want %d, or none", len(t.Accept), tandem.AcceptBins())
	}
	if t.Accuracy != nil {
		if err := t.Accuracy.Validate(); err != nil {
			return corrupt("%w", err)
		}
	}
	for i, v := range t.Depths {
		if !(v >= 0 && v <= 1) {
			return corrupt("depths %d is %v: want 0 to 1", i, v)
		}
	}
	for i, v := range t.Accept {
		if !(v >= 0 && v <= 1) || i > 0 && v > t.Accept[i-1] {
			return corrupt("accept %d is %v: want 0 to 1, never rising", i, v)
		}
	}
	for i, l := range t.Lengths {
		most := float64(l.Nodes)
		if l.Nodes < 1 || l.Nodes > mostRows || !(l.Expected >= 1 && l.Expected <= most) || !(l.Measured >= 1 && l.Measured <= most) ||
			i > 0 && l.Nodes <= t.Lengths[i-1].Nodes {
			return corrupt("lengths %d: %d nodes, expected %v, measured %v: want lengths from 1 to the nodes, by ascending nodes", i,
				l.Nodes, l.Expected, l.Measured)
		}
	}
	return nil
}

// Chances returns the table's Accept as Plan.Accept takes it; nil if there is none.
func (t Table) Chances() []float32 {
	var out []float32
	for _, v := range t.Accept {
		out = append(out, float32(v))
	}
	return out
}

func corrupt(format string, args ...any) error {
	return tandem.Errorf(op, tandem.Corrupt, format, args...)
}

func firstError(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

// text checks words that are shown.
func text(what, s string) error { return words(what, s, mostText) }

// device checks the name of a device, which may be empty.
func device(what, s string) error { return words(what, s, mostDevice) }

func words(what, s string, most int) error {
	if len(s) > most || !utf8.ValidString(s) {
		return corrupt("%s has %d bytes: want UTF-8, at most %d bytes", what, len(s), most)
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f {
			return corrupt("%s %q: want no control characters", what, s)
		}
	}
	return nil
}

// name checks words that must be there.
func name(what, s string) error {
	if s == "" {
		return corrupt("no %s: want one", what)
	}
	return text(what, s)
}

func identity(what, s string) error {
	if s == "" {
		return corrupt("no %s: want one", what)
	}
	if err := tandem.ValidName(what, s); err != nil {
		return corrupt("%w", err)
	}
	return nil
}

// lineage checks the form of a lineage.
func lineage(what, s string) error {
	hex := len(s) == 32
	for _, c := range []byte(s) {
		hex = hex && (c >= '0' && c <= '9' || c >= 'a' && c <= 'f')
	}
	if !hex {
		return corrupt("%s %.64q: want a lineage, 32 hexadecimal digits, as `tandem model info` prints it", what, s)
	}
	return nil
}

// Merge adds other's parts to p. Where both have a table of the same name, target, temperature and text, or both have a machine
// part, p's counts.
func (p *Plan) Merge(other *Plan) {
	if p.Machine == nil {
		p.Machine = other.Machine
	}
	for _, t := range other.Tables {
		if !slices.ContainsFunc(p.Tables, func(x Table) bool { return x.key() == t.key() }) {
			p.Tables = append(p.Tables, t)
		}
	}
}

// Portable returns the part that does not depend on the machine, for the target of that lineage: what MODEL.plan.json holds.
func (p *Plan) Portable(target string) *Plan {
	out := &Plan{Format: Format}
	for _, t := range p.Tables {
		if t.Target == target {
			out.Tables = append(out.Tables, t)
		}
	}
	return out
}

// For returns the tables of a drafter or way for a target, the nearest temperature first. lineage is the present one of the draft model or
// side file; stale has a sentence for each table that was made with another.
func (p *Plan) For(target, name, lineage string, temperature float64) (tables []Table, stale []string) {
	for _, t := range p.Tables {
		switch {
		case t.Target != target || t.Name != name:
		case t.Lineage != lineage:
			stale = append(stale, fmt.Sprintf("the table of %s on %s is of lineage %s: it is %s now", name, t.Text.Name, orNone(t.Lineage),
				orNone(lineage)))
		default:
			tables = append(tables, t)
		}
	}
	slices.SortStableFunc(tables, func(a, b Table) int {
		return cmp.Compare(math.Abs(a.Temperature-temperature), math.Abs(b.Temperature-temperature))
	})
	return tables, stale
}

func orNone(s string) string { return cmp.Or(s, "none") }
