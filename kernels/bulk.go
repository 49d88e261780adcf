package kernels

import "fmt"

// BulkCopier is a Runner on a device with memory of its own, where each call of Row or Part costs a copy. Its methods copy many rows or
// parts at once. The functions of the same names use them if a Runner has them.
type BulkCopier interface {
	Runner
	// ReadRows copies some columns of rows [0, n) of a buffer to dst, row after row, as later stages will read them. dst is as long as
	// what it gets. Errors: no such rows or columns; the device is lost.
	ReadRows(b Buf, n int, cols Range, dst []float32) error
	// WriteRows copies src to these columns, between stages or before a pass. Slices that Row has returned of these rows change too.
	// Errors: as for ReadRows.
	WriteRows(b Buf, n int, cols Range, src []float32) error
	// ReadParts copies parts of the running pass to dst, one after the other: O, then Max, then Sum. Of row i these are the parts in
	// range of[i], where a part has number block·Heads + query head. Errors: as for ReadRows.
	ReadParts(p Parts, of []Range, dst []float32) error
	// WriteParts copies src to these parts, before they are joined. Errors: as for ReadRows.
	WriteParts(p Parts, of []Range, src []float32) error
}

// ReadRows is BulkCopier.ReadRows for any Runner.
func ReadRows(r Runner, b Buf, n int, cols Range, dst []float32) error {
	if all, ok := r.(BulkCopier); ok {
		return all.ReadRows(b, n, cols, dst)
	}
	return eachRow(r, b, n, cols, dst, func(row, packed []float32) { copy(packed, row) })
}

// WriteRows is BulkCopier.WriteRows for any Runner.
func WriteRows(r Runner, b Buf, n int, cols Range, src []float32) error {
	if all, ok := r.(BulkCopier); ok {
		return all.WriteRows(b, n, cols, src)
	}
	return eachRow(r, b, n, cols, src, func(row, packed []float32) { copy(row, packed) })
}

// ReadParts is BulkCopier.ReadParts for any Runner; the program has heads query heads in each block of p.
func ReadParts(r Runner, p Parts, heads int, of []Range, dst []float32) error {
	if all, ok := r.(BulkCopier); ok {
		return all.ReadParts(p, of, dst)
	}
	return eachPart(r, p, heads, of, dst, func(x Part, packed []float32) {
		n := copy(packed, x.O)
		packed[n], packed[n+1] = *x.Max, *x.Sum
	})
}

// WriteParts is BulkCopier.WriteParts for any Runner.
func WriteParts(r Runner, p Parts, heads int, of []Range, src []float32) error {
	if all, ok := r.(BulkCopier); ok {
		return all.WriteParts(p, of, src)
	}
	return eachPart(r, p, heads, of, src, func(x Part, packed []float32) {
		n := copy(x.O, packed)
		*x.Max, *x.Sum = packed[n], packed[n+1]
	})
}

func eachRow(r Runner, b Buf, n int, cols Range, packed []float32, do func(row, packed []float32)) error {
	width := cols.To - cols.From
	if width < 0 || len(packed) != n*width {
		return fmt.Errorf("kernels: %d numbers for columns %v of %d rows", len(packed), cols, n)
	}
	for i := range n {
		row := r.Row(b, i)
		if cols.From < 0 || cols.To > len(row) {
			return fmt.Errorf("kernels: columns %v of row %d of buffer %d, which has %d", cols, i, b, len(row))
		}
		do(row[cols.From:cols.To], packed[i*width:(i+1)*width])
	}
	return nil
}

func eachPart(r Runner, p Parts, heads int, of []Range, packed []float32, do func(x Part, packed []float32)) error {
	for row, span := range of {
		for i := span.From; i < span.To; i++ {
			x := r.Part(p, row, i/heads, i%heads)
			if x.Max == nil || len(packed) < len(x.O)+2 {
				return fmt.Errorf("kernels: part %d of row %d of parts %d: there is none, or no place for it", i, row, p)
			}
			do(x, packed[:len(x.O)+2])
			packed = packed[len(x.O)+2:]
		}
	}
	if len(packed) > 0 {
		return fmt.Errorf("kernels: %d numbers more than parts", len(packed))
	}
	return nil
}
