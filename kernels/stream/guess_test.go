package stream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// said is a runner that has chosen what it is told.
type said struct {
	kernels.Runner
	of map[kernels.Route][]int32
}

func (s said) Chosen(r kernels.Route, _ int) []int32 { return s.of[r] }

// foreseen runs a pass of one row, of a token, in which mixture i chooses chosen[i], and the router before it guesses guessed[i].
func (f *fixture) foreseen(token int32, chosen, guessed [][]int32) error {
	on := said{of: map[kernels.Route][]int32{}}
	for i, m := range f.expert.all {
		on.of[m.route] = chosen[i]
	}
	for _, g := range f.expert.looking {
		on.of[g.route] = guessed[g.of.at]
	}
	f.expert.begin([]int32{token})
	at := 0
	for i, s := range f.stages[:f.prog.StageCount()] {
		var mine []int32
		if len(s.experts) > 0 {
			if mine = slices.Sorted(slices.Values(chosen[at])); s.experts[0] == f.expert.all[at].looks[1].w {
				at++
			}
		}
		if f.at != nil {
			f.at(i)
		}
		all, err := f.Acquire(i, mine)
		if err != nil {
			return err
		}
		for _, w := range f.prog.StageWeights(i) {
			if f.prog.Weights[w].Experts == 0 {
				all = all[1:]
				continue
			}
			for k, e := range mine {
				if got, want := all[k], f.src.expert(w, int(e)); !slices.Equal(got, want) {
					return fmt.Errorf("expert %d of %s has other bytes", e, f.prog.Weights[w].Name)
				}
			}
			all = all[len(mine):]
		}
		f.Release(i)
		f.expert.after(i, 1, on)
	}
	return nil
}

// some draws different experts of each mixture.
func some(r *rand.Rand) (all [][]int32) {
	for range 3 {
		first := r.Int32N(testExperts)
		all = append(all, []int32{first, (first + 1 + r.Int32N(testExperts-1)) % testExperts})
	}
	return all
}

// TestForetold: guesses that are right bring experts before they are wanted, ahead of the layer and at the start of a pass by the token;
// guesses that are wrong are soon no longer read, and read again once they are right; the experts of a pass always are those that it chose.
func TestForetold(t *testing.T) {
	path, src := filepath.Join(t.TempDir(), "packed"), made{mixed(), 3}
	f, err := open(t, path, src, leastMixed(t)+40<<10, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.expert.looking) != 3 || len(f.expert.choices) != 3 {
		t.Fatalf("%d guesses, %d choices", len(f.expert.looking), len(f.expert.choices))
	}
	r := rand.New(rand.NewPCG(1, 1))
	play := func(n int, right bool) (s kernels.StreamStats) {
		before := f.StreamStats()
		for i := range n {
			chosen := some(r)
			guessed := chosen
			if !right {
				guessed = some(r)
			}
			if err := f.foreseen(int32(i%tokenSlots), chosen, guessed); err != nil {
				t.Fatal(err)
			}
		}
		s = f.StreamStats()
		s.Foretold, s.Guessed, s.Missed = s.Foretold-before.Foretold, s.Guessed-before.Guessed, s.Missed-before.Missed
		return s
	}
	if s := play(40, true); s.Foretold == 0 || s.Foretold < s.Guessed/2 || s.Layers[1].Right[0] < 0.9 {
		t.Errorf("right guesses: %+v", s)
	}
	play(2*recent, false)
	if s := play(100, false); s.Guessed > 20 {
		t.Errorf("wrong guesses still read: %+v", s)
	}
	if play(recent, true); play(100, true).Foretold < 20 {
		t.Errorf("right guesses are not read again: %+v", f.StreamStats())
	}
	same, before := some(r), f.StreamStats().Layers[0]
	for i := range 200 { // the token alone says what the first layer chooses
		one := same
		if i%2 == 1 {
			one = some(r)
		}
		if err := f.foreseen(int32(3000+i%2*(i+1)), one, some(r)); err != nil {
			t.Fatal(err)
		}
	}
	if f.expert.all[0].before.right[0] < leastChance || f.StreamStats().Layers[0].Guessed < before.Guessed {
		t.Errorf("by token: %+v", f.StreamStats().Layers[0])
	}
}

