package sample

// philox is one block of Philox4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
func philox(c [4]uint32, k [2]uint32) [4]uint32 {
	for range 10 {
		a, b := uint64(c[0])*0xD2511F53, uint64(c[2])*0xCD9E8D57
		c = [4]uint32{uint32(b>>32) ^ c[1] ^ k[0], uint32(b), uint32(a>>32) ^ c[3] ^ k[1], uint32(a)}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return c
}
