package strategy

import (
	"flag"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/spec/worth"
)

var ablate = flag.String("ablate", "", "regular expression of the names of numbers that TestAblation changes, . for all")

// number is one number of worth.Tuned.
type number struct {
	name string
	at   int // field index
}

// neutral are the values at which a number does nothing, of those that do not do so at 0.
var neutral = map[string]float64{"Rounds": 1e9, "Forget": 1}

// numbers lists the numbers of the table.
func numbers() (list []number) {
	v := reflect.TypeFor[worth.Numbers]()
	for i := range v.NumField() {
		list = append(list, number{v.Field(i).Name, i})
	}
	return list
}

// set gives a number a value, and returns what it was.
func (n number) set(value float64) (was float64) {
	f := reflect.ValueOf(&worth.Tuned).Elem().Field(n.at)
	was = f.Float()
	f.SetFloat(value)
	return was
}

// score returns, for each bench and for each arrival at it, the planner's rate over plain decoding on the half of the texts by which
// numbers are chosen: the geometric mean over texts, in two orders, each on a gateway of its own. Where the rules fail, it is 0.
func score(t testing.TB, rules Rules) (list []float64) {
	t.Helper()
	guard := func(f func() float64) {
		defer func() {
			if recover() != nil {
				list = append(list, 0)
			}
		}()
		list = append(list, f())
	}
	for _, x := range benches {
		texts := x.texts(t, false)
		guard(func() float64 {
			sum := 0.0
			for range 2 {
				shared := x.gateway(rules)
				for _, r := range texts {
					req := planned()
					req.Sampling.Temperature = r.temperature
					plain := (x.box.plain + x.box.verified.Time(1)).Seconds()
					sum += math.Log(plain * x.box.replay(r, req, shared, x.everyone()).rate())
				}
				texts = slices.Clone(texts)
				slices.Reverse(texts)
			}
			return math.Exp(sum / float64(2*len(texts)))
		})
		for _, of := range crowds {
			guard(func() float64 { return x.crowded(t, of, rules, x.everyone(), false) })
		}
	}
	return list
}

// crowds are the arrivals by which numbers are chosen.
var crowds = []arrival{{"8 at once", 8, 0}, {"8 at random", 8, 1}}

// TestAblation sets each number that -ablate names to the value at which it does nothing, to half and to twice its value, and prints by how
// much, in percent, the mean score and that of each bench and arrival then change. A number whose absence costs less than 1 % is not
// needed.
func TestAblation(t *testing.T) {
	if *ablate == "" {
		t.Skip("-ablate . says what each number is worth, in some minutes")
	}
	only := regexp.MustCompile(*ablate)
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	usual := score(t, rules)
	names := []string{"mean"}
	for _, x := range benches {
		names = append(names, x.name)
		for _, of := range crowds {
			names = append(names, x.name+", "+of.name)
		}
	}
	t.Logf("%s\n%.3f, in %v", strings.Join(names, " | "), usual, time.Since(begun))
	for _, n := range numbers() {
		if !only.MatchString(n.name) {
			continue
		}
		now := n.set(0)
		line := fmt.Sprintf("%-32s %-8.4g", n.name, now)
		for _, v := range []struct {
			name  string
			value float64
		}{{"none", neutral[n.name]}, {"half", now / 2}, {"double", now * 2}} {
			if v.value == now {
				continue
			}
			var off []string
			sum := 0.0
			n.set(v.value)
			rules, _ := Rules{}.WithDefaults()
			for i, s := range score(t, rules) {
				change := 100 * (s/usual[i] - 1)
				sum += change / float64(len(usual))
				off = append(off, fmt.Sprintf("%+.1f", change))
			}
			line += fmt.Sprintf("\n    %-7s %+6.2f  (%s)", v.name, sum, strings.Join(off, " "))
		}
		n.set(now)
		t.Log(line)
	}
}
