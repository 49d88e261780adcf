package kernels_test

import (
	"strings"
	"testing"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

func wantError(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error %v, want one that says %q", what, err, text)
	}
}

func TestMatrixErrors(t *testing.T) {
	mem := alloc(t, 1<<20)
	for _, c := range []struct {
		typ        kernels.Type
		rows, cols int
		mem        []byte
		text       string
	}{
		{kernels.Type(99), 16, 256, mem, "type 99"},
		{kernels.Q4_K, 16, 96, mem, "multiple of 256"},
		{kernels.Q8_0, 0, 32, mem, "0 outputs"},
		{kernels.Q8_0, 16, -32, mem, "-32 inputs"},
		{kernels.Q8_0, 16, 32, mem[:100], "100 bytes"},
		{kernels.F32, 16, 4, mem[4 : 4+16*16], "multiple of 64"},
	} {
		_, err := kernels.NewMatrix(c.typ, c.rows, c.cols, c.mem)
		wantError(t, c.text, err, c.text)
	}
	if n := kernels.PackedBytes(kernels.Type(99), 16, 256); n != 0 {
		t.Errorf("packed bytes of an unknown type: %d, want 0", n)
	}
	m, err := kernels.NewMatrix(kernels.Q8_0, 40, 32, mem[:kernels.PackedBytes(kernels.Q8_0, 40, 32)])
	if err != nil {
		t.Fatal(err)
	}
	src := make([]byte, 41*34)
	wantError(t, "half a row", m.Pack(src[:33], 0), "33 bytes")
	wantError(t, "nothing", m.Pack(nil, 0), "0 bytes")
	wantError(t, "odd start", m.Pack(src[:34], 8), "rows 8 to 8 of 40")
	wantError(t, "negative start", m.Pack(src[:16*34], -16), "rows -16")
	wantError(t, "too many", m.Pack(src, 0), "rows 0 to 40 of 40")
	wantError(t, "past the end", m.Pack(src[:16*34], 32), "rows 32 to 47 of 40")
	wantError(t, "a partial group inside", m.Pack(src[:8*34], 0), "multiple of 16")
	if err := m.Pack(src[:8*34], 32); err != nil {
		t.Errorf("the last 8 rows: %v", err)
	}
}

func TestPackInPieces(t *testing.T) {
	const n, k = 70, 512
	for _, typ := range types {
		src := randomRows(rng(1), typ, n, k)
		size := len(src) / n
		one := alloc(t, kernels.PackedBytes(typ, n, k))
		two := alloc(t, len(one))
		whole, err := kernels.NewMatrix(typ, n, k, one)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := kernels.NewMatrix(typ, n, k, two)
		if err != nil {
			t.Fatal(err)
		}
		if err := whole.Pack(src, 0); err != nil {
			t.Fatal(err)
		}
		for from := 0; from < n; from += 32 {
			if err := parts.Pack(src[from*size:min(from+32, n)*size], from); err != nil {
				t.Fatal(err)
			}
		}
		if string(one) != string(two) {
			t.Errorf("%v: packed in pieces differs from packed at once", typ)
		}
		if file := len(src) / n * 80; !typ.Unpacked() && len(one) > file*102/100 {
			t.Errorf("%v: %d bytes packed for %d of whole groups in the file, want at most 2 %% more", typ, len(one), file)
		}
	}
}

func TestAllocErrors(t *testing.T) {
	_, err := kernels.Alloc(-1)
	wantError(t, "negative", err, "-1 bytes")
	_, err = kernels.Alloc(1 << 60)
	wantError(t, "huge", err, "1152921504606846976 bytes")
	m, err := kernels.Alloc(0)
	if err != nil || len(m.Bytes()) != 0 || m.Lock() != nil {
		t.Errorf("nothing: %v, %d bytes", err, len(m.Bytes()))
	}
	m.Free()
}

func turn(freq ...float64) kernels.Rotation { return kernels.Rotation{InvFreq: freq} }

