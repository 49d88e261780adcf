package shape

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem"
)

// finder finds the children of nodes.
type finder []int32 // [node · MostCandidates + rank]: the child, 0 if there is none

func (s Shape) finder() finder {
	f := make(finder, s.Len()*tandem.MostCandidates)
	for i := 1; i < s.Len(); i++ {
		f[int(s.Parents[i])*tandem.MostCandidates+int(s.Ranks[i])] = int32(i)
	}
	return f
}

// walk returns the last node of the right path, and its depth.
func (f finder) walk(ranks []int8) (node int32, depth int) {
	for _, r := range ranks {
		if r < 0 || r >= tandem.MostCandidates {
			break
		}
		next := f[int(node)*tandem.MostCandidates+int(r)]
		if next == 0 {
			break
		}
		node, depth = next, depth+1
	}
	return node, depth
}

// Measured returns the mean acceptance length of s over samples: 1 and the depth of the right path in s. Samples with
// fewer levels than s do not count; without any that count it is 1.
func Measured(s Shape, samples []Sample) float64 {
	f := s.finder()
	_, deepest := s.Depths()
	total, n := 0, 0
	for _, sample := range samples {
		if len(sample.Ranks) >= deepest {
			_, depth := f.walk(sample.Ranks)
			total, n = total+1+depth, n+1
		}
	}
	if n == 0 {
		return 1
	}
	return float64(total) / float64(n)
}

// Replay decodes a text with trees of shape s, at temperature 0 or with the draws of the text, without a model: text holds the sample of
// each place, in order. A round at place i that accepts n nodes is followed by one at place i + n + 1. Replay returns the samples of the
// places where rounds began, until the text is too short for s. Their Measured is the acceptance length that decoding the text has.
func Replay(s Shape, text []Sample) []Sample {
	f := s.finder()
	_, deepest := s.Depths()
	var rounds []Sample
	for i := 0; i < len(text) && len(text[i].Ranks) >= deepest; {
		rounds = append(rounds, text[i])
		_, depth := f.walk(text[i].Ranks)
		i += depth + 1
	}
	return rounds
}

// Improve searches for a better shape near s: it moves one leaf to another place of the same level, and keeps the move if judge, the
// acceptance length really measured on calibration text, says more; until no move helps, or judge was called that many times
// (Ghidorah, section III-C1: brute force among leaves and nodes of the same level). The moves that promise most by rate are tried
// first. It returns the best shape and what judge says of it. The order of its nodes is not Greedy's.
func Improve(s Shape, rate Rate, ranks int, judge func(Shape) float64, calls int) (Shape, float64) {
	best := judge(s)
	for calls--; calls > 0; {
		moved := false
		for _, m := range moves(s, rate, min(ranks, tandem.MostCandidates)) {
			if calls <= 0 {
				break
			}
			calls--
			next := s.move(m)
			if v := judge(next); v > best {
				s, best, moved = next, v, true
				break
			}
		}
		if !moved {
			break
		}
	}
	return s, best
}

// move puts a leaf elsewhere: as the child of that rank of parent.
type move struct {
	leaf, parent int32
	rank         int
	gain         float64
}

// moves returns the moves of s's leaves within their levels, the most promising first.
func moves(s Shape, rate Rate, ranks int) (list []move) {
	chances := s.Chances(rate)
	depths, deepest := s.Depths()
	f := s.finder()
	inner, above := make([]bool, s.Len()), make([]int, s.Len())
	levels := make([][]int32, deepest+1)
	levels[0] = []int32{0}
	for i := 1; i < s.Len(); i++ {
		inner[s.Parents[i]] = true
		above[i] = above[s.Parents[i]] + int(s.Ranks[i])
		levels[depths[i]] = append(levels[depths[i]], int32(i))
	}
	for i := 1; i < s.Len(); i++ {
		if inner[i] {
			continue
		}
		level := depths[i] - 1
		for _, p := range levels[level] {
			for j := range ranks {
				if f[int(p)*tandem.MostCandidates+j] == 0 {
					gain := chances[p]*rate(level, above[p], j) - chances[i]
					list = append(list, move{int32(i), p, j, gain})
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b move) int { return cmp.Compare(b.gain, a.gain) })
	return list
}

// move returns s after a move. The leaf becomes the last node.
func (s Shape) move(m move) Shape {
	out := Shape{make([]int32, 0, s.Len()), make([]int8, 0, s.Len())}
	shift := func(p int32) int32 {
		if p > m.leaf {
			return p - 1
		}
		return p
	}
	for i := range s.Parents {
		if int32(i) != m.leaf {
			out.Parents, out.Ranks = append(out.Parents, shift(s.Parents[i])), append(out.Ranks, s.Ranks[i])
		}
	}
	out.Parents, out.Ranks = append(out.Parents, shift(m.parent)), append(out.Ranks, int8(m.rank))
	return out
}
