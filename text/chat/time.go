package chat

import (
	"strings"
	"time"
)

// timeLayouts are the directives of strftime that strftime_now knows, as time.Format has them.
var timeLayouts = map[string]string{"Y": "2006", "y": "06", "m": "01", "-m": "1", "B": "January", "b": "Jan", "d": "02", "-d": "2",
	"e": "_2", "A": "Monday", "a": "Mon", "H": "15", "I": "03", "-I": "3", "M": "04", "S": "05", "p": "PM", "j": "002", "F": "2006-01-02",
	"T": "15:04:05", "%": "%"}

// strftimeNow is the function strftime_now of transformers at a time. The time has no zone.
func strftimeNow(now time.Time) function {
	return func(a args) any {
		t := a.bind(1, "format").text(0)
		b := builder{m: a.m}
		for s := t.s; s != ""; {
			i := strings.IndexByte(s, '%')
			if i < 0 || i+1 == len(s) {
				b.lit(s)
				break
			}
			b.lit(s[:i])
			s = s[i+1:]
			n := 1
			if s[0] == '-' && len(s) > 1 {
				n = 2
			}
			layout, ok := timeLayouts[s[:n]]
			switch {
			case ok:
				b.lit(now.Format(layout))
			case (s[0] == 'Z' || s[0] == 'z'): // nothing
			default:
				a.m.unknown("%%%s in strftime_now", s[:n])
			}
			s = s[n:]
		}
		return t.remade(b.text().s)
	}
}
