package history

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// calm is a history with nothing wrong in it.
func calm() []Record {
	return []Record{
		{Kind: Reference, Ask: "a", Text: "one two", Prompt: 3, Output: 2},
		{Kind: Level, When: "before", Process: "gateway-1", What: "tandem_kv_pages", Value: 0},
		{Kind: Level, When: "before", Process: "gateway-1", What: "descriptors", Value: 20},
		{Kind: Request, ID: 1, Ask: "a", Via: "grpc"},
		{Kind: Fault, ID: 1, What: "kill", Target: "gateway-1"},
		{Kind: Died, Process: "gateway-1", Role: "gateway", Excuse: "kill"},
		{Kind: Answer, ID: 1, Ask: "a", Outcome: Whole, Text: "one two", Prompt: 3, Output: 2, Taken: 1},
		{Kind: Request, ID: 2, Ask: "a", Via: "http"},
		{Kind: Answer, ID: 2, Ask: "a", Outcome: Failed, Text: "one", Code: "UNAVAILABLE", Errors: []string{"EXHAUSTED"}},
		{Kind: Request, ID: 3, Ask: "a", Via: "http"},
		{Kind: Answer, ID: 3, Ask: "a", Outcome: Canceled, Text: "one t", Began: []string{"o"}},
		{Kind: Counts, Process: "gateway-1", What: "tandem:prompt_tokens_total", Value: 9, Told: 9},
		{Kind: Level, When: "after", Process: "gateway-1", What: "tandem_kv_pages", Value: 0},
		{Kind: Level, When: "after", Process: "gateway-1", What: "descriptors", Value: 30},
	}
}

func TestCheckCalm(t *testing.T) {
	r := Check(calm())
	if len(r.Problems) > 0 {
		t.Errorf("problems %q: want none", r.Problems)
	}
	if r.Requests != 3 || r.Whole != 1 || r.Taken != 1 || r.Failed != 1 || r.Canceled != 1 || r.Kills["gateway"] != 1 ||
		r.Faults["kill"] != 1 || r.Errors["UNAVAILABLE"] != 1 || r.Errors["EXHAUSTED"] != 1 {
		t.Errorf("report %+v", r)
	}
}

// TestCheckFinds changes one record of a calm history in each case, and wants one problem of it.
func TestCheckFinds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(all []Record) []Record
		want   string
		wrong  int
		lost   int
	}{
		"another text": {func(all []Record) []Record { all[6].Text = "one six"; return all },
			`behind 4 bytes "six", want "two"`, 1, 0},
		"a text that ends too early": {func(all []Record) []Record { all[6].Text = "one"; return all }, "another text", 1, 0},
		"counted twice":              {func(all []Record) []Record { all[6].Output = 4; return all }, "counted as 3 and 4 tokens", 1, 0},
		"a wrong begin before an error": {func(all []Record) []Record { all[8].Text = "six"; return all },
			"began with another text", 1, 0},
		"a wrong begin before asking anew": {func(all []Record) []Record { all[10].Began[0] = "six"; return all },
			"began with another text", 1, 0},
		"an undocumented error": {func(all []Record) []Record { all[8].Code = "INTERNAL"; return all }, "has the error INTERNAL", 0, 0},
		"an undocumented error on the way": {func(all []Record) []Record { all[8].Errors[0] = "CORRUPT"; return all },
			"has the error CORRUPT", 0, 0},
		"no end":              {func(all []Record) []Record { return slices.Delete(all, 6, 7) }, "neither an answer nor an error", 0, 1},
		"two ends":            {func(all []Record) []Record { return append(all, all[6]) }, "second answer", 1, 0},
		"no reference":        {func(all []Record) []Record { all[6].Ask = "b"; return all }, `"b" has no reference`, 0, 0},
		"an unknown outcome":  {func(all []Record) []Record { all[6].Outcome = "fine"; return all }, `outcome "fine"`, 0, 0},
		"a crash":             {func(all []Record) []Record { all[5].Excuse = ""; return all }, "has ended by itself", 0, 0},
		"pages that leak":     {func(all []Record) []Record { all[12].Value = 1; return all }, "has 1 tandem_kv_pages after", 0, 0},
		"descriptors that do": {func(all []Record) []Record { all[13].Value = 37; return all }, "has 37 descriptors after", 0, 0},
		"other counts":        {func(all []Record) []Record { all[11].Value = 12; return all }, "counted 12 as", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := Check(tc.change(calm()))
			if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], tc.want) {
				t.Errorf("problems %q: want one with %q", r.Problems, tc.want)
			}
			if r.Wrong != tc.wrong || r.Lost != tc.lost {
				t.Errorf("wrong %d, lost %d: want %d, %d", r.Wrong, r.Lost, tc.wrong, tc.lost)
			}
		})
	}
}

