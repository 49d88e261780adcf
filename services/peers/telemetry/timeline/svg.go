package timeline

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"time"
)

// Measures of a picture, in pixels.
const (
	labelWidth = 290
	chartWidth = 840
	rightEdge  = 70 // for the duration after the last bar
	rowHeight  = 18
	barHeight  = 12
	headHeight = 46
	indent     = 12
)

// colours of kinds, in the order in which they first appear beyond those that are named.
var (
	named = map[string]string{"draft": "#2b7de9", "ahead": "#8fbdf5", "pool": "#b9b9b9", "send": "#b9b9b9", "verify": "#e0772d",
		"process": "#f0b98a", "commit": "#3a9d5d"}
	others = []string{"#7a6fbf", "#4aa3a3", "#a86d8f", "#8d8d5a", "#6f7f8f"}
)

// WriteSVG writes t as a picture: a row for each lane, one clock above them.
func (t Timeline) WriteSVG(w io.Writer) error {
	begin, end := t.span()
	scale := float64(chartWidth) / float64(max(end-begin, 1))
	x := func(d time.Duration) float64 { return labelWidth + float64(d-begin)*scale }
	height := headHeight + rowHeight*len(t.Lanes) + 10
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="ui-sans-serif, system-ui, sans-serif" font-size="11">`+"\n", labelWidth+chartWidth+rightEdge, height)
	fmt.Fprintf(b, `<rect width="100%%" height="100%%" fill="#fff"/><text x="8" y="16" font-size="13" font-weight="600" fill="#222">%s</text>`+"\n", html.EscapeString(t.Title))
	step := tick(end - begin)
	for at := time.Duration(0); begin+at <= end; at += step {
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="#e4e4e4"/><text x="%.1f" y="%d" fill="#777" text-anchor="middle">%s</text>`+"\n",
			x(begin+at), headHeight-6, height-6, x(begin+at), headHeight-10, label(at))
	}
	for i, l := range t.Lanes {
		y := headHeight + rowHeight*i
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="#333">%s</text>`+"\n", 8+indent*l.Indent, y+barHeight-1, html.EscapeString(l.Name))
	}
	alone := make([]int, len(t.Lanes))
	for _, s := range t.Stretches {
		alone[s.Lane]++
	}
	colours := map[string]string{}
	for _, s := range t.sorted() {
		y := headHeight + rowHeight*s.Lane
		took := s.To - s.From
		fmt.Fprintf(b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" rx="1.5" fill="%s"><title>%s: %s</title></rect>`+"\n",
			x(s.From), y, max(float64(took)*scale, 0.8), barHeight, colour(colours, s.Kind), html.EscapeString(s.Name), label(took))
		if alone[s.Lane] == 1 {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#555" font-size="10">%s</text>`+"\n", x(s.To)+4, y+barHeight-2, label(took))
		}
	}
	fmt.Fprintln(b, "</svg>")
	return b.Flush()
}

// span returns when the first stretch begins and the last ends.
func (t Timeline) span() (begin, end time.Duration) {
	for i, s := range t.Stretches {
		if i == 0 {
			begin, end = s.From, s.To
		}
		begin, end = min(begin, s.From), max(end, s.To)
	}
	return begin, end
}

func colour(given map[string]string, kind string) string {
	if c := named[kind]; c != "" {
		return c
	}
	if given[kind] == "" {
		given[kind] = others[len(given)%len(others)]
	}
	return given[kind]
}

// tick returns a round step that divides all into about eight.
func tick(all time.Duration) time.Duration {
	least := max(float64(all)/8, 1)
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*power >= least {
			return time.Duration(m * power)
		}
	}
	return time.Duration(10 * power)
}

// label writes a time in milliseconds, with three significant digits.
func label(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v == 0:
		return "0 ms"
	case v < 1:
		return fmt.Sprintf("%.2f ms", v)
	case v < 10:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}
