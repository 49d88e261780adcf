package timeline

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func example() Timeline {
	return Timeline{Title: "two <rounds>", Lanes: []Lane{{Name: "draft \"a\""}, {Name: "verify", Indent: 1}}, Stretches: []Stretch{
		{Lane: 1, Name: "verify 0", Kind: "verify", From: 2 * ms, To: 5 * ms, Args: map[string]any{"round": 0}},
		{Lane: 0, Name: "draft 0", Kind: "draft", From: 0, To: 2 * ms},
		{Lane: 0, Name: "draft 1", Kind: "draft", From: 5 * ms, To: 5*ms + 500*time.Nanosecond},
	}}
}

func TestChrome(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteChrome(&b); err != nil {
		t.Fatal(err)
	}
	const want = `{"displayTimeUnit":"ms","traceEvents":[` +
		`{"name":"process_name","ph":"M","ts":0,"pid":1,"tid":0,"args":{"name":"two \u003crounds\u003e"}},` +
		`{"name":"thread_name","ph":"M","ts":0,"pid":1,"tid":1,"args":{"name":"draft \"a\""}},` +
		`{"name":"thread_sort_index","ph":"M","ts":0,"pid":1,"tid":1,"args":{"sort_index":0}},` +
		`{"name":"thread_name","ph":"M","ts":0,"pid":1,"tid":2,"args":{"name":"verify"}},` +
		`{"name":"thread_sort_index","ph":"M","ts":0,"pid":1,"tid":2,"args":{"sort_index":1}},` +
		`{"name":"draft 0","cat":"draft","ph":"X","ts":0,"dur":2000,"pid":1,"tid":1},` +
		`{"name":"verify 0","cat":"verify","ph":"X","ts":2000,"dur":3000,"pid":1,"tid":2,"args":{"round":0}},` +
		`{"name":"draft 1","cat":"draft","ph":"X","ts":5000,"dur":0.5,"pid":1,"tid":1}]}` + "\n"
	if b.String() != want {
		t.Errorf("wrote\n%s\nwant\n%s", b.String(), want)
	}
	if !json.Valid(b.Bytes()) {
		t.Error("not JSON")
	}
}

func TestSVG(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(b.Bytes()))
	rects := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, b.String())
		}
		if s, ok := token.(xml.StartElement); ok && s.Name.Local == "rect" {
			rects++
		}
	}
	if rects != 4 {
		t.Errorf("%d rectangles: want 3 stretches and the ground", rects)
	}
	for _, want := range []string{"two &lt;rounds&gt;", "draft &#34;a&#34;", `fill="#2b7de9"`, "<title>verify 0: 3.0 ms</title>",
		">5.0 ms<"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
	if err := (Timeline{Title: "nothing"}).WriteSVG(&bytes.Buffer{}); err != nil {
		t.Error(err)
	}
}

func TestBetween(t *testing.T) {
	got := example().Between(ms, 3*ms).Stretches
	if len(got) != 2 || got[0].From != 2*ms || got[0].To != 3*ms || got[1].From != ms || got[1].To != 2*ms {
		t.Errorf("%+v: want what lies between 1 and 3 ms", got)
	}
}

func TestTick(t *testing.T) {
	for all, want := range map[time.Duration]time.Duration{0: 1, 8 * ms: ms, 9 * ms: 2 * ms, 81 * ms: 20 * ms, time.Second: 200 * ms} {
		if got := tick(all); got != want {
			t.Errorf("tick(%v) is %v: want %v", all, got, want)
		}
	}
}