// TestDiskSlows: a disk that becomes slow in the middle of a pass, while guesses become wrong, gives no pass other experts. What is read
// for nothing ends when guesses have been wrong for a while, and they are read again once they are right, whatever the disk does.
func TestDiskSlows(t *testing.T) {
	path, src := filepath.Join(t.TempDir(), "packed"), made{mixed(), 3}
	f, err := open(t, path, src, leastMixed(t)+40<<10, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(2, 1))
	play := func(n int, right bool) (foretold, useless int64) {
		t.Helper()
		before := f.StreamStats()
		for i := range n {
			chosen := some(r)
			guessed := chosen
			if !right {
				guessed = some(r)
			}
			if err := f.foreseen(int32(i%tokenSlots), chosen, guessed); err != nil {
				t.Fatal(err)
			}
		}
		s := f.StreamStats()
		foretold = s.Foretold - before.Foretold
		return foretold, s.Guessed - before.Guessed - foretold
	}
	if foretold, _ := play(40, true); foretold == 0 {
		t.Fatal("nothing is foretold")
	}
	slow, served, recovered, ended := make(chan struct{}), 0, make(chan struct{}), make(chan struct{})
	f.at = func(stage int) {
		if stage == 3 {
			f.file.hold.Store(&slow)
		}
	}
	go func() { // reads go on one by one, and others run in between
		defer close(ended)
		for {
			select {
			case slow <- struct{}{}:
				served++
			case <-recovered:
				return
			}
			for range 100 {
				runtime.Gosched()
			}
		}
	}()
	_, useless := play(2*recent, false)
	if most := int64(recent * 3 * testUsed); useless > most {
		t.Errorf("%d experts are read for nothing while guesses are found wrong, want %d at most", useless, most)
	}
	if _, useless := play(100, false); useless > 20 {
		t.Errorf("%d experts are read for nothing by guesses that have long been wrong", useless)
	}
	play(recent, true)
	if foretold, _ := play(100, true); foretold < 20 {
		t.Errorf("%d experts are foretold on a slow disk by guesses that are right", foretold)
	}
	f.at = nil
	f.file.hold.Store(nil)
	close(recovered)
	<-ended
	close(slow)
	if served == 0 {
		t.Error("the disk was not slow")
	}
	if foretold, _ := play(100, true); foretold < 20 {
		t.Errorf("%d experts are foretold after the disk has recovered", foretold)
	}
}

// TestGuessFaults: a guessed read that fails ends guessing and no pass; what then needs the expert reads it, and fails if the disk does.
// Weights can be closed while guesses are being read, and a miss does not wait for guesses that are not being read yet.
func TestGuessFaults(t *testing.T) {
	f, err := open(t, filepath.Join(t.TempDir(), "packed"), made{mixed(), 4}, 1<<24, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, right := &f.expert, odds{right: []float64{1, 1}}
	ask := func(m int, experts ...int32) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.expect(x.all[m], &right, 1, func(int) []int32 { return experts })
	}
	f.file.err = syscall.EIO
	f.file.after.Store(0)
	ask(1, 3, 5)
	x.mu.Lock()
	for !x.off {
		x.changed.Wait()
	}
	x.mu.Unlock()
	f.file.after.Store(1 << 40)
	chosen := [][]int32{{1, 2}, {3, 5}, {0, 4}}
	if err := f.foreseen(1, chosen, chosen); err != nil || f.StreamStats().Foretold != 0 {
		t.Errorf("%v, %+v", err, f.StreamStats())
	}
	f.file.after.Store(0)
	if err := f.foreseen(1, [][]int32{{6, 7}, {8, 9}, {10, 11}}, chosen); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}

	if f, err = open(t, filepath.Join(t.TempDir(), "packed"), made{mixed(), 5}, 1<<24, nil); err != nil {
		t.Fatal(err)
	}
	x = &f.expert
	hold := make(chan struct{})
	f.file.hold.Store(&hold)
	ask(1, 3, 5)
	ask(2, 1, 2)
	for f.file.held.Load() < guessReads {
		runtime.Gosched()
	}
	f.file.hold.Store(nil) // those that are being read hang
	if err := f.routed(made{mixed(), 5}, rand.New(rand.NewPCG(1, 1)), 3); err != nil {
		t.Errorf("what is wanted waits for guesses: %v", err)
	}
	x.mu.Lock()
	if x.flying != guessReads {
		t.Errorf("%d guesses are being read, want %d", x.flying, guessReads)
	}
	x.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		f.weights.Close()
	}()
	close(hold)
	<-closed
}
