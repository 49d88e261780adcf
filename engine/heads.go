package engine

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// guessRows is the most rows that a run of a head takes: more are cut into several runs, each of which reads the output matrix again.
const guessRows = 64

// GuessAsk asks one of the target's own ways for what follows.
type GuessAsk struct {
	Way string
	// Hidden is what Output.Hidden returned: for medusa the row of the last accepted node; for ppd the rows of its prompt tokens in the
	// order of their embeddings, Members·Levels of them. Guess only reads it.
	Hidden [][]float32
	// For an assistant: what lies in the cache up to the row of Hidden, and the token behind it. Path are tree rows of Seq, the first a
	// child of the prefix, each the parent of the next.
	Seq   *Sequence
	Path  []int32
	Token tandem.Token
}

// product is the output matrix as a program of its own: it makes the best tokens of states after the final norm. It shares the matrix with
// the model.
type product struct {
	program *kernels.Program
	in      kernels.Buf // (wanted, d)
	runner  kernels.Runner
}

// medusa is heads: z = h, then for each block z += SiLU(W z + b); with an output matrix of its own a head ends with its product.
//
// Each head is a stage. Heads that share the target's output matrix run all at once, and their states z go together into one run of
// product. Heads with their own are run one by one, and what they found is read in between.
type medusa struct {
	side    Side
	program *kernels.Program
	in      kernels.Buf   // (wanted, d): states after the final norm
	z       []kernels.Buf // per head, (wanted, d)
	own     bool          // output matrices
	store   kernels.Store
	runner  kernels.Runner
}

// head holds the weights of one head.
type head struct {
	blocks []kernels.W
	biases [][]float32 // of blocks; nil: none
	output kernels.W   // None: the target's
}

// prompts are the embeddings of a ppd file: (members·levels, d).
type prompts struct {
	side Side
	rows []float32
}

// Ways describes the opened side files, in the order in which they were opened.
func (m *Model) Ways() (ways []tandem.SelfDraft) { return slices.Clone(m.ways) }

// collectHeads finds the tensors of a medusa file for a target of width d.
func collectHeads(c *tensors.Catalog, s *Side) (heads []head) {
	own := c.File.Tensor("medusa.0.output.weight") != nil
	for k := range s.Levels {
		h := head{output: kernels.None}
		for b := range s.Blocks {
			name := fmt.Sprintf("medusa.%d.%d.", k, b)
			var w kernels.W
			c.Matrix(&w, name+"weight", true, s.Width, s.Width)
			h.blocks, h.biases = append(h.blocks, w), append(h.biases, c.Vector(name+"bias", false, s.Width))
		}
		if own {
			c.Matrix(&h.output, fmt.Sprintf("medusa.%d.output.weight", k), true, s.Vocab, s.Width)
		}
		heads = append(heads, h)
	}
	return heads
}

// plan lays out the heads.
func (h *medusa) plan(m *Model, heads []head, matrices []tensors.Matrix) {
	p := kernels.NewProgram(guessRows, guessRows)
	tensors.AddTo(p, matrices, m.device.Layout)
	d := m.config.Dim
	h.in = p.WantedBuf(d)
	inner, act := p.WantedBuf(d), p.WantedAct(d)
	var logits kernels.Buf
	if h.own = heads[0].output != kernels.None; h.own {
		logits = p.WantedBuf(m.config.Vocab)
	}
	for k, head := range heads {
		p.Stage(fmt.Sprintf("head %d", k))
		z := p.WantedBuf(d)
		h.z = append(h.z, z)
		p.Copy(h.in, z)
		for b, w := range head.blocks {
			p.Feed(z, act)
			p.MatMul(w, act, inner, kernels.MatMulOpt{})
			if bias := head.biases[b]; bias != nil {
				p.AddBias(inner, bias)
			}
			p.AddSiLU(inner, z)
		}
		if h.own {
			p.Feed(z, act)
			p.MatMul(head.output, act, logits, kernels.MatMulOpt{})
			m.config.Finish(p, logits)
			p.TopK(logits)
		}
	}
	h.program = p
}

