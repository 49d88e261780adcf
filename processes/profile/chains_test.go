package profile

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestChainsByHand(t *testing.T) {
	// rounds of 2: at 0 both right; at 3 wrong; at 4 right, wrong; at 6 both right; then the text is too short
	text := []int8{0, 0, 3, -1, 0, 1, 0, 0, 0}
	depths, lengths := Chains([][]int8{text, text, text, text}, 2)
	if want := []float64{0.75, 2.0 / 3}; !reflect.DeepEqual(depths, want) {
		t.Errorf("depths %v: want %v", depths, want)
	}
	// rounds of 1: at 0, 2, 3, 4, 6, 8: right, wrong, wrong, right, right, right
	if want := []Length{{2, 1.75, 1 + 4.0/6}, {3, 2.25, 2.25}}; len(lengths) != 2 ||
		math.Abs(lengths[0].Measured-want[0].Measured) > 1e-12 ||
		math.Abs(lengths[1].Expected-want[1].Expected) > 1e-12 || math.Abs(lengths[1].Measured-want[1].Measured) > 1e-12 {
		t.Errorf("lengths %v: want %v", lengths, want)
	}
	if depths, lengths := Chains([][]int8{{0}}, 4); depths != nil || lengths != nil {
		t.Errorf("of a short text: %v, %v", depths, lengths)
	}
}

// TestChainsExpect: for a draft that is right by chance, independently, expected and measured lengths agree.
func TestChainsExpect(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	ranks := make([]int8, 50000)
	for i := range ranks {
		if draw.Float64() > 0.7 {
			ranks[i] = 1
		}
	}
	depths, lengths := Chains([][]int8{ranks[:20000], ranks[20000:]}, 16)
	if len(depths) != 16 || math.Abs(depths[0]-0.7) > 0.02 || len(lengths) != 5 {
		t.Fatalf("depths %v, lengths %v", depths, lengths)
	}
	for _, l := range lengths {
		if math.Abs(l.Expected/l.Measured-1) > 0.03 {
			t.Errorf("%+v: want about the same", l)
		}
	}
}

func TestBeginTimePut(t *testing.T) {
	p := plan(t)
	same := p.Begin(thisBox, "1.2")
	same.Time(Subject{what, []Point{{Rows: 1, NS: 5}}})
	same.Put(Table{Target: targetLineage, Name: "lookup", Text: p.Tables[2].Text, Depths: []float64{1}})
	if err := same.Validate(); err != nil || len(same.Machine.Subjects) != 1 || same.Machine.Subjects[0].Points[0].NS != 5 ||
		len(same.Tables) != 3 || len(same.Tables[2].Depths) != 1 {
		t.Errorf("%v: %+v", err, same)
	}
	if p.Machine.Subjects[0].Points[0].NS == 5 || len(p.Tables[2].Depths) != 2 {
		t.Error("the old plan has changed")
	}
	if other := p.Begin(thisBox, "1.3"); len(other.Machine.Subjects) != 0 || other.Machine.Version != "1.3" || len(other.Tables) != 3 {
		t.Errorf("of another version: %+v", other)
	}
	if a, b := Digest([]tandem.Token{1, 2}, []tandem.Token{3}), Digest([]tandem.Token{1}, []tandem.Token{2, 3}); a == b || len(a) != 16 {
		t.Errorf("digests %s and %s", a, b)
	}
}
