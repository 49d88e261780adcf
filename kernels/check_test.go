package kernels

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func wantError(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error %v, want one that says %q", what, err, text)
	}
}

func turn(freq ...float64) Rotation { return Rotation{InvFreq: freq} }

func q8(p *Program, rows, cols int) W {
	return p.Weight(Weight{Name: "w", Type: Q8_0, Rows: rows, Cols: cols, Layout: Groups16})
}

// conv returns a convolution of rows of 32 columns with so many numbers.
func conv(p *Program, numbers, group, from int) BlockConv {
	return BlockConv{In: p.Buf(32), Base: make([]float32, numbers), Weights: p.Buf(8), From: from, Group: group, Out: p.Buf(32)}
}

// compressed is a shape whose layer 1 keeps a latent vector, and layer 2 shares the keys and values of layer 0.
func compressed() KVShape {
	return KVShape{Layers: []KVLayer{{Heads: 2, Dim: 16, Window: 100}, {Latent: 64, Rotated: 16}, {Shared: true}, {}}}
}

func TestCheck(t *testing.T) {
	one := AttentionOpt{Scale: 1}
	for text, build := range map[string]func(p *Program){
		"without operations":                      func(p *Program) {},
		"matmul: output's columns is 17, want 16": func(p *Program) { p.MatMul(q8(p, 16, 64), p.Act(64), p.Buf(17), MatMulOpt{}) },
		"matmul: input's columns is 32, want 64":  func(p *Program) { p.MatMul(q8(p, 16, 64), p.Act(32), p.Buf(16), MatMulOpt{}) },
		"outputs 0 to 17 of 16": func(p *Program) {
			p.MatMul(q8(p, 16, 64), p.Act(64), p.Buf(16), MatMulOpt{Outputs: Range{0, 17}})
		},
		"outputs 16 to 16 of 40": func(p *Program) {
			p.MatMul(q8(p, 40, 64), p.Act(64), p.Buf(40), MatMulOpt{Outputs: Range{16, 16}})
		},
		"outputs 0 to 20 of 40, want multiples": func(p *Program) {
			p.MatMul(q8(p, 40, 64), p.Act(64), p.Buf(40), MatMulOpt{Outputs: Range{0, 20}})
		},
		"outputs 8 to 40 of 40, want multiples": func(p *Program) {
			p.MatMul(q8(p, 40, 64), p.Act(64), p.Buf(40), MatMulOpt{Outputs: Range{8, 40}})
		},
		"operation 0, embed: weight -1 of 0":    func(p *Program) { p.Embed(None, p.Buf(64)) },
		"embed: weight 3 of 1":                  func(p *Program) { q8(p, 16, 64); p.Embed(3, p.Buf(64)) },
		"bias: buffer 9 of 0":                   func(p *Program) { p.AddBias(9, nil) },
		"matmul: activation -1 of 0":            func(p *Program) { p.MatMul(q8(p, 16, 64), None, p.Buf(16), MatMulOpt{}) },
		"weight's length is 3":                  func(p *Program) { p.RMSNorm(p.Buf(4), make([]float32, 3), 0, p.Act(4)) },
		"all rows":                              func(p *Program) { p.RMSNorm(p.WantedBuf(4), make([]float32, 4), 0, p.Act(4)) },
		"heads·headDim is 30":                   func(p *Program) { p.RoPE(p.Buf(32), 3, 10, turn(1, 1, 1)) },
		"12 of 10 elements turn":                func(p *Program) { p.RoPE(p.Buf(30), 3, 10, turn(1, 1, 1, 1, 1, 1)) },
		"0 of 10 elements turn":                 func(p *Program) { p.RoPE(p.Buf(30), 3, 10, turn()) },
		"frequency 0 is 1e+300":                 func(p *Program) { p.RoPE(p.Buf(2), 1, 2, turn(1e300)) },
		"normadd: weight's":                     func(p *Program) { p.NormAdd(p.Buf(4), make([]float32, 3), 1, p.Buf(4)) },
		"normadd: output's":                     func(p *Program) { p.NormAdd(p.Buf(4), make([]float32, 4), 1, p.Buf(5)) },
		"headnorm: heads·head":                  func(p *Program) { p.HeadNorm(p.Buf(9), 2, make([]float32, 4), 1) },
		"headnorm: 2 heads of 0":                func(p *Program) { p.HeadNorm(p.Buf(9), 2, nil, 1) },
		"copy: input's columns is 4, want 3":    func(p *Program) { p.Copy(p.Buf(4), p.Buf(3)) },
		"scale: buffer 5 of 0":                  func(p *Program) { p.Scale(5, 2) },
		"position scale: 0 factors for 4":       func(p *Program) { p.PositionScale(p.Buf(8), 4, nil) },
		"1 factors for 0 positions":             func(p *Program) { p.PositionScale(p.Buf(8), 0, []float32{1}) },
		"position scale: one side has all":      func(p *Program) { p.PositionScale(p.WantedBuf(8), 1, []float32{1}) },
		"addscaled: input's columns is 32":      func(p *Program) { p.AddScaled(p.Buf(32), 2, p.Buf(48)) },
		"softcap: cap 0":                        func(p *Program) { p.SoftCap(p.Buf(4), 0) },
		"feed: output's columns is 48":          func(p *Program) { p.Feed(p.Buf(32), p.Act(48)) },
		"feed: one side has all rows":           func(p *Program) { p.Feed(p.Buf(32), p.WantedAct(32)) },
		"addsilu: input's columns is 32":        func(p *Program) { p.AddSiLU(p.Buf(32), p.Buf(48)) },
		"addsilu: buffer 0 is input and output": func(p *Program) { b := p.Buf(32); p.AddSiLU(b, b) },
		"blend: input's columns is 48":          func(p *Program) { p.Blend(p.Buf(32), p.Buf(48), p.Buf(32)) },
		"blend: one side has all rows":          func(p *Program) { p.Blend(p.WantedBuf(32), p.Buf(32), p.Buf(32)) },
		"sigmoid scale: one side has all rows":  func(p *Program) { p.Add(SigmoidScale{p.WantedBuf(1), p.Buf(32)}) },
		"buffer 1 of 32 columns scaled by":      func(p *Program) { p.Add(SigmoidScale{p.Buf(3), p.Buf(32)}) },
		"buffer 0 of 32 columns scaled by":      func(p *Program) { b := p.Buf(32); p.Add(SigmoidScale{b, b}) },
		"copy heads: 3 heads from buffer 0":     func(p *Program) { p.Add(CopyHeads{In: p.Buf(32), Out: p.Buf(48), Heads: 3, Dim: 1}) },
		"8 elements from 9 of a head of 16 to 0 of a head of 24": func(p *Program) {
			p.Add(CopyHeads{In: p.Buf(32), Out: p.Buf(48), Heads: 2, From: 9, Dim: 8})
		},
		"8 elements from 0 of a head of 16 to 17 of a head of 24": func(p *Program) {
			p.Add(CopyHeads{In: p.Buf(32), Out: p.Buf(48), Heads: 2, To: 17, Dim: 8})
		},
		"63 numbers for rows of 32 columns, want 1 to 32": func(p *Program) { p.Add(conv(p, 63, 16, 0)) },
		"groups of 5 columns in rows of 32":               func(p *Program) { p.Add(conv(p, 64, 5, 0)) },
		"block convolution: 4 numbers from column 5 of 8": func(p *Program) { p.Add(conv(p, 64, 16, 5)) },
		"block convolution: buffer 0 is input and output": func(p *Program) { b := p.Buf(8); p.Add(BlockConv{In: b, Out: b}) },
		"route 0 of 8 experts is fixed, but its rows use 2": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 8, Used: 2, Fixed: true}}
			p.Scale(p.Buf(1), 1)
		},
		"choose experts: route 0 is fixed": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 8, Used: 8, Fixed: true}}
			p.Add(ChooseExperts{Logits: p.Buf(8), Out: 0})
		},
		"join experts: route 0 is fixed": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 2, Used: 2, Fixed: true}}
			p.Add(JoinExperts{In: p.Buf(8), Out: p.Buf(4)})
		},
		"gate: output's columns is 48":          func(p *Program) { p.SiLUMul(p.Buf(32), p.Buf(32), p.Act(48)) },
		"topk: one side has all rows":           func(p *Program) { p.TopK(p.Buf(3)) },
		"store: layer 1 of a KV cache of 0":     func(p *Program) { p.StoreKV(p.Buf(32), p.Buf(32), 1) },
		"attention: layer 0 of a KV cache of 0": func(p *Program) { p.Attention(p.Buf(32), 0, 2, one, p.Act(32)) },
		"3 heads on 2 KV heads": func(p *Program) {
			p.KV = UniformKV(1, 2, 16, KVF16)
			p.Attention(p.Buf(48), 0, 3, one, p.Act(48))
		},
		"window of -1 positions": func(p *Program) {
			p.KV = UniformKV(1, 2, 16, KVF16)
			p.Attention(p.Buf(32), 0, 2, AttentionOpt{Window: -1}, p.Act(32))
		},
		"soft cap -1": func(p *Program) {
			p.KV = UniformKV(1, 2, 16, KVF16)
			p.Attention(p.Buf(32), 0, 2, AttentionOpt{SoftCap: -1}, p.Act(32))
		},
		"0 heads of 16": func(p *Program) { p.KV = UniformKV(1, 0, 16, KVF16); p.Scale(p.Buf(1), 1) },
		"layer 1: shares the keys and values of l": func(p *Program) {
			p.KV = UniformKV(2, 2, 16, KVF16)
			p.KV.Layers[1] = KVLayer{Shared: true, Source: 1}
			p.Scale(p.Buf(1), 1)
		},
		"which keeps none of its own": func(p *Program) { p.KV = KVShape{Layers: []KVLayer{{}, {Shared: true}}}; p.Scale(p.Buf(1), 1) },
		"keeps keys and values of its own and": func(p *Program) {
			p.KV = UniformKV(2, 2, 16, KVF16)
			p.KV.Layers[1].Shared = true
			p.Scale(p.Buf(1), 1)
		},
		"q8_0 of 40 and 0 elements": func(p *Program) {
			p.KV = KVShape{Layers: []KVLayer{{Latent: 40}}, Type: KVQ8_0}
			p.Scale(p.Buf(1), 1)
		},
		"compressed to 0 elements and 8 rotated": func(p *Program) {
			p.KV = KVShape{Layers: []KVLayer{{Rotated: 8}}}
			p.Scale(p.Buf(1),
				1)
		},
		"window of -5 positions": func(p *Program) {
			p.KV = KVShape{Layers: []KVLayer{{Window: -5}}}
			p.Scale(p.Buf(1),
				1)
		},
		"heads of 16, want a multiple of 32":      func(p *Program) { p.KV = UniformKV(1, 2, 16, KVQ8_0); p.Scale(p.Buf(1), 1) },
		"layer 2 shares the keys and values of":   func(p *Program) { p.KV = compressed(); p.StoreKV(p.Buf(32), p.Buf(32), 2) },
		"layer 3 keeps no keys":                   func(p *Program) { p.KV = compressed(); p.Attention(p.Buf(32), 3, 2, one, p.Act(32)) },
		"window of 0 positions in layer 0, which": func(p *Program) { p.KV = compressed(); p.Attention(p.Buf(32), 0, 2, one, p.Act(32)) },
		"values' columns is 16, want 64":          func(p *Program) { p.KV = compressed(); p.StoreKV(p.Buf(16), p.Buf(16), 1) },
		"query's columns is 128, want 160":        func(p *Program) { p.KV = compressed(); p.Attention(p.Buf(128), 1, 2, one, p.Act(128)) },
		"buffer 0 of 0 columns":                   func(p *Program) { p.Buf(0); p.Scale(0, 1) },
		"activation 0 of -4 columns":              func(p *Program) { p.Act(-4); p.Scale(p.Buf(1), 1) },
		"no kernels for weights of type 99":       func(p *Program) { p.Weight(Weight{Type: 99}); p.Scale(p.Buf(1), 1) },
		"rows of 96 elements in q4_k": func(p *Program) {
			p.Weight(Weight{Type: Q4_K, Rows: 16, Cols: 96, Layout: Rows})
			p.Scale(p.Buf(1), 1)
		},
		"matrix of 0 outputs": func(p *Program) {
			p.Weight(Weight{Type: Q8_0, Cols: 32, Layout: Rows})
			p.Scale(p.Buf(1), 1)
		},
		`unknown layout ""`: func(p *Program) { p.Weight(Weight{Type: F32, Rows: 1, Cols: 1}); p.Scale(p.Buf(1), 1) },
		"-1 experts": func(p *Program) {
			p.Weight(Weight{Type: F32, Rows: 1, Cols: 1, Experts: -1})
			p.Scale(p.Buf(1), 1)
		},
		"stage 0 \"late\" begins with operation 1": func(p *Program) {
			p.Scale(p.Buf(1), 1)
			p.Scale(0,
				1)
			p.Stages = []Stage{{"late", 1}}
		},
		"stage 1 \"none\" begins with operation 1": func(p *Program) { p.Stage("all"); p.Scale(p.Buf(1), 1); p.Stage("none") },
		"tap 0 of layer 2 in buffer 7 of 1":        func(p *Program) { p.Scale(p.Buf(1), 1); p.Taps = []Tap{{2, 7}} },
		"is written to by 2 operations":            func(p *Program) { p.Scale(p.Buf(1), 1); p.Scale(0, 1); p.Taps = []Tap{{2, 0}} },
		"state 0 of layer -1": func(p *Program) {
			p.KV = KVShape{Layers: []KVLayer{{}}, States: []State{{-1, "delta net", 8, 2}}, Slots: 1}
			p.Scale(p.Buf(1), 1)
		},
		"recurrent states with 0 slots":        func(p *Program) { recurrent(p, func(*DeltaNet) { p.KV.Slots = 0 }) },
		"delta net: state 1 of 1":              func(p *Program) { recurrent(p, func(o *DeltaNet) { o.State = 1 }) },
		"delta net: buffer -1 of 4":            func(p *Program) { recurrent(p, func(o *DeltaNet) { o.In = None }) },
		"3 value heads for 2 key heads":        func(p *Program) { recurrent(p, func(o *DeltaNet) { o.KeyHeads, o.ValueHeads = 2, 3 }) },
		"a convolution of 0 taps":              func(p *Program) { recurrent(p, func(o *DeltaNet) { o.Kernel = 0 }) },
		"convolution's weights is 47, want 48": func(p *Program) { recurrent(p, func(o *DeltaNet) { o.Conv = o.Conv[:47] }) },
		"state's numbers is 64, want 80": func(p *Program) {
			recurrent(p, func(o *DeltaNet) { o.Kernel, o.Conv = 4, make([]float32, 64) })
		},
		"route 0 to 9 of 8 experts": func(p *Program) { p.Routes = []RouteShape{{Experts: 8, Used: 9}}; p.Scale(p.Buf(1), 1) },
		"logits' columns is 4, want 8": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 8, Used: 2}}
			p.Add(ChooseExperts{Logits: p.Buf(4)})
		},
		"matrix's experts is 0, want 8": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 8, Used: 2}}
			p.Add(ChooseExperts{Logits: p.Buf(8)})
			p.Add(ExpertMatMul{W: q8(p, 16, 32), In: p.Act(32), Out: p.Buf(32)})
		},
		"choose experts: bias's length is 3, want 8": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 8, Used: 2}}
			p.Add(ChooseExperts{Logits: p.Buf(8), RouteOpt: RouteOpt{Bias: make([]float32, 3)}})
		},
		"expert matmul: route 0 is not chosen before": func(p *Program) {
			p.Routes = []RouteShape{{Experts: 8, Used: 2}}
			w := p.Weight(Weight{Type: F32, Rows: 16, Cols: 32, Experts: 8, Layout: Rows})
			p.Add(ExpertMatMul{W: w, In: p.Act(32), Out: p.Buf(32)})
		},
		"expert matmul: bias's length is 16, want 128": func(p *Program) {
			expert(p, ExpertMatMul{In: p.Act(32), Out: p.Buf(32), Bias: make([]float32, 16)})
		},
		"expert matmul: input's columns is 96, want 64":  func(p *Program) { expert(p, ExpertMatMul{In: p.Act(96), Out: p.Buf(32)}) },
		"expert matmul: output's columns is 16, want 32": func(p *Program) { expert(p, ExpertMatMul{In: p.Act(32), Out: p.Buf(16)}) },
		"expert matmul: side 3": func(p *Program) {
			expert(p, ExpertMatMul{In: p.Act(32), Out: p.Buf(32), Side: 3})
		},
		"join experts: route 3 of 1": func(p *Program) {
			expert(p, ExpertMatMul{In: p.Act(32), Out: p.Buf(32)})
			p.Add(JoinExperts{In: p.Buf(32), Route: 3, Out: p.Buf(16)})
		},
		"join experts: input's columns is 48, want 32": func(p *Program) {
			expert(p, ExpertMatMul{In: p.Act(32), Out: p.Buf(32)})
			p.Add(JoinExperts{In: p.Buf(48), Out: p.Buf(16)})
		},
		"gate: curve 3": func(p *Program) { p.Add(Gate{Curve: 3, Gate: p.Buf(8), Up: p.Buf(8), Out: p.Act(8)}) },
		"attention: number of sinks is 3, want 2": func(p *Program) {
			p.KV = UniformKV(1, 2, 16, KVF16)
			p.Add(Attention{Q: p.Buf(32), Heads: 2, Out: p.Act(32), Sinks: make([]float32, 3)})
		},
		"parts 0 of 0 heads":        func(p *Program) { p.Parts = []PartShape{{0, 16}}; p.Scale(p.Buf(1), 1) },
		"join blocks: parts 0 of 0": func(p *Program) { p.KV = UniformKV(1, 2, 16, KVF16); p.Add(JoinBlocks{Out: p.Act(32)}) },
	} {
		p := NewProgram(4, 2)
		build(p)
		wantError(t, text, p.Check(), text)
	}
	wantError(t, "rows", NewProgram(0, 0).Check(), "program of 0 rows")
	wantError(t, "wanted", NewProgram(2, 3).Check(), "3 wanted")
}

