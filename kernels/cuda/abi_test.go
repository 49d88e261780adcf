package cuda

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/src"
)

// TestABI: the structures of src/abi.h and abi.go have the same fields, with the same names and sizes, in the same order.
func TestABI(t *testing.T) {
	text, err := src.Files.ReadFile("abi.h")
	if err != nil {
		t.Fatal(err)
	}
	header := regexp.MustCompile(`//[^\n]*`).ReplaceAllString(string(text), "")
	sizes := map[string]uintptr{"Act": uintptr(actBytes), "Delta": reflect.TypeFor[cDelta]().Size(), "int": 4, "float": 4, "long long": 8,
		"*": 8}
	for name, x := range map[string]any{"Act": cAct{}, "Delta": cDelta{}, "Op": cOp{}, "Pair": cPair{}, "Walk": cWalk{}, "Step": cStep{},
		"Pass": cPass{}} {
		body := regexp.MustCompile(`struct ` + name + ` \{([^}]*)\};`).FindStringSubmatch(header)
		if body == nil {
			t.Fatalf("abi.h has no struct %s", name)
		}
		fields := declared(body[1])
		is := reflect.TypeOf(x)
		if is.NumField() != len(fields) {
			t.Errorf("%s has %d fields in C, %d in Go", name, len(fields), is.NumField())
			continue
		}
		for i, f := range fields {
			g := is.Field(i)
			size := sizes[f.of]
			if !strings.EqualFold(strings.ReplaceAll(f.name, "_", ""), g.Name) || g.Type.Size() != size {
				t.Errorf("%s, field %d: %s %s in C, %s of %d bytes in Go", name, i, f.of, f.name, g.Name, g.Type.Size())
			}
		}
	}
}

type field struct{ of, name string }

// declared returns the fields of a struct's body; of is "*" for pointers.
func declared(body string) (all []field) {
	for d := range strings.SplitSeq(body, ";") {
		d = strings.TrimSpace(strings.TrimPrefix(strings.Join(strings.Fields(d), " "), "const "))
		if d == "" {
			continue
		}
		of := regexp.MustCompile(`^(unsigned char|signed char|long long|\w+) `).FindStringSubmatch(d)[1]
		for name := range strings.SplitSeq(strings.TrimPrefix(d, of), ",") {
			f := field{of, strings.TrimSpace(name)}
			if strings.HasPrefix(f.name, "*") {
				f = field{"*", f.name[1:]}
			}
			all = append(all, f)
		}
	}
	return all
}
