package chat

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
)

func strftimeNow(r *run, a args) any {
	t := r.bind(a, 1, "format").text(0)
	b := builder{r: r}
	for s := t.s; s != ""; {
		i := strings.IndexByte(s, '%')
		if i < 0 || i+1 == len(s) {
			b.lit(s)
			break
		}
		b.lit(s[:i])
		s = s[i+1:]
		flag := byte(0)
		if strings.IndexByte("-_0^#", s[0]) >= 0 && len(s) > 1 {
			flag, s = s[0], s[1:]
		}
		part, ok := timePart(r.now, s[0], flag)
		if !ok {
			r.fail(tandem.Unsupported, "strftime_now knows no %%%c", s[0])
		}
		b.lit(part)
		s = s[1:]
	}
	return t.remade(b.text().s)
}

// timeLayouts are the letters of strftime that time.Format has; those behind need arithmetic.
var timeLayouts = map[byte]string{'B': "January", 'b': "Jan", 'h': "Jan", 'p': "PM", 'A': "Monday", 'a': "Mon", 'F': "2006-01-02",
	'T': "15:04:05", 'X': "15:04:05", 'D': "01/02/06", 'x': "01/02/06", 'R': "15:04", 'r': "03:04:05 PM",
	'c': "Mon Jan _2 15:04:05 2006"}

// timeNumber returns the number of a letter, its digits and what fills it up.
func timeNumber(t time.Time, c byte) (n, digits int, fill byte, ok bool) {
	year, week := t.ISOWeek()
	hour := (t.Hour()+11)%12 + 1
	monday := (int(t.Weekday()) + 6) % 7 // days since Monday
	switch c {
	case 'd':
		return t.Day(), 2, '0', true
	case 'e':
		return t.Day(), 2, ' ', true
	case 'm':
		return int(t.Month()), 2, '0', true
	case 'Y':
		return t.Year(), 1, '0', true
	case 'y':
		return t.Year() % 100, 2, '0', true
	case 'C':
		return t.Year() / 100, 2, '0', true
	case 'G':
		return year, 1, '0', true
	case 'g':
		return year % 100, 2, '0', true
	case 'V':
		return week, 2, '0', true
	case 'U':
		return (t.YearDay() + 6 - int(t.Weekday())) / 7, 2, '0', true
	case 'W':
		return (t.YearDay() + 6 - monday) / 7, 2, '0', true
	case 'H':
		return t.Hour(), 2, '0', true
	case 'k':
		return t.Hour(), 2, ' ', true
	case 'I':
		return hour, 2, '0', true
	case 'l':
		return hour, 2, ' ', true
	case 'M':
		return t.Minute(), 2, '0', true
	case 'S':
		return t.Second(), 2, '0', true
	case 'f':
		return t.Nanosecond() / 1000, 6, '0', true
	case 'j':
		return t.YearDay(), 3, '0', true
	case 'u':
		return monday + 1, 1, '0', true
	case 'w':
		return int(t.Weekday()), 1, '0', true
	case 's':
		return int(t.Unix()), 1, '0', true
	}
	return 0, 0, 0, false
}

// timePart is one letter of Python's strftime of a time without a zone, with glibc's flags.
func timePart(t time.Time, c, flag byte) (string, bool) {
	if n, digits, fill, ok := timeNumber(t, c); ok {
		s := fmt.Sprint(n)
		switch flag {
		case '-':
			return s, true
		case '_':
			fill = ' '
		case '0':
			fill = '0'
		}
		return strings.Repeat(string(fill), max(0, digits-len(s))) + s, true
	}
	s, ok := "", true
	switch c {
	case 'z', 'Z': // the time has no zone
	case '%':
		s = "%"
	case 'n':
		s = "\n"
	case 't':
		s = "\t"
	case 'P':
		s = strings.ToLower(t.Format("PM"))
	default:
		var layout string
		if layout, ok = timeLayouts[c]; ok {
			s = t.Format(layout)
		}
	}
	switch {
	case flag == '^', flag == '#' && c != 'p':
		s = strings.ToUpper(s)
	case flag == '#':
		s = strings.ToLower(s)
	}
	return s, ok
}