func TestSealErrors(t *testing.T) {
	shape := kernels.KVShape{Layers: 1, KVHeads: 2, HeadDim: 16}
	arena := alloc(t, shape.PageBytes())
	w := packed(t, kernels.Q8_0, 16, 64, make([]byte, 16*2*34))
	for text, plan := range map[string]func(p *kernels.Program){
		"without operations": func(p *kernels.Program) {},
		"output's columns is 17, want 16": func(p *kernels.Program) {
			p.MatMul(w, p.Act(64), p.Buf(17), kernels.MatMulOpt{})
		},
		"input's columns is 32, want 64": func(p *kernels.Program) {
			p.MatMul(w, p.Act(32), p.Buf(16), kernels.MatMulOpt{})
		},
		"groups 0 to 2 of 1": func(p *kernels.Program) {
			p.MatMul(w, p.Act(64), p.Buf(16), kernels.MatMulOpt{Groups: [2]int{0, 2}})
		},
		"no matrix":              func(p *kernels.Program) { p.Embed(nil, p.Buf(64)) },
		"buffer 9 of 0":          func(p *kernels.Program) { p.AddBias(9, nil) },
		"activation -1 of 0":     func(p *kernels.Program) { p.MatMul(w, -1, p.Buf(16), kernels.MatMulOpt{}) },
		"weight's length is 3":   func(p *kernels.Program) { p.RMSNorm(p.Buf(4), make([]float32, 3), 0, p.Act(4)) },
		"all rows":               func(p *kernels.Program) { p.RMSNorm(p.WantedBuf(4), make([]float32, 4), 0, p.Act(4)) },
		"heads·headDim is 30":    func(p *kernels.Program) { p.RoPE(p.Buf(32), 3, 10, turn(1, 1, 1)) },
		"12 of 10 elements turn": func(p *kernels.Program) { p.RoPE(p.Buf(30), 3, 10, turn(1, 1, 1, 1, 1, 1)) },
		"0 of 10 elements turn":  func(p *kernels.Program) { p.RoPE(p.Buf(30), 3, 10, turn()) },
		"frequency 0 is 1e+300":  func(p *kernels.Program) { p.RoPE(p.Buf(2), 1, 2, turn(1e300)) },
		"normadd: weight's":      func(p *kernels.Program) { p.NormAdd(p.Buf(4), make([]float32, 3), 1, p.Buf(4)) },
		"normadd: output's":      func(p *kernels.Program) { p.NormAdd(p.Buf(4), make([]float32, 4), 1, p.Buf(5)) },
		"headnorm: heads·head":   func(p *kernels.Program) { p.HeadNorm(p.Buf(9), 2, make([]float32, 4), 1) },
		"headnorm: 2 heads of 0": func(p *kernels.Program) { p.HeadNorm(p.Buf(9), 2, nil, 1) },
		"repeat: 2 heads of 4 ":  func(p *kernels.Program) { p.RepeatHeads(p.Buf(8), 2, 4, p.Buf(12)) },
		"scale: buffer 5 of 0":   func(p *kernels.Program) { p.Scale(5, 2) },
		"softcap: cap 0":         func(p *kernels.Program) { p.SoftCap(p.Buf(4), 0) },
		"layer 1 of a KV cache":  func(p *kernels.Program) { p.SetKV(shape, arena); p.StoreKV(p.Buf(32), p.Buf(32), 1) },
		"layer 0 of a KV cache":  func(p *kernels.Program) { p.Attention(p.Buf(32), 0, 2, kernels.AttentionOpt{Scale: 1}, p.Act(32)) },
		"3 heads on 2 KV heads": func(p *kernels.Program) {
			p.SetKV(shape, arena)
			p.Attention(p.Buf(48), 0, 3, kernels.AttentionOpt{Scale: 1}, p.Act(48))
		},
		"KV arena of 7 bytes":    func(p *kernels.Program) { p.SetKV(shape, arena[:7]) },
		"0 heads of 16":          func(p *kernels.Program) { p.SetKV(kernels.KVShape{Layers: 1, HeadDim: 16}, arena) },
		"buffer of 0 columns":    func(p *kernels.Program) { p.Buf(0) },
		"activation of -4":       func(p *kernels.Program) { p.Act(-4) },
		"output's columns is 48": func(p *kernels.Program) { p.SiLUMul(p.Buf(32), p.Buf(32), p.Act(48)) },
	} {
		p := kernels.NewProgram(4, 2)
		plan(p)
		wantError(t, text, p.Seal(), text)
	}
	wantError(t, "rows", kernels.NewProgram(0, 0).Seal(), "program of 0 rows")
	wantError(t, "wanted", kernels.NewProgram(2, 3).Seal(), "3 wanted")
}