// planProduct lays out the output matrix alone.
func (m *Model) planProduct() *product {
	p := kernels.NewProgram(guessRows, guessRows)
	in, act, logits := p.WantedBuf(m.config.Dim), p.WantedAct(m.config.Dim), p.WantedBuf(m.config.Vocab)
	p.Stage("the output")
	p.Feed(in, act)
	p.MatMul(p.Weight(m.plan.Weights[m.weights.Head]), act, logits, kernels.MatMulOpt{})
	m.config.Finish(p, logits)
	p.TopK(logits)
	return &product{program: p, in: in}
}

// promptsOf reads the embeddings of a ppd file.
func promptsOf(c *tensors.Catalog, s *Side) *prompts {
	const name = "ppd.embd.weight"
	n := s.Levels * s.Members
	var w kernels.W
	c.Matrix(&w, name, true, n, s.Width)
	if c.Err != nil {
		return nil
	}
	t := c.Matrices[w].Tensor
	data, err := t.Bytes()
	if err != nil {
		c.Err = err
		return nil
	}
	p := &prompts{side: *s, rows: make([]float32, n*s.Width)}
	for i, size := 0, len(data)/n; i < n; i++ {
		ref.Dequantize(uint32(t.Type), data[i*size:(i+1)*size], p.rows[i*s.Width:(i+1)*s.Width])
	}
	c.CheckFinite(name, p.rows)
	return p
}

// sidePlan is a side file of the target, planned but not loaded.
type sidePlan struct {
	side     Side
	matrices []tensors.Matrix
	medusa   *medusa    // or
	prompts  *prompts   // or
	helper   *assistant // one of the three
	product  *product   // nil: not needed, or there already
	Footprint
}

// planSide reads the side file f and plans what it needs. The model's lineage is compared if it is known.
func (m *Model) planSide(f *gguf.File) (*sidePlan, error) {
	path := f.Path()
	side, err := readSide(f)
	if err != nil {
		return nil, err
	}
	if !side.InVerifier() {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%s is no side file of a target (medusa, ppd, gemma4-assistant), but %s", path,
			map[bool]string{true: "a draft: a drafter opens it", false: "a model"}[side.Draft()])
	}
	if m.draft != nil {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%s: %s is a draft with states, which has no side files", path, m.path)
	}
	if slices.ContainsFunc(m.ways, func(w tandem.SelfDraft) bool { return w.Name == side.Way() }) {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%s: the target has a side file of kind %s already", path, side.Kind)
	}
	s := &sidePlan{side: side}
	if side.Kind == SideAssistant {
		if s.helper, err = m.planAssistant(f); err != nil {
			return nil, err
		}
		s.Footprint, err = s.helper.measure(path, m.near())
		return s, err
	}
	if err := side.fits(path, m.asTarget()); err != nil {
		return nil, err
	}
	c := tensors.New(f)
	if side.Kind == SidePPD {
		s.prompts = promptsOf(c, &side)
	} else if heads := collectHeads(c, &side); c.Err == nil {
		s.matrices, s.medusa = c.Matrices, &medusa{side: side}
		s.medusa.plan(m, heads, c.Matrices)
	}
	if c.Err != nil {
		return nil, c.Err
	}
	if m.product == nil && (s.medusa == nil || !s.medusa.own) {
		s.product = m.planProduct()
	}
	return s, s.measure(path, m.device)
}

// measure fills in the footprint.
func (s *sidePlan) measure(path string, d kernels.Device) error {
	if s.medusa != nil {
		if err := s.medusa.program.Check(); err != nil {
			return tandem.Errorf("engine", tandem.Unsupported, "%s: %w", path, err)
		}
		need, err := d.Footprint(s.medusa.program)
		if err != nil {
			return deviceError(path, err)
		}
		s.Weights, s.Scratch, s.Own = need.Weights, need.Buffers, need.Own
	} else {
		s.Scratch = 4 * int64(len(s.prompts.rows))
	}
	if s.product != nil {
		need, err := d.Footprint(s.product.program)
		if err != nil {
			return deviceError(path, err)
		}
		s.Scratch += need.Buffers // its weights are the model's
		s.Own.Buffers += need.Own.Buffers
	}
	return nil
}

