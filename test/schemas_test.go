package test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/test/testkit"
)

// bounded makes random schemas whose values have a longest one, so that every answer can end. It returns the bytes of that one as well.
type bounded struct{ *rand.Rand }

func (m bounded) schema(depth int) (schema string, longest int) {
	kinds := 8
	if depth == 0 {
		kinds = 5
	}
	const escaped = 6 // bytes of a character that is written \u00e9
	switch m.IntN(kinds) {
	case 0:
		n := 1 + m.IntN(12)
		return fmt.Sprintf(`{"type":"string","maxLength":%d}`, n), 2 + 2*escaped*n
	case 1:
		low := m.IntN(2000) - 1000
		return fmt.Sprintf(`{"type":"integer","minimum":%d,"maximum":%d}`, low, low+m.IntN(5000)), 5
	case 2:
		return `{"enum":["red","light green",7,null,true]}`, 13
	case 3:
		return `{"type":["boolean","null"]}`, 5
	case 4:
		return `{"type":"string","format":"date"}`, 12
	case 5:
		items, n := m.schema(depth - 1)
		most := 1 + m.IntN(3)
		return fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":%d}`, items, m.IntN(2), most), 2 + most*(n+2)
	case 6:
		one, n := m.schema(depth - 1)
		return fmt.Sprintf(`{"anyOf":[%s,{"type":"null"}]}`, one), max(n, 4)
	}
	var properties, required []string
	longest = 2
	for i, name := range []string{"name", "size_in_metres", "é", "tags", "k"}[:1+m.IntN(5)] {
		of, n := m.schema(depth - 1)
		properties = append(properties, fmt.Sprintf("%q:%s", name, of))
		if longest += len(name) + 6 + n; m.IntN(4) > 0 || i == 0 {
			required = append(required, fmt.Sprintf("%q", name))
		}
	}
	return fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false}`, strings.Join(properties, ","),
		strings.Join(required, ",")), longest
}

// follow has a group answer by so many random schemas, half of them at temperature 0 and half at 1, and validates each answer that ends by
// itself by another's validator. It returns how many did.
func (g *group) follow(t *testing.T, n, sessions int, prompt string) (ended int) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan int)
	for range sessions {
		wg.Go(func() {
			for i := range next {
				schema, longest := bounded{rand.New(rand.NewPCG(uint64(i/2), 48))}.schema(2)
				tokens := min(2*longest, 700)
				r := setting{[]float64{0, 1}[i%2], uint64(i)}.request(prompt, tokens)
				r.Constraint = &client.Constraint{Schema: schema}
				out, err := g.try(t.Context(), r)
				if err != nil {
					t.Errorf("%s: %v", schema, err)
					continue
				}
				if out.finished.Reason != "stop" {
					continue
				}
				compiler := jsonschema.NewCompiler()
				compiler.AssertFormat()
				parsed, _ := jsonschema.UnmarshalJSON(strings.NewReader(schema))
				_ = compiler.AddResource("schema", parsed)
				of, err := compiler.Compile("schema")
				if err != nil {
					t.Errorf("%s: %v", schema, err)
					continue
				}
				value, err := jsonschema.UnmarshalJSON(strings.NewReader(out.text))
				if err == nil {
					err = of.Validate(value)
				}
				if err != nil {
					t.Errorf("%s: %q: %v", schema, out.text, err)
				}
				mu.Lock()
				ended++
				mu.Unlock()
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	t.Logf("%d of %d answers ended by themselves", ended, n)
	return ended
}

// TestRandomSchemas: of answers by random schemas at least nine of ten end by themselves within twice the longest value, and none of these
// is invalid. With -long there are 10,000.
func TestRandomSchemas(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	n := 100
	if *long {
		n = 10_000
	}
	g := up(t, "--no-measure")
	if ended := g.follow(t, n, 8, "package main\n\n// As JSON:\n"); ended < n*9/10 {
		t.Errorf("%d of %d answers ended by themselves: want nine of ten", ended, n)
	}
}

// TestRealSchemas is TestRandomSchemas with the real 0.5B, and with -long 200 answers.
func TestRealSchemas(t *testing.T) {
	mayBeSlow(t)
	n := 16
	if *long {
		n = 200
	}
	g := up(t, append([]string{"--target", testkit.RealModel(t, testkit.Qwen05), "--draft", "lookup", "--no-measure"}, realRoom...)...)
	if ended := g.follow(t, n, 1, "A value that follows the schema, as JSON:\n"); ended < n*9/10 {
		t.Errorf("%d of %d answers ended by themselves: want nine of ten", ended, n)
	}
}
