package profile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Paired is what a draft was measured to bring a target on this machine, with both in memory and computing on the same cores.
type Paired struct {
	Target     File               `json:"target"`
	Draft      File               `json:"draft"`
	Identities [2]tandem.Identity `json:"identities"` // the target's and the draft's
	Verify     []Point            `json:"verify"`     // passes of the target, behind the shortest context
	Passes     []Point            `json:"passes"`     // passes of the draft
	// Contention is how many times as long a pass of the target takes while passes of the draft run on the same cores: at least 1. 0: they
	// have no cores in common.
	Contention float64      `json:"contention,omitempty"`
	Texts      []PairedText `json:"texts"`
	// Trimmed is the gain that is predicted for the draft with TrimmedTo rows of its output matrix; 0: it has hardly more.
	Trimmed float64 `json:"trimmed,omitempty"`
}

// PairedText is how a draft does on one calibration text.
type PairedText struct {
	Text   string    `json:"text"`
	Depths []float64 `json:"depths"` // how often token i+1 of a chain is right if those before are
	Chain  int       `json:"chain"`  // drafted tokens of the best chain; 0: plain decoding is as fast
	Tokens float64   `json:"tokens"` // tokens that a round with it brings
	NS     int64     `json:"ns"`     // time that such a round takes, with drafting and verifying in turn
	Gain   float64   `json:"gain"`   // tokens per second with it ÷ those of plain decoding
}

// A draft whose output matrix has this many rows guesses nearly as well as with all of them: so much of how often it is right is left.
const (
	TrimmedTo    = 49152 // by default, modelfile/trim
	trimmedRight = 0.98
)

// Costs returns points as a planner takes them.
func Costs(points []Point) []tandem.Cost { return Subject{Points: points}.Costs() }

// Terms returns what the speed of rounds follows from, with a draft that is right so often, as worth.Chain has it.
func (p *Paired) Terms(right []float64) worth.Terms {
	return worth.Terms{Verify: worth.NewCosts(Costs(p.Verify)), Draft: worth.NewCosts(Costs(p.Passes)).Time(1), Right: right}
}

// Depths returns how often token i+1 of a chain is right if those before are: the mean of the texts.
func (p *Paired) Depths() (mean []float64) {
	for i := 0; ; i++ {
		sum, n := 0.0, 0.0
		for _, t := range p.Texts {
			if i < len(t.Depths) {
				sum, n = sum+t.Depths[i], n+1
			}
		}
		if n == 0 {
			return mean
		}
		mean = append(mean, sum/n)
	}
}

// Gain returns how many times as fast as plain decoding the target is with the best chain for each text: over texts of equal lengths, one
// after the other. It is at least 1, as plain decoding is a choice.
func (p *Paired) Gain() float64 {
	with := 0.0
	for _, t := range p.Texts {
		with += 1 / t.Gain
	}
	if with == 0 {
		return 1
	}
	return float64(len(p.Texts)) / with
}

// Judge fills in what the best chain of each text brings. head is the share of a pass of the draft that its output matrix takes, and rows
// are those of that matrix.
func (p *Paired) Judge(longest int, head float64, rows int) {
	trimmed := *p
	trimmed.Texts = slices.Clone(p.Texts)
	for i := range p.Texts {
		terms := p.Terms(p.Texts[i].Depths)
		p.Texts[i].judge(terms, longest)
		if cut := 1 - TrimmedTo/float64(rows); cut > 0 {
			terms.Draft -= time.Duration(cut * head * float64(terms.Draft))
			terms.Right = slices.Clone(terms.Right)
			for k := range terms.Right {
				terms.Right[k] *= trimmedRight
			}
			trimmed.Texts[i].judge(terms, longest)
			p.Trimmed = 1 // for now
		}
	}
	if p.Trimmed > 0 {
		p.Trimmed = trimmed.Gain()
	}
}

func (t *PairedText) judge(terms worth.Terms, longest int) {
	plain, best := terms.Best(0), terms.Best(min(longest, len(terms.Right)))
	t.Chain, t.Tokens, t.NS, t.Gain = best.Drafted, best.Tokens, int64(best.Time), best.Speed()/plain.Speed()
}