// TestCheckDivided: the sides of an attention fit together.
func TestCheckDivided(t *testing.T) {
	opt := AttentionOpt{Scale: 1, Window: 90}
	for text, change := range map[string]func(left, right *AttendBlocks){
		"":                              func(_, _ *AttendBlocks) {},
		"side 3":                        func(_, r *AttendBlocks) { r.Side = 3 },
		"3 KV heads of the block":       func(l, _ *AttendBlocks) { l.Shared = 3 },
		"different attentions":          func(l, _ *AttendBlocks) { l.Shared = 2 },
		"computed twice":                func(l, _ *AttendBlocks) { l.Side = Right },
		"computed twice before":         func(l, _ *AttendBlocks) { l.Side, l.Shared = Whole, 0 },
		"window of 91 positions":        func(l, r *AttendBlocks) { l.Window, r.Window = 101, 91 },
		"parts' heads is 4, want 2":     func(l, r *AttendBlocks) { l.Heads, l.Q, r.Heads, r.Q = 2, 1, 2, 1 },
		"attend blocks: parts -1 of 1":  func(l, _ *AttendBlocks) { l.Out = None },
		"query's columns is 64, want 3": func(l, _ *AttendBlocks) { l.Heads = 2 },
	} {
		p := NewProgram(4, 2)
		p.KV = compressed()
		p.Parts = []PartShape{{4, 16}}
		q, out := p.Buf(64), p.Act(64)
		p.Buf(32)
		left := AttendBlocks{AttentionOpt: opt, Q: q, Heads: 4, Side: Left, Shared: 1}
		right := left
		right.Side = Right
		change(&left, &right)
		for range 2 { // layer after layer the same parts
			p.Add(left)
			p.Add(right)
			p.Add(JoinBlocks{AttentionOpt: opt, Out: out})
		}
		if text == "window of 91 positions" {
			text = "window of 101 positions in layer 0, which keeps 100"
		}
		if err := p.Check(); text == "" && err != nil {
			t.Error(err)
		} else if text != "" {
			wantError(t, text, err, text)
		}
	}
}