func TestRunErrors(t *testing.T) {
	r := rng(1)
	n := newNetwork(t, r, 4, 2, 32, 64, [3]kernels.Type{kernels.Q8_0, kernels.Q8_0, kernels.Q8_0})
	c := newCache(t, r, n.shape, netPages)
	p := n.plan(t, c.arena, false)
	pool := newPool(t, 1, kernels.Auto)
	good := func() *kernels.Pass { return treePass(rng(2), 100, 2, 40, 3, n.vocab) }
	run(t, p.Program, pool, good())
	before := string(c.arena)
	for text, spoil := range map[string]func(a *kernels.Pass){
		"pass of 0 rows":               func(a *kernels.Pass) { a.Rows = 0 },
		"pass of 18 rows":              func(a *kernels.Pass) { a.Rows = 18 },
		"7 tokens for 8 rows":          func(a *kernels.Pass) { a.Tokens = a.Tokens[1:] },
		"token 70 of row 0":            func(a *kernels.Pass) { a.Tokens[0] = 70 },
		"token -1 of row 1":            func(a *kernels.Pass) { a.Tokens[1] = -1 },
		"0 positions":                  func(a *kernels.Pass) { a.Pos = nil },
		"position -5":                  func(a *kernels.Pass) { a.Pos[0] = -5 },
		"9 cells to store":             func(a *kernels.Pass) { a.Store = append(a.Store, 0) },
		"stored in cell -1":            func(a *kernels.Pass) { a.Store[3] = -1 },
		"stored in cell 768 of 768":    func(a *kernels.Pass) { a.Store[3] = 768 },
		"is page 12 of 12":             func(a *kernels.Pass) { a.Pages[0] = 12 },
		"is page -1 of 12":             func(a *kernels.Pass) { a.Pages[7] = -1 },
		"table begins at 8 of 8":       func(a *kernels.Pass) { a.Table[2] = 8 },
		"table begins at -1":           func(a *kernels.Pass) { a.Table[2] = -1 },
		"ancestor 1 is cell 768":       func(a *kernels.Pass) { a.Anc[1] = 768 },
		"ancestors begin at 1000":      func(a *kernels.Pass) { a.AncOff[2] = 1000 },
		"ancestors begin at -1":        func(a *kernels.Pass) { a.AncOff[2] = -1 },
		"row 0 at position 100":        func(a *kernels.Pass) { a.Prefix[0] = 100 },
		"sees -1 positions":            func(a *kernels.Pass) { a.Prefix[0], a.AncLen[0] = -1, 102 },
		"of 11 and are 2000":           func(a *kernels.Pass) { a.Pos[2], a.AncLen[2], a.Prefix[2] = 2000, 2000, 1 },
		"begins at 0 of 8 for 2000":    func(a *kernels.Pass) { a.Pos[0], a.Prefix[0] = 1999, 2000 },
		"wanted row 0 is 8 of 8":       func(a *kernels.Pass) { a.Wanted[0] = 8 },
		"wanted row 1 is -1":           func(a *kernels.Pass) { a.Wanted[1] = -1 },
		"10 wanted rows":               func(a *kernels.Pass) { a.Wanted = make([]int32, 10) },
		"top 65":                       func(a *kernels.Pass) { a.TopK = 65 },
		"top -1":                       func(a *kernels.Pass) { a.TopK = -1 },
		"0 prefixes for 8 rows":        func(a *kernels.Pass) { a.Prefix = nil },
		"0 ancestor counts for 8 rows": func(a *kernels.Pass) { a.AncLen = nil },
	} {
		a := good()
		spoil(a)
		err := p.Run(pool, a)
		wantError(t, text, err, text)
	}
	if string(c.arena) != before {
		t.Error("a refused pass wrote to the KV cache")
	}
	run(t, p.Program, pool, good())
	p.Free()
	wantError(t, "freed", p.Run(pool, good()), "not sealed")
	if p.Rows(p.h) != nil || p.Bytes() != 0 {
		t.Error("a freed program still has buffers")
	}
	p.Free()
}

func TestTypes(t *testing.T) {
	for _, typ := range types {
		if elems, bytes := typ.Block(); elems == 0 || bytes == 0 || !typ.Supported() || typ.Quantized() != (elems > 1) {
			t.Errorf("%v: block %d/%d, supported %v, quantized %v", typ, elems, bytes, typ.Supported(), typ.Quantized())
		}
	}
	if bad := kernels.Type(4); bad.Supported() || bad.String() != "type 4" {
		t.Errorf("type 4: supported %v, %q", bad.Supported(), bad)
	}
	for _, i := range append(kernels.Supported(), kernels.Auto) {
		if got, err := kernels.ParseISA(i.String()); err != nil || got != i {
			t.Errorf("%v reads back as %v, %v", i, got, err)
		}
	}
	_, err := kernels.ParseISA("sse9")
	wantError(t, "sse9", err, `"sse9"`)
}
