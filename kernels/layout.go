package kernels

// Layout names the order in which the bytes of a weight matrix lie. It is part of a program, so that whoever keeps
// weights (a ring, a packed file) and whoever computes with them mean the same bytes.
type Layout string

const (
	Rows     Layout = "rows"     // row after row, as in a GGUF file
	Groups16 Layout = "groups16" // packed in groups of 16 outputs: docs/kernels.md, "Packed weights"
	Groups32 Layout = "groups32" // in groups of 32 outputs, for GPUs: docs/kernels.md, "Weights on a GPU"
)

// LayoutVersion is increased when the bytes of a matrix in some layout change, so that files that hold such bytes are made again.
const LayoutVersion = 2

// GroupRows is the number of outputs in a group of Groups16; a matrix is cut between groups only.
const GroupRows = 16

// segment is the number of inputs that share a header in Groups16.
const segment = 256

// Bytes returns the size of a matrix in this layout; 0 for an invalid layout, type or shape.
func (l Layout) Bytes(t Type, rows, cols int) int {
	elems, size := t.Block()
	if elems == 0 || rows < 1 || cols < 1 || cols%elems != 0 {
		return 0
	}
	switch l {
	case Rows:
		return rows * (cols / elems * size)
	case Groups16:
		return (rows + GroupRows - 1) / GroupRows * groupBytes(t, cols)
	case Groups32:
		return (rows + 31) / 32 * 32 * ((cols + segment - 1) / segment) * Segment32(t)
	}
	return 0
}

// Segment32 returns the bytes that 256 inputs of one output take in Groups32. The last segment of a row is as long, however few it has.
func Segment32(t Type) int {
	switch t {
	case Q8_0:
		return 16 + 256
	case Q4_0, Q4_K, MXFP4, IQ4_NL:
		return 16 + 128
	case Q4_1:
		return 32 + 128
	case Q5_1:
		return 32 + 32 + 128
	case IQ4_XS:
		return 128 + 8
	case Q5_0, Q5_K:
		return 16 + 32 + 128
	case Q6_K:
		return 16 + 64 + 128 + 2
	case Q2_K:
		return 16 + 64 + 4
	case Q3_K:
		return 16 + 64 + 32
	case F32:
		return 1024
	case F16, BF16:
		return 512
	}
	return 0
}

// groupBytes returns the size of one group of Groups16, a multiple of 64.
func groupBytes(t Type, cols int) int {
	if !t.Quantized() {
		_, size := t.Block()
		return (cols*size*GroupRows + 63) &^ 63
	}
	n := cols / segment * segmentBytes(t, segment)
	if tail := cols % segment; tail > 0 {
		n += segmentBytes(t, tail)
	}
	return n
}

// segmentBytes returns the size of a header and the codes of n inputs.
func segmentBytes(t Type, n int) int {
	header, codes := (n+63)/64*64, 512
	switch t {
	case Q4_0, IQ4_NL:
		codes = 256
	case Q4_1:
		header, codes = 2*n, 256
	case Q5_0:
		codes = 320
	case Q5_1:
		header, codes = 2*n, 320
	case IQ4_XS:
		header, codes = 128, 256
	case Q2_K:
		header, codes = 320, 128
	case Q3_K:
		header, codes = 256, 192
	case Q4_K:
		header, codes = 256, 256
	case Q5_K:
		header, codes = 256, 320
	case Q6_K:
		header, codes = 320, 384
	case MXFP4:
		header, codes = (n/2+63)/64*64, 256
	}
	return header + n/32*codes
}
