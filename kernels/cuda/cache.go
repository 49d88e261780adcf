package cuda

import (
	"fmt"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// cache is a KV cache in the GPU's memory: pages as src/attention.h describes them, behind them slots and records (src/states.h).
type cache struct {
	dev      *Device
	shape    kernels.KVShape
	layers   []kvLayer
	page     int // bytes
	pages    int
	states   kernels.StateLayout
	statesAt int
	movesAt  int // what copy is told: see moves
	mem      Memory
}

// kvLayer is where a layer's keys and values lie, in bytes.
type kvLayer struct {
	at          int // in the page
	head        int // the piece of one KV head
	values      int // in the piece, which begins with the keys
	valueRow    int // one position's values
	valueScales int // from values; Q8_0 only
}

// layersOf places the layers of a page. A layer that shares another one's keys and values has its place.
func layersOf(s kernels.KVShape) (all []kvLayer, page int, err error) {
	if err := s.Check(); err != nil {
		return nil, 0, err
	}
	const rows = kernels.PageRows
	for _, k := range s.Layers {
		l := kvLayer{at: page}
		heads, key, value := k.Seen()
		switch {
		case k.Shared:
			l = all[k.Source]
		case s.Type == kernels.KVQ8_0:
			l.values, l.valueRow = rows/16*17*key, value
			l.valueScales = rows * value
			l.head = l.values + l.valueScales + rows*value/16
		default:
			l.values, l.valueRow = rows*2*key, 2*((value+15)&^15)
			l.head = l.values + rows*l.valueRow
		}
		if all = append(all, l); !k.Shared {
			page += heads * l.head
		}
	}
	return all, page, nil
}

// NewCache reserves a cache.
func (d *Device) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	c, err := d.newCache(shape, pages)
	if err != nil {
		return nil, err
	}
	c.movesAt = round(c.statesAt+c.states.Size, 256)
	if c.mem, err = d.alloc(c.movesAt + c.moveBytes()); err != nil {
		return nil, err
	}
	if err := d.do(func(g Driver) error { return g.Write(c.mem.At+Pointer(c.movesAt), view(c.moves())) }); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// newCache returns a cache that has no memory yet, and no room for moves: a couple's are the processor's.
func (d *Device) newCache(shape kernels.KVShape, pages int) (*cache, error) {
	layers, page, err := layersOf(shape)
	if err != nil {
		return nil, err
	}
	if pages < 1 || pages > kernels.MaxPages {
		return nil, fmt.Errorf("cuda: KV cache of %d pages, want 1 to %d", pages, kernels.MaxPages)
	}
	return &cache{dev: d, shape: shape, layers: layers, page: page, pages: pages, states: shape.PlaceStates(line),
		statesAt: round(pages*page, 256)}, nil
}

func (c *cache) Shape() kernels.KVShape { return c.shape }
func (c *cache) Pages() int             { return c.pages }
func (c *cache) Bytes() int64           { return int64(c.pages)*int64(c.page) + int64(c.states.Size) }

// Populate and Lock do nothing: a GPU's memory is there when it is allocated, and is not paged out.
func (c *cache) Populate(_, _ int64) error { return nil }
func (c *cache) Lock() error               { return nil }

// Close gives the memory back.
func (c *cache) Close() {
	c.dev.free(c.mem)
	c.mem = Memory{}
}

// mostMoves is how many cells or slots a launch copies.
const mostMoves = 1024

// moveBytes is the room for what copies are told: the operations of moves, and behind them a number and so many pairs.
func (c *cache) moveBytes() int {
	return (len(c.layers)+1)*opBytes + 4 + mostMoves*int(unsafe.Sizeof(cPair{}))
}

// moves returns the operations of copies, which stay in the cache's memory: one for slots, then one for each layer with cells of its own.
func (c *cache) moves() []cOp {
	ids := c.mem.At + Pointer(c.movesAt+(len(c.layers)+1)*opBytes)
	all := []cOp{{ids: ids, delta: cDelta{slots: c.mem.At + Pointer(c.statesAt), slot: int64(c.states.Slot / 4)}}}
	for i, k := range c.shape.Layers {
		if k.Heads > 0 || k.Latent > 0 {
			o := c.op(i)
			o.ids = ids
			all = append(all, o)
		}
	}
	return all
}

// Copy copies cells, by a kernel that takes them in order. It does not wait for it.
func (c *cache) Copy(dst, src []kernels.Cell) {
	all := c.moves()[1:]
	if c.mem.Size == 0 || len(all) == 0 {
		return
	}
	heads, dim := 0, 0
	for _, o := range all {
		heads, dim = max(heads, int(o.kvHeads)), max(dim, int(o.headDim))
	}
	move(c, "copy_cells", 1, grid(1, heads, len(all), round(dim, 32), 0), dst, src)
}

// move launches a kernel of moves, from operation first on, for as many pairs at a time as there is room for.
func move[T kernels.Cell | int32](c *cache, kernel string, first int, s Shape, dst, src []T) {
	op := c.mem.At + Pointer(c.movesAt)
	for n := min(len(dst), len(src)); n > 0; n = min(len(dst), len(src)) {
		n = min(n, mostMoves)
		told := []int32{int32(n)}
		for i := range n {
			told = append(told, int32(dst[i]), int32(src[i]))
		}
		dst, src = dst[n:], src[n:]
		// An error means that the device is lost, which the next pass tells.
		_ = c.dev.do(func(g Driver) error {
			if err := g.Write(op+Pointer((len(c.layers)+1)*opBytes), view(told)); err != nil {
				return err
			}
			return g.Launch(kernel, s, op+Pointer(first*opBytes), 0)
		})
	}
}

// op returns an operation on a layer's keys and values.
func (c *cache) op(layer int) cOp {
	l, k := c.layers[layer], c.shape.Layers[c.shape.Kept(layer)]
	heads, key, value := k.Seen()
	return cOp{kv: c.mem.At, pageBytes: int64(c.page), headBytes: int64(l.head), layerAt: int64(l.at), values: int64(l.values),
		valueScales: int64(l.valueScales), valueRow: int32(l.valueRow), kvHeads: int32(heads), headDim: int32(key),
		valueDim: int32(value), latent: flag(k.Latent > 0), kvQ8: flag(c.shape.Type == kernels.KVQ8_0)}
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

func round(n, to int) int { return (n + to - 1) / to * to }
