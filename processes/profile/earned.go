package profile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Earned is what a draft has brought to answers of a target on this box. Answers that came later count for more: whenever there are
// mostAnswers, all are halved.
type Earned struct {
	Target  Sighting `json:"target"`
	Draft   Sighting `json:"draft"`
	Answers int      `json:"answers"`
	PlainNS int64    `json:"plain_ns"` // worth.Earned.Plain of all answers, in nanoseconds
	TookNS  int64    `json:"took_ns"`  // worth.Earned.Took
}

// Sighting tells a file from others without reading it: a file that was changed or made anew is another one.
type Sighting struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Changed int64  `json:"changed"` // in nanoseconds since 1970
}

const (
	leastAnswers = 3  // that say whether a draft pays
	mostAnswers  = 16 // that are summed up before they are halved
)

// See returns how the file of a model looks now; of one that the program carries its version says the rest. Errors: the system's.
func See(path string) (Sighting, error) {
	if name, carried := strings.CutPrefix(path, gguf.Builtin); carried {
		return Sighting{Name: name}, nil
	}
	st, err := os.Stat(side.FileOf(path))
	if err != nil {
		return Sighting{}, err
	}
	return Sighting{Name: filepath.Base(path), Bytes: st.Size(), Changed: st.ModTime().UnixNano()}, nil
}

// Gain returns how many times as fast as without the draft the answers were, 1 if there are none.
func (e Earned) Gain() float64 {
	return worth.Earned{Plain: time.Duration(e.PlainNS), Took: time.Duration(e.TookNS)}.Gain()
}

// Useless reports whether enough answers say that the draft brings less than least.
func (e Earned) Useless(least float64) bool { return e.Answers >= leastAnswers && e.Gain() < least }

func (e Earned) String() string {
	return fmt.Sprintf("%.2f × plain is what it brought to %d answers here", e.Gain(), e.Answers)
}

// Earned returns what a draft has brought to a target, for this box, version and content of both files: the zero value if nothing is kept.
// Errors: Corrupt and Unavailable as of Costs; then what is kept does not count.
func (k Kept) Earned(target, draft Sighting) (Earned, error) {
	none := Earned{Target: target, Draft: draft}
	p, err := k.read(earnedFile)
	if err != nil {
		return none, err
	}
	m, err := p.current(ThisBox(), k.Version)
	if err != nil {
		return none, nil
	}
	if i := slices.IndexFunc(m.Earned, func(x Earned) bool { return x.Target == target && x.Draft == draft }); i >= 0 {
		return m.Earned[i], nil
	}
	return none, nil
}

// Earn adds an answer, and returns the sum. Those of which nothing was heard for longest go when there are too many; a file that cannot be
// used is replaced. Errors: Unavailable for a file that cannot be written; the sum is right nevertheless, but forgotten.
func (k Kept) Earn(target, draft Sighting, now worth.Earned) (Earned, error) {
	sum, _ := k.Earned(target, draft) // what cannot be read does not count
	if sum.Answers >= mostAnswers {
		sum.Answers, sum.PlainNS, sum.TookNS = sum.Answers/2, sum.PlainNS/2, sum.TookNS/2
	}
	sum.Answers, sum.PlainNS, sum.TookNS = sum.Answers+1, sum.PlainNS+int64(now.Plain), sum.TookNS+int64(now.Took)
	if k.Cache == "" {
		return sum, nil
	}
	p, err := k.read(earnedFile)
	if err != nil {
		p = &Plan{}
	}
	p = (&Plan{Machine: p.Machine}).Begin(ThisBox(), k.Version)
	m := p.Machine
	m.Earned = append(slices.DeleteFunc(m.Earned, func(x Earned) bool { return x.Target == target && x.Draft == draft }), sum)
	m.Earned = m.Earned[max(0, len(m.Earned)-mostSubjects):]
	m.Measured = time.Now().UTC().Truncate(time.Second)
	return sum, p.Write(k.file(earnedFile))
}

const earnedFile = ".earned.json"

func validEarned(all []Earned) error {
	if len(all) > mostSubjects {
		return corrupt("%d drafts have earned: want at most %d", len(all), mostSubjects)
	}
	const most = int64(mostAnswers * 24 * time.Hour)
	for i, x := range all {
		if err := firstError(name("target", x.Target.Name), name("draft", x.Draft.Name)); err != nil {
			return err
		}
		if x.Answers < 1 || x.Answers > mostAnswers || x.PlainNS < 1 || x.PlainNS > most || x.TookNS < 1 || x.TookNS > most {
			return corrupt("draft %d has %d answers of %d and %d ns: want 1 to %d, within a day each", i, x.Answers, x.PlainNS, x.TookNS,
				mostAnswers)
		}
		if slices.ContainsFunc(all[:i], func(y Earned) bool { return y.Target == x.Target && y.Draft == x.Draft }) {
			return corrupt("draft %d: a second one of %s and %s", i, x.Target.Name, x.Draft.Name)
		}
	}
	return nil
}
