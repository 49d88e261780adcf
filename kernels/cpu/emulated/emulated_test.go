//go:build amd64 && linux

package emulated

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// TestOperands: the instruction gives the sums that it is defined by, without saturation, wherever its operands are.
func TestOperands(t *testing.T) {
	flags, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(flags), " avx2 ") {
		t.Skip("the registers of AVX are needed")
	}
	VNNI(t)
	before, r := Count(), rand.New(rand.NewPCG(1, 2))
	const rounds = 200
	for round := range rounds {
		for how := range ways {
			var v operands
			for i := range v[:3] {
				for k := range v[i] {
					v[i][k] = byte(r.Uint32())
				}
			}
			if round < 2 { // the largest products, and a sum that passes the end
				for k := range 32 {
					v[0][k], v[1][k], v[2][k] = 0x7f, 255, byte(127+round)
				}
			}
			each(&v, how)
			for k := 0; k < 32; k += 4 {
				want := int32(binary.LittleEndian.Uint32(v[0][k:]))
				for i := k; i < k+4; i++ {
					want += int32(v[1][i]) * int32(int8(v[2][i]))
				}
				if got := int32(binary.LittleEndian.Uint32(v[3][k:])); got != want {
					t.Fatalf("way %d of %x: sum %d is %d, want %d", how, v, k/4, got, want)
				}
			}
		}
	}
	if n := Count() - before; n != 0 && n != rounds*int64(ways) {
		t.Errorf("%d instructions emulated, want all %d or, where the processor has it, none", n, rounds*ways)
	}
}
