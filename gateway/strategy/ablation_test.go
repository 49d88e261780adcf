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
)

var ablate = flag.String("ablate", "", "regular expression of the names of numbers that TestAblation changes, . for all")

// number is one number of the rules, by its path.
type number struct {
	name string
	at   []int // field indices
}

// papers are the fields of the rules that are not the planner's: the numbers of papers, and what is tuned beside those.
var papers = regexp.MustCompile(`^(Weights|Length|Alpha|Branch|InitialWeights|Tuning\.(Length|Alpha|Compare))`)

// neutral are the values at which a number does nothing, of those that do not do so at 0.
var neutral = map[string]float64{
	"Tuning.Planner.TextFade": 1, "Tuning.Planner.Low": 1, "Tuning.Planner.High": 1, "Tuning.Planner.Stale": 1e9, "Tuning.Choice.WideSlope": 1,
	"Tuning.Choice.WideEvery": 1 << 30, "Tuning.Choice.Dearer": 1e9, "Tuning.Choice.Late": 1e9, "Tuning.Costs.Outlier": 1e9,
	"Tuning.Costs.Fade": 1, "Tuning.Calibration.Forget": 1, "Planner.ProbeFirst": 1, "Planner.ProbeMost": 1 << 30,
}

// numbers lists the numbers of a struct.
func numbers(v reflect.Type, name string, at []int) (list []number) {
	for i := range v.NumField() {
		f := v.Field(i)
		path, index := strings.TrimPrefix(name+"."+f.Name, "."), append(slices.Clone(at), i)
		switch {
		case papers.MatchString(path) || !f.IsExported():
		case f.Type.Kind() == reflect.Struct:
			list = append(list, numbers(f.Type, path, index)...)
		case f.Type.Kind() == reflect.Float64 || f.Type.Kind() == reflect.Int || f.Type.Kind() == reflect.Int64:
			list = append(list, number{path, index})
		}
	}
	return list
}

// with returns the rules with a number set to a value.
func (n number) with(r Rules, value float64) Rules {
	f := reflect.ValueOf(&r).Elem().FieldByIndex(n.at)
	if f.CanFloat() {
		f.SetFloat(value)
	} else {
		f.SetInt(int64(math.Round(value)))
	}
	return r
}

func (n number) of(r Rules) float64 {
	f := reflect.ValueOf(r).FieldByIndex(n.at)
	if f.CanFloat() {
		return f.Float()
	}
	return float64(f.Int())
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
	for _, n := range numbers(reflect.TypeFor[Rules](), "", nil) {
		if !only.MatchString(n.name) {
			continue
		}
		now := n.of(rules)
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
			for i, s := range score(t, n.with(rules, v.value)) {
				change := 100 * (s/usual[i] - 1)
				sum += change / float64(len(usual))
				off = append(off, fmt.Sprintf("%+.1f", change))
			}
			line += fmt.Sprintf("\n    %-7s %+6.2f  (%s)", v.name, sum, strings.Join(off, " "))
		}
		t.Log(line)
	}
}
