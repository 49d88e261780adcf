package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
)

type recordCmd struct {
	Out   string   `arg:"" help:"SVG file to make."`
	Words []string `arg:"" passthrough:"" help:"The command, as it is to be shown."`
	Width int      `help:"Columns of the terminal." default:"100"`
}

// The picture's sizes in pixels: a character of a monospaced font is 0.6 of its size wide.
const (
	fontSize  = 14
	cellWidth = 0.6 * fontSize
	rowHeight = 19
	margin    = 12
	rowsMade  = 60 // of the terminal
)

// escape is what tandem writes to a terminal beside text: a colour, a part of a line removed, or the cursor moved.
var escape = regexp.MustCompile(`^\x1b\[\??([0-9;]*)([A-Za-z])`)

// cell is a character, and the class of its colour.
type cell struct {
	r     rune
	class string
}

// screen is what a terminal shows. It knows what tandem writes to one, and nothing else.
type screen struct {
	rows    [][]cell
	born    []time.Duration // when a row was written first
	row, at int
	class   string
	unknown string // the first escape that it does not know
	pending string // not whole yet
	columns int
}

// Run runs a command in a terminal of its own and draws what it shows at the end. Each line appears when it did.
func (c *recordCmd) Run(a *app) error {
	master, slave, err := pair(c.Width)
	if err != nil {
		return err
	}
	defer master.Close()
	cmd := exec.CommandContext(a.ctx, c.Words[0], c.Words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, slave, slave
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	begun := time.Now()
	err = cmd.Start()
	_ = slave.Close() // the command has its own
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%w", err)
	}
	s := &screen{columns: c.Width}
	s.write("$ "+shellWords(c.Words)+"\r\n", 0)
	b := make([]byte, 1<<16)
	for {
		n, err := master.Read(b)
		s.write(string(b[:n]), time.Since(begun))
		if err != nil { // EIO: the command has ended
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", c.Words[0], err)
	}
	if s.unknown != "" {
		return fmt.Errorf("%s wrote %q, which the picture cannot show", c.Words[0], s.unknown)
	}
	return os.WriteFile(c.Out, []byte(s.svg()), 0o644)
}

// pair returns both ends of a new terminal.
func pair(columns int) (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rowsMade, Col: uint16(columns)}))
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}

// shellWords writes words as a shell reads them; the program without its folder.
func shellWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if i == 0 {
			w = w[strings.LastIndex(w, "/")+1:]
		}
		if strings.ContainsAny(w, " ?*'\"") {
			w = `"` + w + `"`
		}
		out[i] = w
	}
	return strings.Join(out, " ")
}

// write shows text that came at now.
func (s *screen) write(text string, now time.Duration) {
	text = s.pending + text
	s.pending = ""
	for text != "" {
		if text[0] == 0x1b {
			m := escape.FindStringSubmatch(text)
			if m == nil {
				s.pending = text
				return
			}
			s.obey(m[0], m[1], m[2])
			text = text[len(m[0]):]
			continue
		}
		if !utf8.FullRuneInString(text) {
			s.pending = text
			return
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch r {
		case '\r':
			s.at = 0
		case '\n':
			s.row++
		case '\t':
			s.at += 8 - s.at%8
		default:
			if s.at == s.columns {
				s.row, s.at = s.row+1, 0
			}
			s.put(cell{r, s.class}, now)
		}
	}
}

// put writes a character where the cursor is.
func (s *screen) put(c cell, now time.Duration) {
	for len(s.rows) <= s.row {
		s.rows, s.born = append(s.rows, nil), append(s.born, now)
	}
	row := s.rows[s.row]
	for len(row) <= s.at {
		row = append(row, cell{' ', ""})
	}
	if len(strings.TrimSpace(textOf(row))) == 0 {
		s.born[s.row] = now
	}
	row[s.at] = c
	s.rows[s.row] = row
	s.at++
}

func textOf(row []cell) string {
	var out strings.Builder
	for _, c := range row {
		out.WriteRune(c.r)
	}
	return out.String()
}

// obey does what an escape says.
func (s *screen) obey(all, number, kind string) {
	n, _ := strconv.Atoi(number) // of none 0
	classes := map[int]string{0: "", 2: "dim", 36: "drafted", 31: "alarm"}
	class, known := classes[n]
	switch {
	case kind == "m" && known:
		s.class = class
	case (kind == "K" || kind == "J") && n == 0:
		if s.row < len(s.rows) {
			s.rows[s.row] = s.rows[s.row][:min(s.at, len(s.rows[s.row]))]
		}
	case kind == "A":
		s.row = max(0, s.row-max(1, n))
	case kind == "C":
		s.at += max(1, n)
	case (kind == "h" || kind == "l") && n == 2004:
	case s.unknown == "":
		s.unknown = all
	}
}

// svg draws the rows.
func (s *screen) svg() string {
	var out strings.Builder
	height := 2*margin + rowHeight*len(s.rows)
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" font-family="monospace" font-size="%d">
<style>rect{fill:#16181d}text{fill:#e6e6e6;white-space:pre;animation:in 1ms both}.dim{fill:#8b919c}.drafted{fill:#4fc3d9}.alarm{fill:#ff6b6b}
@keyframes in{from{opacity:0}to{opacity:1}}@media(prefers-reduced-motion){text{animation:none}}</style>
<rect width="100%%" height="100%%" rx="6"/>
`, 2*margin+cellWidth*float64(s.columns), height, fontSize)
	for i, row := range s.rows {
		fmt.Fprintf(&out, `<text x="%d" y="%d" style="animation-delay:%.2fs">`, margin, margin+rowHeight*(i+1)-5, s.born[i].Seconds())
		for len(row) > 0 {
			n := 1
			for n < len(row) && row[n].class == row[0].class {
				n++
			}
			out.WriteString(span(row[0].class, textOf(row[:n])))
			row = row[n:]
		}
		out.WriteString("</text>\n")
	}
	return out.String() + "</svg>\n"
}

func span(class, text string) string {
	if class == "" {
		return html.EscapeString(text)
	}
	return fmt.Sprintf(`<tspan class="%s">%s</tspan>`, class, html.EscapeString(text))
}
