package wire

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

func TestFeaturesSurvive(t *testing.T) {
	q := tandem.FeatureQuery{Session: 1<<64 - 1, Epoch: 3, From: 7, Until: math.MaxInt32}
	same(t, ToFeatureQuery(over(t, FromFeatureQuery(q))), q)
	f := tandem.Features{From: 8, Taps: []int{2, -1}, Width: 4, Rows: []uint16{0, 1, 0x7bff, 0xffff, 5, 6, 7, 0x8000}}
	for _, h := range []shm.Handle{{}, {Segment: 9, Slot: 1, Length: 16, Generation: 4}} {
		m := over(t, FromFeatures(f, h))
		got, gotH, err := ToFeatures(m)
		if err != nil || gotH != h || (len(m.GetRows()) == 0) != (h != shm.Handle{}) {
			t.Fatalf("handle %+v, %d bytes of rows, %v: want %+v", gotH, len(m.GetRows()), err, h)
		}
		if got.Rows, err = UnmarshalRows(MarshalRows(f.Rows)); err != nil {
			t.Fatal(err)
		}
		same(t, got, f)
		if err := got.Validate(q); err != nil {
			t.Error(err)
		}
	}
	same(t, ToDescription(over(t, FromDescription(tandem.Description{Taps: f.Taps}))).Taps, f.Taps)
	o := tandem.Opening{Session: 1, Tokens: []tandem.Token{1}, Sampling: tandem.Sampling{TopP: 1}, Features: true}
	if got, err := ToOpening(over(t, FromOpening(o))); err != nil || !got.Features {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFeaturesThatAreRefused(t *testing.T) {
	for name, m := range map[string]*peerv1.FeaturesResponse{
		"rows and a handle": {Rows: []byte{1, 2}, Handle: &peerv1.Handle{Segment: 1}},
		"no segment":        {Handle: &peerv1.Handle{Slot: 3}},
	} {
		if _, _, err := ToFeatures(m); tandem.KindOf(err) != tandem.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := UnmarshalRows(make([]byte, 3)); tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("half a value: %v", err)
	}
	if taps := toTaps(make([]int32, 1000)); len(taps) != tandem.MostTaps+1 {
		t.Errorf("%d taps were read", len(taps))
	}
}

// FuzzToFeatures: whatever a verifier answers becomes an error, or features that hold what they say.
func FuzzToFeatures(f *testing.F) {
	for _, h := range []shm.Handle{{}, {Segment: 9, Slot: 1, Length: 16, Generation: 4}} {
		b, err := proto.Marshal(FromFeatures(tandem.Features{From: 8, Taps: []int{2, -1}, Width: 4, Rows: make([]uint16, 8)}, h))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, int32(7), int32(20))
	}
	f.Fuzz(func(t *testing.T, b []byte, from, until int32) {
		var m peerv1.FeaturesResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		out, h, err := ToFeatures(&m)
		if err != nil || h != (shm.Handle{}) {
			return
		}
		q := tandem.FeatureQuery{Session: 1, From: tandem.Position(from), Until: tandem.Position(until)}
		if out.Rows, err = UnmarshalRows(m.GetRows()); err != nil || q.Validate() != nil || out.Validate(q) != nil {
			return
		}
		if n := out.Len(); n*out.Width != len(out.Rows) || int(out.From)+n > int(until) || out.From < q.From {
			t.Errorf("%d rows from %d, asked for %d to %d", n, out.From, from, until)
		}
		if again, _, err := ToFeatures(over(t, FromFeatures(out, shm.Handle{}))); err != nil || !slices.Equal(again.Taps, out.Taps) ||
			!reflect.DeepEqual([]any{again.From, again.Width}, []any{out.From, out.Width}) {
			t.Errorf("encoded again: %+v, %v, was %+v", again, err, out)
		}
	})
}
