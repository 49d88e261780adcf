package verifier

import "testing"

// TestBatches: sessions are divided by default where drafters have processors of their own, if that is faster; a number that was given
// is kept.
func TestBatches(t *testing.T) {
	for _, c := range []struct {
		given       int
		apart, left bool
		batches     int
		weighed     bool
	}{
		{WhatPays, false, false, 0, false}, {WhatPays, true, false, 2, true}, {WhatPays, false, true, 2, true},
		{0, true, true, 0, false}, {1, true, false, 1, false}, {2, false, false, 2, false}, {3, true, true, 3, false},
	} {
		config := Setup{}
		config.Batches, config.DraftersApart = c.given, c.apart
		batches, weighed := config.batches(c.left)
		if batches != c.batches || weighed != c.weighed {
			t.Errorf("%+v: %d batches, weighed %v", c, batches, weighed)
		}
	}
}