// expert adds an operation on a matrix of 8 experts, of which 2 were chosen, with 16 outputs and 32 inputs.
func expert(p *Program, o ExpertMatMul) {
	p.Routes = []RouteShape{{Experts: 8, Used: 2}}
	p.Add(ChooseExperts{Logits: p.Buf(8)})
	o.W = p.Weight(Weight{Type: F32, Rows: 16, Cols: 32, Experts: 8, Layout: Rows})
	p.Add(o)
}

// recurrent adds a delta net of layer 3.
func recurrent(p *Program, change func(o *DeltaNet)) {
	if len(p.KV.Layers) == 0 {
		p.KV.Layers = []KVLayer{{}}
	}
	d := DeltaShape{KeyHeads: 1, ValueHeads: 2, Dim: 4, Kernel: 3}
	p.KV.States, p.KV.Slots = []State{{Layer: 3, Kind: "delta net", Floats: d.Floats(), Record: d.Record()}}, 2
	o := DeltaNet{DeltaShape: d, In: p.Buf(16), Alpha: p.Buf(2), Beta: p.Buf(2), Conv: make([]float32, 48), A: make([]float32, 2),
		Bias: make([]float32, 2), Out: p.Buf(8)}
	change(&o)
	p.Add(o)
}

// TestLater: a program can say what later architectures need.
func TestLater(t *testing.T) {
	p := NewProgram(4, 2)
	p.KV = compressed()
	p.Routes = []RouteShape{{Experts: 8, Used: 2}}
	x := p.Buf(64)
	p.Stage("layer 1")
	p.StoreKV(p.Buf(16), x, 1)
	p.Attention(p.Buf(4*80), 1, 4, AttentionOpt{Scale: 1}, p.Act(4*64))
	p.Stage("layer 2")
	p.Attention(p.Buf(32), 2, 2, AttentionOpt{Scale: 1, Window: 100}, p.Act(32))
	p.Stage("layer 3")
	recurrent(p, func(*DeltaNet) {})
	p.Stage("layer 3, routing")
	p.Add(ChooseExperts{Logits: p.Buf(8)})
	p.Stage("layer 3, experts")
	up := p.Weight(Weight{Name: "up", Type: Q8_0, Rows: 96, Cols: 64, Experts: 8, Layout: Groups16})
	down := p.Weight(Weight{Name: "down", Type: Q8_0, Rows: 64, Cols: 96, Experts: 8, Layout: Groups16})
	wide, apart, tap := p.Buf(2*96), p.Buf(2*64), p.Buf(64)
	in, inner := p.Act(64), p.Act(2*96)
	p.Add(ExpertMatMul{W: up, In: in, Out: wide})
	p.Feed(wide, inner)
	p.Add(ExpertMatMul{W: down, In: inner, Out: apart})
	p.Add(JoinExperts{In: apart, Out: x})
	p.Copy(x, tap)
	p.Taps = []Tap{{Layer: 3, Buf: tap}}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	if got := p.StageWeights(4); !slices.Equal(got, []W{up, down}) || p.StageCount() != 5 || p.StageName(4) != "layer 3, experts" {
		t.Errorf("weights %v of %d stages", got, p.StageCount())
	}
	if r, ok := p.StageRoute(4); !ok || r != 0 {
		t.Errorf("stage 4 has route %d (%v), want 0, chosen before", r, ok)
	}
	if _, ok := p.StageRoute(3); ok {
		t.Error("stage 3 has a route that an earlier stage has chosen")
	}
	if got, want := p.MACs(3, 0), int64(3*2*2*96*64); got != want {
		t.Errorf("%d multiply-adds, want %d", got, want)
	}
	if got, want := p.Weights[up].Bytes(), 8*Groups16.Bytes(Q8_0, 96, 64); got != want {
		t.Errorf("%d bytes of experts, want %d", got, want)
	}
}

