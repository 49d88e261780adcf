package verifying

import (
	"context"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/tandem-llm/tandem"
)

// maker is a VectorSource that says one thing.
type maker struct {
	asked tandem.VectorQuery
	out   tandem.Vectors
	err   error
}

func (m *maker) Vectors(_ context.Context, q tandem.VectorQuery) (tandem.Vectors, error) {
	q.Progress(tandem.Progress{Steps: 7, Held: 3})
	m.asked, m.asked.Progress = q, nil
	return m.out, m.err
}

// TestVectors: a query and its vectors cross the wire, with the progress before; errors keep their kind, and a wrong answer is Corrupt.
func TestVectors(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	m := &maker{out: tandem.Vectors{Identity: "one", Rows: [][]float32{{1, 2, 3}, {4, 5, 6}}}}
	serve(t, addr, ServerConfig{Verifier: new(fake), Vectors: m})
	client := dial(t, addr)
	q := tandem.VectorQuery{Tenant: "a", Inputs: [][]tandem.Token{{1, 2}, {3}}, Pooling: tandem.PoolingLast, Fingerprint: "f"}
	var told []tandem.Progress
	with := q
	with.Progress = func(p tandem.Progress) { told = append(told, p) }
	got, err := client.Vectors(t.Context(), with)
	if err != nil || !reflect.DeepEqual(got, m.out) || !reflect.DeepEqual(m.asked, q) || len(told) != 1 || told[0].Steps != 7 {
		t.Errorf("%+v of %+v, told %v: %v", got, m.asked, told, err)
	}
	m.out.Rows = m.out.Rows[:1]
	if _, err = client.Vectors(t.Context(), q); tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("one vector for two texts: %v", err)
	}
	m.err = tandem.Errorf("embed", tandem.Exhausted, "no room")
	if _, err = client.Vectors(t.Context(), q); tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("%v: want Exhausted", err)
	}
	other := "unix://" + filepath.Join(t.TempDir(), "v")
	serve(t, other, ServerConfig{Verifier: new(fake)})
	if _, err = dial(t, other).Vectors(t.Context(), q); tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("a verifier without vectors: %v", err)
	}
}