// TestSlopes: the slope is that of the longest life, without its first minutes. That of the later half shows whether memory levels off.
func TestSlopes(t *testing.T) {
	var all []Record
	for s := range 600 {
		at := time.Duration(s) * time.Second
		bytes := int64(1<<20 + min(s, 360)*1000) // it levels off in the middle of what counts
		if at < warm {
			bytes = int64(s * 1 << 20) // caches fill
		}
		all = append(all, Record{Kind: Sample, At: at, Process: "verifier-1", PID: 7, Bytes: bytes})
		if s < 200 {
			all = append(all, Record{Kind: Sample, At: at, Process: "verifier-1", PID: 6, Bytes: 5}, // killed soon
				Record{Kind: Sample, At: at, Process: "drafter-1a", PID: 5, Bytes: 5})
		}
	}
	r := Check(all)
	got, ok := r.Slopes["verifier-1"]
	if !ok || math.Abs(got.PerHour-1.8e6) > 2e4 || got.Late != 0 || len(r.Slopes) != 1 {
		t.Errorf("slopes %+v: want one of the verifier with 1.8e6 bytes an hour, and none in the later half", r.Slopes)
	}
}

// TestSum: sums of reports are those of their parts, and survive JSON.
func TestSum(t *testing.T) {
	a, b := Check(calm()), Check(calm())
	a.Skipped["mixed"], b.Faults["mixed"] = "no program", 2
	a.Slopes["x"], b.Slopes["x"] = Slope{Hours: 1, PerHour: 5}, Slope{Hours: 2, PerHour: 7}
	b.Problems = append(b.Problems, "one")
	s := Sum([]*Report{a, b})
	if s.Campaigns != 2 || s.Requests != 6 || s.Kills["gateway"] != 2 || s.Errors["UNAVAILABLE"] != 2 || s.Faults["mixed"] != 2 ||
		len(s.Skipped) != 0 || s.Slopes["x"].PerHour != 7 || len(s.Problems) != 1 {
		t.Errorf("sum %+v", s)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again := new(Report)
	if err := json.Unmarshal(text, again); err != nil {
		t.Fatal(err)
	}
	var one, two bytes.Buffer
	if s.Print(&one) != nil || again.Print(&two) != nil || one.String() != two.String() || !strings.Contains(one.String(), "PROBLEM: one") {
		t.Errorf("printed\n%s, after JSON\n%s", &one, &two)
	}
}

// TestLog: what is written is what is read, and a broken line is named.
func TestLog(t *testing.T) {
	var file bytes.Buffer
	l := NewLog(&file)
	for _, r := range calm() {
		l.Add(r)
	}
	want, err := l.Records()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(file.Bytes()))
	if err != nil || len(got) != len(want) || got[6].Text != want[6].Text || got[6].At != want[6].At {
		t.Errorf("read %d records, error %v: want the %d that were written", len(got), err, len(want))
	}
	file.WriteString("{\n")
	if _, err := Read(&file); err == nil || !strings.Contains(err.Error(), "line 15") {
		t.Errorf("error %v: want one about line 15", err)
	}
}
