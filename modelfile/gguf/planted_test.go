package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sort"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// judge is the oracle of the fuzz targets: it reads data and says what went wrong, "" for nothing: an
// allocation beyond a small multiple of the file, an error of no clear kind, tensors outside the file or
// overlapping.
func judge(data []byte, parse func([]byte) (*File, error)) (verdict string) {
	defer func() {
		if p := recover(); p != nil {
			verdict = fmt.Sprintf("panic: %v", p)
		}
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := parse(data)
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(256<<10+16*len(data)); got > most {
		return fmt.Sprintf("%d bytes allocated for a file of %d: want at most %d", got, len(data), most)
	}
	if err != nil {
		if tandem.KindOf(err) == tandem.Internal || strings.Contains(err.Error(), "\n") {
			return fmt.Sprintf("error %q of kind %v", err, tandem.KindOf(err))
		}
		return ""
	}
	tensors := make([]*Tensor, len(f.tensors))
	for i := range f.tensors {
		tensors[i] = &f.tensors[i]
	}
	sort.Slice(tensors, func(i, j int) bool { return tensors[i].at < tensors[j].at })
	end := int64(0)
	for _, x := range tensors {
		if x.at < end {
			return fmt.Sprintf("tensor %q begins at byte %d, another ends at %d", x.Name, x.at, end)
		}
		if end = x.at + int64(x.size); end < x.at || end > int64(len(data)) {
			return fmt.Sprintf("tensor %q ends at byte %d of %d", x.Name, end, len(data))
		}
		if _, err := x.Bytes(); err != nil {
			return fmt.Sprintf("tensor %q of an accepted file: %v", x.Name, err)
		}
	}
	return ""
}

// mutate changes one to three words of data to values typical of counts, lengths and offsets in hostile files. They are
// small enough that a reader which believes them survives.
func mutate(rng *rand.Rand, seed []byte) []byte {
	values := []uint64{0, 1, 2, 3, 4, 31, 32, 33, 64, 128, 255, 1000, 1 << 16, 1 << 20, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1}
	data := bytes.Clone(seed)
	for range 1 + rng.IntN(3) {
		if len(data) < 9 {
			return data
		}
		v := values[rng.IntN(len(values))]
		if rng.IntN(8) == 0 {
			data = data[:rng.IntN(len(data))]
		} else if at := rng.IntN(len(data) - 8); rng.IntN(2) == 0 {
			binary.LittleEndian.PutUint64(data[at:], v)
		} else {
			data[at] = byte(v)
		}
	}
	return data
}

func seeds(t testing.TB) [][]byte {
	return [][]byte{
		sample(t),
		begin(2, 1, 1).put("general.alignment", uint32(U32), uint32(1)).put(tensorInfo("w", 8, 0, 32, 1)...).zeros(34).Bytes(),
		begin(3, 0, 1).put("k", uint32(Array), uint32(String), uint64(2), "a", "").Bytes(),
		begin(3, 2, 0).put(tensorInfo("v", 0, 0, 16)...).put(tensorInfo("w", 0, 64, 16)...).zeros(256).Bytes(),
	}
}

// The oracle finds each planted mistake within some thousand random files, and none in the reader as it is.
func TestPlantedMistakesAreFound(t *testing.T) {
	const most = 20_000
	all := seeds(t)
	find := func(p plant) (int, string) {
		rng := rand.New(rand.NewPCG(1, uint64(p)))
		for n := range most {
			data := mutate(rng, all[n%len(all)])
			if says := judge(data, func(b []byte) (*File, error) { return parseBytes(b, p) }); says != "" {
				return n, says
			}
		}
		return most, ""
	}
	if n, says := find(soundReader); says != "" {
		t.Errorf("the reader itself, file %d: %s", n, says)
	}
	for p, name := range map[plant]string{plantCounts: "counts unchecked", plantExtents: "extents unchecked",
		plantOverlaps: "overlaps unchecked"} {
		n, says := find(p)
		if says == "" {
			t.Errorf("%s: not found in %d files", name, most)
		}
		t.Logf("%s: found in file %d: %s", name, n, says)
	}
}

// FuzzSplit checks that no set of files makes Open fail otherwise than by an error, and that an accepted
// set holds the tensors that its files do.
func FuzzSplit(f *testing.F) {
	files := splitSet(f, 2, nil)
	f.Add(files[0], files[1])
	f.Add(files[1], files[0])
	f.Add(files[0], sample(f))
	f.Add(splitSet(f, 3, nil)[0], files[1])
	f.Fuzz(func(t *testing.T, a, b []byte) {
		disk := map[string][]byte{"m-00001-of-00002.gguf": a, "m-00002-of-00002.gguf": b}
		open := func(path string) (*File, error) {
			if disk[path] == nil {
				return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", path, os.ErrNotExist)
			}
			return parseBytes(disk[path], soundReader)
		}
		for path := range disk {
			file, err := open(path)
			if err == nil {
				file, err = file.whole(path, open)
			}
			if err != nil {
				if tandem.KindOf(err) == tandem.Internal || strings.Contains(err.Error(), "\n") {
					t.Fatalf("error %q of kind %v", err, tandem.KindOf(err))
				}
				continue
			}
			var held int64
			for i := range file.Tensors() {
				x := &file.Tensors()[i]
				held += int64(len(bytesOf(t, x)))
				if file.Tensor(x.Name) != x {
					t.Fatalf("tensor %q is not found by its name", x.Name)
				}
			}
			if held > file.Size() || file.Parts() > 2 {
				t.Fatalf("%d bytes of tensors in %d files of %d bytes", held, file.Parts(), file.Size())
			}
			if _, err := Parse(written(t, CopyOf(file))); err != nil {
				t.Fatal(err)
			}
		}
	})
}
