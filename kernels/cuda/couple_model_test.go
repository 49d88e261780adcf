package cuda_test

import "testing"

// The hand-over of a meeting, as tk_meet (kernels/cpu/pool.c) and meet (src/couple.h) do it, step by step. For each meeting a side does:
//
//	write what it has computed; fence; came = n
//	wait until the other's came is n, or a side has gone; fence; read what the other has written
//
// check visits every state of both sides with memory that is weaker than any processor's: what a side writes becomes visible one word at
// a time, in any order that no fence forbids, and a read may be as old as the side's last fence. Places alternate, as buffers do: what is
// read behind a meeting may be written again behind the next.

const meets = 3 // of a pass

const (
	came = iota // words of each side
	gone
	data
	words = data + 2
)

// protocol says which parts of the hand-over there are.
type protocol struct{ release, acquire, gone bool }

// side is how far a side of a pass is.
type side struct {
	meet, step  int8     // which meeting is next, and what of it
	lost, wrong bool     // it does nothing any more, as a GPU that is lost; it has read something else than the other has written
	late        [4]write // what it has written and nobody sees yet, oldest first
	n           int8
	old         [words]int8 // of the other, at the last fence
}

type write struct{ word, value int8 }

// state is both sides and what can be seen of each one's words. The second is the GPU.
type state struct {
	sides [2]side
	seen  [2][words]int8
}

func (s *state) put(i int, word, value int8) {
	me := &s.sides[i]
	me.late[me.n] = write{word, value}
	me.n++
	me.step++
}

func (s *side) over() bool { return s.lost || s.meet == meets }

// next returns all states after s.
func (p protocol) next(s state) (all []state) {
	for i := range s.sides {
		me := &s.sides[i]
		for j := range me.n {
			if t, ok := s.show(i, j); ok {
				all = append(all, t)
			}
		}
		if !me.over() {
			all = append(all, p.step(s, i)...)
		}
		if i == 1 && !me.over() {
			t := s
			t.sides[i].lost = true
			all = append(all, t)
		}
		if p.gone && me.lost && s.seen[i][gone] == 0 { // the host says so in its place
			t := s
			t.seen[i][gone] = 1
			all = append(all, t)
		}
	}
	return all
}

// show makes write j of a side visible, unless an older one to the same word is not.
func (s state) show(i int, j int8) (state, bool) {
	me := &s.sides[i]
	w := me.late[j]
	for _, older := range me.late[:j] {
		if older.word == w.word {
			return s, false
		}
	}
	s.seen[i][w.word] = w.value
	copy(me.late[j:], me.late[j+1:me.n])
	me.n--
	me.late[me.n] = write{}
	return s, true
}

// step returns what a side may do next.
func (p protocol) step(s state, i int) []state {
	me, other, n := &s.sides[i], s.seen[1-i], s.sides[i].meet+1
	if int(me.n)+2 > len(me.late) {
		return nil // until something is visible
	}
	switch me.step {
	case 0:
		s.put(i, data+n%2, n)
	case 1:
		if p.release && me.n > 0 {
			return nil
		}
		s.put(i, came, n)
	case 2:
		patient := s
		if me.step++; other[came] >= n || other[gone] != 0 {
			return []state{s}
		}
		if !p.gone {
			return nil
		}
		patient.put(i, gone, 1) // its patience may end here
		return []state{patient}
	case 3:
		if p.acquire {
			if me.n > 0 {
				return nil
			}
			me.old = other
		}
		me.meet, me.step = n, 0
		late := s
		me.wrong = me.wrong || other[data+n%2] != n
		late.sides[i].wrong = late.sides[i].wrong || me.old[data+n%2] != n
		return []state{s, late}
	}
	return []state{s}
}

// check returns how many states there are, and whether a pass may end with something wrong that no side says, or never.
func (p protocol) check() (states int, wrong, stuck bool) {
	known := map[state]bool{{}: true}
	for todo := []state{{}}; len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		next := p.next(s)
		if a, b := &s.sides[0], &s.sides[1]; len(next) == 0 {
			bad := a.wrong || b.wrong || a.lost || b.lost
			wrong = wrong || bad && s.seen[0][gone]+s.seen[1][gone] == 0
			stuck = stuck || !a.over() || !b.over()
		}
		for _, t := range next {
			if !known[t] {
				known[t] = true
				todo = append(todo, t)
			}
		}
	}
	return len(known), wrong, stuck
}

// TestHandOver: in whatever order both sides act and see what the other writes, what a side reads behind a meeting is what the other wrote
// before it, or a side says that the pass has failed; and none waits for ever. Each part of the hand-over is needed for that.
func TestHandOver(t *testing.T) {
	for name, c := range map[string]struct {
		p            protocol
		wrong, stuck bool
	}{
		"as it is":                             {protocol{true, true, true}, false, false},
		"without the fence before the flag":    {protocol{false, true, true}, true, false},
		"without the fence behind it":          {protocol{true, false, true}, true, false},
		"without a word that says who is gone": {protocol{true, true, false}, true, true},
	} {
		states, wrong, stuck := c.p.check()
		t.Logf("%s: %d states", name, states)
		if wrong != c.wrong || stuck != c.stuck {
			t.Errorf("%s: wrong %v and stuck %v in %d states, want %v and %v", name, wrong, stuck, states, c.wrong, c.stuck)
		}
	}
}