// TestStages: stages follow each other and cover all operations.
func TestStages(t *testing.T) {
	p := NewProgram(4, 2)
	b, w := p.Buf(64), q8(p, 64, 64)
	if from, to := p.StageOps(0); from != 0 || to != 0 || p.StageCount() != 1 {
		t.Errorf("an empty program: %d to %d", from, to)
	}
	p.Scale(b, 1)
	p.Stage("a")
	p.Stage("b")
	p.MatMul(w, p.Act(64), b, MatMulOpt{Outputs: Range{0, 32}, Concurrent: true})
	p.MatMul(w, 0, b, MatMulOpt{Outputs: Range{32, 64}})
	p.Stage("c")
	p.Embed(w, b)
	want := []Stage{{"", 0}, {"b", 1}, {"c", 3}}
	if !reflect.DeepEqual(p.Stages, want) || p.Check() != nil {
		t.Errorf("stages %+v, %v: want %+v", p.Stages, p.Check(), want)
	}
	for i, c := range []struct {
		from, to int
		weights  []W
		name     string
	}{{0, 1, nil, "stage 0"}, {1, 3, []W{w}, "b"}, {3, 4, []W{w}, "c"}} {
		if from, to := p.StageOps(i); from != c.from || to != c.to || !slices.Equal(p.StageWeights(i), c.weights) ||
			p.StageName(i) != c.name {
			t.Errorf("stage %d: operations %d to %d, weights %v, %q: want %+v", i, from, to, p.StageWeights(i), p.StageName(i), c)
		}
	}
	if got := p.MACs(5, 1); got != 5*64*64 {
		t.Errorf("%d multiply-adds, want %d", got, 5*64*64)
	}
}

