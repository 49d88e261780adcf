package group

import (
	"reflect"
	"testing"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		cores, drafter, verifier int
		draft                    string
		wantDrafter, wantVerify  int
	}{
		{cores: 1, draft: "d", wantDrafter: 1, wantVerify: 1},
		{cores: 2, draft: "d", wantDrafter: 1, wantVerify: 2},
		{cores: 4, draft: "d", wantDrafter: 1, wantVerify: 4},
		{cores: 16, draft: "d", wantDrafter: 4, wantVerify: 16},
		{cores: 16, wantDrafter: 0, wantVerify: 16},
		{cores: 16, draft: "d", drafter: 2, wantDrafter: 2, wantVerify: 16},
		{cores: 16, draft: "d", drafter: 2, verifier: 3, wantDrafter: 2, wantVerify: 3},
	} {
		if d, v := Split(tc.cores, tc.draft != "", tc.drafter, tc.verifier); d != tc.wantDrafter || v != tc.wantVerify {
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
