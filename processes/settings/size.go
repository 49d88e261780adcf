package settings

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Size is a number of bytes, written like 500MiB or 8GiB.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Size) UnmarshalText(text []byte) error {
	for _, u := range sizeUnits {
		number, has := cutSuffixFold(string(text), u.name)
		if !has {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if n *= u.bytes; err != nil || !(n >= 0 && n < 1<<60) {
			break
		}
		*b = Size(n)
		return nil
	}
	return tandem.Errorf("", tandem.Invalid, "%q is no size: want bytes, or a number with KiB, MiB, GiB or TiB", text)
}

// SizeOf returns a size of n bytes, nil for 0.
func SizeOf(n int64) *Size {
	if n == 0 {
		return nil
	}
	return new(Size(n))
}

// Bytes returns the number of bytes, 0 for nil.
func (b *Size) Bytes() int64 {
	if b == nil {
		return 0
	}
	return int64(*b)
}

// String rounds to tenths: 1.5 GiB.
func (b Size) String() string {
	if b < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
}

func cutSuffixFold(s, suffix string) (before string, found bool) {
	at := len(s) - len(suffix)
	if at < 0 || !strings.EqualFold(s[at:], suffix) {
		return s, false
	}
	return s[:at], true
}

// GPUShare is a Size that is not 0 once it is given.
type GPUShare Size

// UnmarshalText implements encoding.TextUnmarshaler. Empty text is none, whatever other settings say.
func (g *GPUShare) UnmarshalText(text []byte) error {
	var n Size
	if len(text) > 0 {
		if err := n.UnmarshalText(text); err != nil || n == 0 {
			return tandem.Errorf("", tandem.Invalid, "%q: want the memory for at least one layer, like 500MiB or 4GiB; without the "+
				"flag, or with an empty value, all layers run on the processor", text)
		}
	}
	*g = GPUShare(n)
	return nil
}

// String is Size's; "" for none.
func (g GPUShare) String() string {
	if g == 0 {
		return ""
	}
	return Size(g).String()
}
