package group

import (
	"reflect"
	"testing"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		cores, drafter, verifier int
		draft                    int64
		wantDrafter, wantVerify  int
	}{
		{cores: 1, draft: 5 << 20, wantDrafter: 1, wantVerify: 1},
		{cores: 2, draft: 5 << 20, wantDrafter: 1, wantVerify: 2},
		{cores: 4, draft: 5 << 20, wantDrafter: 1, wantVerify: 4},
		{cores: 16, draft: 5 << 20, wantDrafter: 4, wantVerify: 16},
		{cores: 16, wantDrafter: 0, wantVerify: 16},
		{cores: 2, draft: 400 << 20, wantDrafter: 2, wantVerify: 2},
		{cores: 16, draft: 64 << 20, wantDrafter: 16, wantVerify: 16},
		{cores: 16, draft: 400 << 20, drafter: 2, wantDrafter: 2, wantVerify: 16},
		{cores: 16, draft: 5 << 20, drafter: 2, wantDrafter: 2, wantVerify: 16},
		{cores: 16, draft: 5 << 20, drafter: 2, verifier: 3, wantDrafter: 2, wantVerify: 3},
	} {
		if d, v := Split(tc.cores, tc.draft, tc.drafter, tc.verifier); d != tc.wantDrafter || v != tc.wantVerify {
			t.Errorf("%+v: %d and %d threads", tc, d, v)
		}
	}
}

func TestChildEnv(t *testing.T) {
	got := childEnv([]string{"HOME=/h", "TANDEM_LISTEN=x", "TMPDIR=/t", "OTEL_X=y"}, "/run")
	if want := []string{"HOME=/h", "OTEL_X=y", "TMPDIR=/run"}; !reflect.DeepEqual(got, want) {
		t.Errorf("environment %v: want %v", got, want)
	}
}