func TestTypes(t *testing.T) {
	for _, typ := range Types() {
		if elems, bytes := typ.Block(); elems == 0 || bytes == 0 || !typ.Supported() || typ.Quantized() != (elems > 1) {
			t.Errorf("%v: block %d/%d, supported %v, quantized %v", typ, elems, bytes, typ.Supported(), typ.Quantized())
		}
		elems, size := typ.Block()
		if got := Rows.Bytes(typ, 3, 2*elems); got != 6*size {
			t.Errorf("%v: %d bytes of 6 blocks, want %d", typ, got, 6*size)
		}
		if got := Groups16.Bytes(typ, 17, 256); got != 2*Groups16.Bytes(typ, 1, 256) || got%128 != 0 {
			t.Errorf("%v: %d bytes of two groups", typ, got)
		}
	}
	if bad := Type(4); bad.Supported() || bad.String() != "type 4" || Groups16.Bytes(bad, 16, 256) != 0 ||
		Layout("other").Bytes(F32, 1, 1) != 0 {
		t.Errorf("type 4: supported %v, %q", bad.Supported(), bad)
	}
}

func TestParseKVType(t *testing.T) {
	for name, want := range map[string]KVType{"": KVF16, "f16": KVF16, "q8_0": KVQ8_0} {
		if got, err := ParseKVType(name); err != nil || got != want {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
	_, err := ParseKVType("q3")
	wantError(t, "q3", err, `"q3"`)
}

// TestWalks: a pass names only rows, states, slots and records that there are, and each as often as it may.
func TestWalks(t *testing.T) {
	p := NewProgram(4, 0)
	recurrent(p, func(*DeltaNet) { p.KV.Slots, p.KV.Records = 5, 3 })
	l := p.PassLimits(0)
	row := func(row, in, out int32) Step { return Step{Row: row, Record: -1, In: in, Out: out, Save: -1} }
	good := func() *Pass {
		return &Pass{Rows: 4, Walks: []Walk{
			{From: 2, Steps: []Step{{Row: -1, Record: 1, Save: 2}, row(0, 0, 1), row(2, 0, 15), row(3, 15, 0)}},
			{From: -1, Steps: []Step{{Row: 1, Record: 0, Save: 0}}}, {From: -1}, {From: 4}, {From: 4}}}
	}
	for range 2 {
		if err := l.Check(good()); err != nil {
			t.Fatal(err)
		}
	}
	if a := good(); testing.AllocsPerRun(10, func() { _ = l.Check(a) }) > 0 {
		t.Error("checking a good pass allocates")
	}
	first, step := func(a *Pass) *Walk { return &a.Walks[0] }, func(a *Pass, i int) *Step { return &a.Walks[0].Steps[i] }
	for text, spoil := range map[string]func(a *Pass){
		"walks through 0 of 4 rows":                                func(a *Pass) { a.Walks = nil },
		"walks through 3 of 4 rows":                                func(a *Pass) { a.Walks = a.Walks[:1] },
		"walk 0 begins with slot 5 of 5":                           func(a *Pass) { first(a).From = 5 },
		"walk 0 begins with slot -2 of 5":                          func(a *Pass) { first(a).From = -2 },
		"walk 0, step 1: row 4 of 4":                               func(a *Pass) { step(a, 1).Row = 4 },
		"walk 0, step 1: row -2 of 4":                              func(a *Pass) { step(a, 1).Row = -2 },
		"walk 0, step 2: row 0 has had a step":                     func(a *Pass) { step(a, 2).Row = 0 },
		"walk 0, step 0: record -1 of 3":                           func(a *Pass) { step(a, 0).Record = -1 },
		"walk 0, step 0: record 3 of 3":                            func(a *Pass) { step(a, 0).Record = 3 },
		"walk 0, step 1: record -2 of 3":                           func(a *Pass) { step(a, 1).Record = -2 },
		"walk 1, step 0: record 1 has had a step":                  func(a *Pass) { a.Walks[1].Steps[0].Record = 1 },
		"walk 0, step 1: from state 64 to 1":                       func(a *Pass) { step(a, 1).In = 64 },
		"walk 0, step 1: from state 0 to -1":                       func(a *Pass) { step(a, 1).Out = -1 },
		"walk 0, step 1: from state 5, which no step has":          func(a *Pass) { step(a, 1).In = 5 },
		"walk 0, step 0: saved in slot 5 of 5":                     func(a *Pass) { step(a, 0).Save = 5 },
		"walk 0, step 0: saved in slot -2 of 5":                    func(a *Pass) { step(a, 0).Save = -2 },
		"walk 1, step 0: saved in slot 3, in which another":        func(a *Pass) { step(a, 0).Save, a.Walks[1].Steps[0].Save = 3, 3 },
		"walk 1, step 0: saved in slot 2, with which another":      func(a *Pass) { step(a, 0).Save, a.Walks[1].Steps[0].Save = 3, 2 },
		"walk 0, step 0: saved in slot 2, with which another walk": func(a *Pass) { a.Walks[2].From = 2 },
	} {
		a := good()
		spoil(a)
		if err := l.Check(a); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}
