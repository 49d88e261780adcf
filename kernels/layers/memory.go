package layers

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// stores are the weights of both sides.
type stores struct {
	program *kernels.Program
	halves  [2]half
	of      [2]kernels.Store // nil: the side has no operations
}

// NewWeights returns memory on each device for the weights of its operations. Then it calls Config.Tell, if the far device has any.
func (d *Device) NewWeights(p *kernels.Program) (kernels.Store, error) {
	s := &stores{program: p}
	var err error
	if s.halves, err = d.divide(p); err != nil {
		return nil, err
	}
	for side, h := range s.halves {
		if h.empty() {
			continue
		}
		if s.of[side], err = d.sides()[side].NewWeights(h.p); err != nil {
			s.of[side] = nil
			s.Close()
			return nil, d.of(side, err)
		}
	}
	if d.Tell != nil && !s.halves[far].empty() {
		d.Tell(d.placed)
	}
	return s, nil
}

// Acquire fails: each side has its own weights, in its own layout.
func (s *stores) Acquire(int, []int32) ([][]byte, error) {
	return nil, &kernels.Unsupported{Device: name, What: "handing out of weights"}
}

func (s *stores) Release(int)    {}
func (s *stores) Resident() bool { return true }

func (s *stores) Bytes() (sum int64) {
	for _, x := range s.of {
		if x != nil {
			sum += x.Bytes()
		}
	}
	return sum
}

func (s *stores) Lock() error {
	var all []error
	for _, x := range s.of {
		if x != nil {
			all = append(all, x.Lock())
		}
	}
	return errors.Join(all...)
}

// Pack packs rows where they are needed: of a weight that nothing reads nowhere.
func (s *stores) Pack(w kernels.W, row int, src []byte) error {
	if w < 0 || int(w) >= len(s.program.Weights) {
		return fmt.Errorf("layers: packing weight %d of %d", int(w), len(s.program.Weights))
	}
	for side := range s.of {
		if own := s.halves[side].own(w); own != kernels.None {
			if err := s.of[side].Pack(own, row, src); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stores) Close() {
	for _, x := range s.of {
		if x != nil {
			x.Close()
		}
	}
}

// borrowed returns the weights of a side's program that borrows.
func borrowed(p *kernels.Program, side int, h half, l *kernels.Loan) (kernels.Weights, error) {
	owner, ok := l.Store.(*stores)
	if !ok {
		return nil, fmt.Errorf("layers: weights borrowed of type %T, want its own", l.Store)
	}
	var from []kernels.W
	for _, w := range h.weights {
		theirs := owner.halves[side].own(l.From[w])
		if theirs == kernels.None {
			return nil, fmt.Errorf("layers: weight %q borrowed on one device, but it lies on the other", p.Weights[w].Name)
		}
		from = append(from, theirs)
	}
	return kernels.Borrow(h.p, owner.halves[side].p, owner.of[side], from)
}

// cache is the KV cache of both sides, each of its own layers.
type cache struct {
	shape  kernels.KVShape
	pages  int
	layers int              // on the far side
	of     [2]kernels.Cache // nil: the side keeps nothing
}

// NewCache returns a cache with so many pages on each device, each for its own layers alone.
func (d *Device) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	if err := shape.Check(); err != nil {
		return nil, err
	}
	c := &cache{shape: shape, pages: pages, layers: d.layers}
	for side, s := range d.shapes(shape) {
		if len(s.Layers) == 0 {
			continue
		}
		var err error
		if c.of[side], err = d.sides()[side].NewCache(s, pages); err != nil {
			c.of[side] = nil
			c.Close()
			return nil, d.of(side, err)
		}
	}
	return c, nil
}

func (c *cache) Shape() kernels.KVShape { return c.shape }
func (c *cache) Pages() int             { return c.pages }

func (c *cache) Bytes() (sum int64) {
	for _, x := range c.of {
		if x != nil {
			sum += x.Bytes()
		}
	}
	return sum
}

// Populate counts the bytes of the near side, then those of the far one.
func (c *cache) Populate(from, to int64) error {
	begin := int64(0)
	for _, x := range c.of {
		if x == nil {
			continue
		}
		first, end := max(from-begin, 0)/kernels.PopulateBytes*kernels.PopulateBytes, min(to-begin, x.Bytes())
		if first < end {
			if err := x.Populate(first, end); err != nil {
				return err
			}
		}
		begin += x.Bytes()
	}
	return nil
}

func (c *cache) Lock() error {
	var all []error
	for _, x := range c.of {
		if x != nil {
			all = append(all, x.Lock())
		}
	}
	return errors.Join(all...)
}

func (c *cache) Copy(dst, src []kernels.Cell) {
	for _, x := range c.of {
		if x != nil {
			x.Copy(dst, src)
		}
	}
}

func (c *cache) CopyStates(dst, src []int32) {
	for _, x := range c.of {
		if x != nil {
			x.CopyStates(dst, src)
		}
	}
}

func (c *cache) Close() {
	for _, x := range c.of {
		if x != nil {
			x.Close()
		}
	}
}
