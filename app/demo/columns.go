package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// Columns is the view for terminals: both texts side by side. While text comes, a window shows the last lines of both and is redrawn in
// place; at the end all lines are printed once, so that they can be scrolled and copied. If the terminal is made narrower, lines look
// broken until then.
type Columns struct {
	to     io.Writer
	width  int // of one column
	height int // lines of the window
	colour bool

	way   Way
	cols  [ways]column
	notes [ways]string // above a column, when it has ended
	drawn int          // lines of the window on the screen
}

const (
	gap       = " │ "
	gapCells  = 3
	minColumn = 32 // cells; narrower columns are harder to read than Text
	maxColumn = 72
	maxWindow = 18
	tab       = 4
)

// NewColumns returns a view of a terminal of that size; nil if it is too small for two columns.
func NewColumns(to io.Writer, width, height int, colour bool) *Columns {
	column := min((width-gapCells)/2, maxColumn)
	if column < minColumn || height < 8 {
		return nil
	}
	return &Columns{to: to, width: column, height: min(height-4, maxWindow), colour: colour}
}

// Begin implements View.
func (v *Columns) Begin(way Way) error {
	v.way = way
	v.notes[way] = way.String() + " …"
	return v.draw()
}

// Show implements View.
func (v *Columns) Show(p Piece) error {
	v.cols[v.way].add(p, v.width)
	return v.draw()
}

// End implements View.
func (v *Columns) End(g Generation) error {
	v.notes[v.way] = fmt.Sprintf("%s: %.1f tokens/s", v.way, g.TokensPerSecond)
	return v.draw()
}

// Finish implements View: the window makes way for the whole texts.
func (v *Columns) Finish(r *Result) error {
	var b strings.Builder
	v.erase(&b)
	v.lines(&b, 0, max(v.cols[Plain].used(), v.cols[Speculative].used()))
	b.WriteByte('\n')
	if v.colour {
		fmt.Fprintf(&b, "%s, %s, the target's own\n", paint("the prompt", FromPrompt, true),
			paint("guessed by a draft model and accepted", FromDraft, true))
	}
	b.WriteString(strings.Join(r.Summary(), "\n") + "\n")
	_, err := io.WriteString(v.to, b.String())
	return err
}

// draw draws the window over the one before.
func (v *Columns) draw() error {
	var b strings.Builder
	v.erase(&b)
	longest := max(len(v.cols[Plain].lines), len(v.cols[Speculative].lines))
	from := max(0, longest-v.height)
	if v.way == Speculative { // the line being written must be visible
		from = min(from, max(0, len(v.cols[Speculative].lines)-v.height))
	}
	to := min(longest, from+v.height)
	v.lines(&b, from, to)
	v.drawn = to - from + 1
	_, err := io.WriteString(v.to, b.String())
	return err
}

// erase moves the cursor to the start of the window and clears everything below.
func (v *Columns) erase(b *strings.Builder) {
	if v.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", v.drawn)
	}
	v.drawn = 0
}

// lines writes the head and some lines of both columns.
func (v *Columns) lines(b *strings.Builder, from, to int) {
	left, right := v.notes[Plain], v.notes[Speculative]
	b.WriteString(left + strings.Repeat(" ", max(0, v.width-len([]rune(left)))) + gap + right + "\n")
	for i := from; i < to; i++ {
		cells := v.cols[Plain].write(b, i, v.colour)
		b.WriteString(strings.Repeat(" ", v.width-cells) + gap)
		v.cols[Speculative].write(b, i, v.colour)
		b.WriteByte('\n')
	}
}

// column is text in lines of a width.
type column struct {
	lines [][]glyph
	cells int // of the last line
}

// glyph is one character, with marks that stand on it, and the cells that it takes.
type glyph struct {
	text  string
	from  Origin
	cells int
}

// add appends text, broken exactly at the width: code reads better this way than broken at its few spaces.
func (c *column) add(p Piece, width int) {
	for _, r := range p.Text {
		if len(c.lines) == 0 {
			c.lines = append(c.lines, nil)
		}
		last := &c.lines[len(c.lines)-1]
		g := glyph{string(r), p.From, cellsOf(r)}
		switch {
		case r == '\n':
			c.lines, c.cells = append(c.lines, nil), 0
			continue
		case r == '\t':
			g.cells = tab - c.cells%tab
			g.text = strings.Repeat(" ", g.cells)
		case g.cells == 0 && len(*last) > 0:
			(*last)[len(*last)-1].text += g.text
			continue
		}
		if c.cells+g.cells > width {
			c.lines, c.cells = append(c.lines, nil), 0
			last = &c.lines[len(c.lines)-1]
		}
		*last = append(*last, g)
		c.cells += g.cells
	}
}

// used returns the number of lines up to the last that is not empty.
func (c *column) used() int {
	n := len(c.lines)
	for n > 0 && len(c.lines[n-1]) == 0 {
		n--
	}
	return n
}

// write writes line i, if there is one, and returns the cells that it takes.
func (c *column) write(b *strings.Builder, i int, colour bool) (cells int) {
	if i >= len(c.lines) {
		return 0
	}
	line := c.lines[i]
	for len(line) > 0 {
		n, text := 0, ""
		for n < len(line) && line[n].from == line[0].from {
			text += line[n].text
			cells += line[n].cells
			n++
		}
		b.WriteString(paint(text, line[0].from, colour))
		line = line[n:]
	}
	return cells
}

// wide are the ranges of characters that take two cells.
var wide = [][2]rune{{0x1100, 0x115f}, {0x2e80, 0xa4cf}, {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60},
	{0xffe0, 0xffe6}, {0x1f300, 0x1faff}, {0x20000, 0x3fffd}}

// cellsOf returns how many cells of a terminal a character takes: marks none, East Asian wide ones two. Text for a terminal
// holds no control characters.
func cellsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case slices.ContainsFunc(wide, func(between [2]rune) bool { return between[0] <= r && r <= between[1] }):
		return 2
	}
	return 1
}