func (m *Model) asTarget() side.Target {
	return side.Target{Path: m.path, Lineage: m.names.Lineage, Vocabulary: fmt.Sprintf("%016x", m.vocab.Fingerprint()),
		Dim: m.config.Dim, Vocab: m.config.Vocab, Layers: m.config.Layers}
}

// OpenSide reads a side file of kind medusa, ppd or gemma4-assistant for m, which must be its target: same lineage, vocabulary and width;
// an assistant states no lineage, and its layers must find their kinds in the target. It is called
// before the first pass, at most once for each kind. Close frees it with the model. Errors: Invalid (no such file, another target, not a
// side file, one of its kind is open), Corrupt, Unsupported, Exhausted (memory). After an error the model is as before.
func (m *Model) OpenSide(path string) error {
	available := AvailableMemory()
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := m.planSide(f)
	if err != nil {
		return err
	}
	if need := s.Weights + s.Scratch; need > available.Bytes {
		return tandem.Errorf("engine", tandem.Exhausted, "%s needs %s of memory beside its target; %s allows %s", path, Bytes(need),
			available.By, Bytes(max(0, available.Bytes)))
	}
	if available, err = available.On(m.device); err == nil {
		err = available.FitsOwn(path+" needs "+s.OwnString(), s.Own.Total(0))
	}
	if err != nil {
		return err
	}
	if err := s.load(m, f); err != nil {
		s.close()
		return err
	}
	m.addSide(s)
	return nil
}

// measureSide adds what a side file will need to the footprint of a model that is laid out.
func (m *Model) measureSide(path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := m.planSide(f)
	if err == nil {
		m.addSide(s)
	}
	return err
}

// load allocates and fills what the plan needs.
func (s *sidePlan) load(m *Model, f *gguf.File) (err error) {
	if s.helper != nil {
		return s.helper.load(m, f)
	}
	if q := s.product; q != nil {
		loan, err := kernels.Borrow(q.program, m.plan, m.store, []kernels.W{m.weights.Head})
		if err != nil {
			return tandem.Errorf("engine", tandem.Unsupported, "%s: %w", f.Path(), err)
		}
		if q.runner, err = m.device.Compile(q.program, loan, nil); err != nil {
			return deviceError(f.Path(), err)
		}
	}
	h := s.medusa
	if h == nil {
		return nil
	}
	if h.store, err = m.device.NewWeights(h.program); err != nil {
		return deviceError(f.Path(), err)
	}
	if h.runner, err = m.device.Compile(h.program, h.store, nil); err != nil {
		return deviceError(f.Path(), err)
	}
	to := tensors.Into(h.store)
	to.Add = f.NewDigest().Add
	if err := tensors.Fill(s.matrices, to, nil); err != nil || !m.options.Lock {
		return err
	}
	return lockAll(h.store)
}

// addSide makes a loaded side file the model's.
func (m *Model) addSide(s *sidePlan) {
	if s.product != nil {
		m.product = s.product
	}
	switch {
	case s.medusa != nil:
		m.medusa = s.medusa
	case s.helper != nil:
		m.assistant = s.helper
	default:
		m.prompts = s.prompts
	}
	m.ways = append(m.ways, tandem.SelfDraft{Name: s.side.Way(), Levels: s.side.Levels, Members: s.side.Members})
	m.footprint.Weights += s.Weights
	m.footprint.Beside += s.Weights
	m.footprint.Scratch += s.Scratch
	m.footprint.Own.Weights += s.Own.Weights
	m.footprint.Own.Buffers += s.Own.Buffers
}

func (s *sidePlan) close() {
	if s.helper != nil {
		s.helper.close()
	}
	if s.medusa != nil {
		s.medusa.close()
	}
	if s.product != nil {
		s.product.close()
	}
}

func (h *medusa) close() {
	if h.runner != nil {
		h.runner.Close()
	}
	if h.store != nil {
		h.store.Close()
	}
}

func (q *product) close() {
	if q.runner != nil {
		q.runner.Close()
	}
}
