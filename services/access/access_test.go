package access

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestTenant(t *testing.T) {
	k, err := New([]string{"alpha-123", "beta~!"})
	if err != nil {
		t.Fatal(err)
	}
	a, okA := k.Tenant("Bearer alpha-123")
	b, okB := k.Tenant("bearer  beta~! ")
	if !okA || !okB || a == b || len(a) != 32 || strings.Contains(a, "alpha") {
		t.Errorf("tenants %q %v, %q %v", a, okA, b, okB)
	}
	other, err := New([]string{"x", "alpha-123"})
	if err != nil {
		t.Fatal(err)
	}
	if again, ok := other.Tenant("Bearer alpha-123"); !ok || again != a {
		t.Errorf("the same token is tenant %q among other keys, %q before", again, a)
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "alpha-123", "Basic alpha-123", "Bearer alpha-12", "Bearer alpha-1234",
		"Bearer ALPHA-123", "Bearer alpha-123,beta~!", "Bearer alpha-123 x", "Bearer\talpha-123", strings.Repeat("Bearer ", 1000)} {
		if name, ok := k.Tenant(header); ok || name != "" {
			t.Errorf("%.40q is let in as %q", header, name)
		}
	}
}

func TestNoKeys(t *testing.T) {
	k, err := New(nil)
	if err != nil || k != nil {
		t.Fatalf("%v, %v: want nil", k, err)
	}
	if name, ok := k.Tenant("anything"); !ok || name != "" {
		t.Errorf("without keys: %q, %v", name, ok)
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	for _, bad := range []string{"", "a b", "a\n", "é", "\xff", "a\x7f", strings.Repeat("x", maxToken+1)} {
		_, err := New([]string{"good", bad})
		if !errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), "key 2 of 2") || len(bad) > 1 &&
			strings.Contains(err.Error(), bad) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}