// String says in one line what the draft brings.
func (p *Paired) String() string {
	var texts []string
	for _, t := range p.Texts {
		texts = append(texts, fmt.Sprintf("%s %.2f with chains of %d", t.Text, t.Gain, t.Chain))
	}
	out := fmt.Sprintf("draft %s brings %.2f x here (%s)", p.Draft.Name, p.Gain(), strings.Join(texts, ", "))
	if p.Trimmed > 0 {
		out += fmt.Sprintf("; trimmed to %d tokens (tandem model trim) about %.2f x", TrimmedTo, p.Trimmed)
	}
	if p.Contention > 1 {
		out += fmt.Sprintf("; a pass of the target takes %.2f x as long beside passes of it", p.Contention)
	}
	return out
}

// Pair returns what was measured of two files, if it holds for this box and version. Errors: Stale, with the reason in words.
func (p *Plan) Pair(box Box, version string, target, draft File) (*Paired, error) {
	return p.pair(box, version, draft.Name, func(x *Paired) bool { return x.Target == target && x.Draft == draft })
}

// PairOf is Pair for two processes, which know the identities of their models.
func (p *Plan) PairOf(box Box, version string, target, draft tandem.Identity) (*Paired, error) {
	return p.pair(box, version, string(draft), func(x *Paired) bool { return x.Identities == [2]tandem.Identity{target, draft} })
}

func (p *Plan) pair(box Box, version, draft string, is func(*Paired) bool) (*Paired, error) {
	m, err := p.current(box, version)
	if err != nil {
		return nil, err
	}
	for i := range m.Pairs {
		if is(&m.Pairs[i]) {
			return &m.Pairs[i], nil
		}
	}
	return nil, stale("it has nothing of draft %s for this target", draft)
}

// Match adds what a draft brings, in place of an earlier measurement. p must have a machine.
func (p *Plan) Match(x Paired) {
	m := *p.Machine
	m.Pairs = append(slices.DeleteFunc(slices.Clone(m.Pairs), func(y Paired) bool { return y.Target == x.Target && y.Draft == x.Draft }), x)
	p.Machine = &m
}

func validPairs(all []Paired) error {
	if len(all) > mostSubjects {
		return corrupt("%d pairs: want at most %d", len(all), mostSubjects)
	}
	for i, x := range all {
		if err := x.validate(); err != nil {
			return corrupt("pair %d: %w", i, err)
		}
		if slices.ContainsFunc(all[:i], func(y Paired) bool { return y.Target == x.Target && y.Draft == x.Draft }) {
			return corrupt("pair %d: a second one of %s and %s", i, x.Target.Name, x.Draft.Name)
		}
	}
	return nil
}

func (p *Paired) validate() error {
	for i, f := range []File{p.Target, p.Draft} {
		err := firstError(name("name", f.Name), name("type of keys and values", f.KV), identity("identity", string(p.Identities[i])))
		if err != nil {
			return err
		}
	}
	what := What{Kind: "pair", Identity: p.Identities[0]}
	if err := firstError(Subject{what, p.Verify}.validate(), Subject{what, p.Passes}.validate()); err != nil {
		return err
	}
	if p.Contention != 0 && !(p.Contention >= 1 && p.Contention <= 1000) {
		return corrupt("a contention of %v: want 1 to 1000, or 0 for none", p.Contention)
	}
	if p.Trimmed != 0 && !(p.Trimmed >= 1) || math.IsInf(p.Trimmed, 0) {
		return corrupt("a gain of %v when trimmed: want 1 or more, or 0 for none", p.Trimmed)
	}
	if len(p.Texts) > mostTables {
		return corrupt("%d texts: want at most %d", len(p.Texts), mostTables)
	}
	for _, t := range p.Texts {
		switch {
		case text("text", t.Text) != nil:
			return text("text", t.Text)
		case len(t.Depths) == 0 || len(t.Depths) > tandem.MaxHindsight || t.Chain < 0 || t.Chain > len(t.Depths):
			return corrupt("a chain of %d with %d depths: want 1 to %d depths, and no longer a chain", t.Chain, len(t.Depths),
				tandem.MaxHindsight)
		case !(t.Tokens >= 1 && t.Tokens <= float64(t.Chain+1)) || t.NS < 1 || t.NS > int64(mostTime):
			return corrupt("%v tokens in %d ns with a chain of %d: want at least 1, at most the chain and one, within an hour", t.Tokens,
				t.NS, t.Chain)
		case !(t.Gain >= 1) || math.IsInf(t.Gain, 0):
			return corrupt("a gain of %v: want 1 or more", t.Gain)
		}
		for i, v := range t.Depths {
			if !(v >= 0 && v <= 1) {
				return corrupt("depths %d is %v: want 0 to 1", i, v)
			}
		}
	}
	return nil
}
