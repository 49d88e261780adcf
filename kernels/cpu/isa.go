package cpu

import (
	"fmt"
	"strings"
)

// ISA is an instruction set for which there are kernels. All give the same bits.
type ISA int

const (
	Auto     ISA = iota // the best of this machine
	Generic             // C without intrinsics
	AVX2                // with FMA and F16C
	AVXVNNI             // AVX2 with dot products
	AVX512              // with dot products (VNNI)
	NEON                // any ARMv8
	NEONDot             // with sdot
	NEONI8MM            // with sdot and smmla
)

var isaNames = [...]string{"auto", "generic", "avx2", "avxvnni", "avx512", "neon", "neon-dot", "neon-i8mm"}

// ParseISA reads "auto" or the name of an instruction set, "avx512".
func ParseISA(s string) (ISA, error) {
	for i, n := range isaNames {
		if s == n {
			return ISA(i), nil
		}
	}
	return Auto, fmt.Errorf("kernels: unknown instruction set %q, want %s", s, strings.Join(isaNames[:], ", "))
}

func (i ISA) String() string {
	if i < 0 || int(i) >= len(isaNames) {
		return fmt.Sprintf("isa(%d)", int(i))
	}
	return isaNames[i]
}
