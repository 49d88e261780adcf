package token

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

// peerVocab is a line of testdata/oracle.jsonl.
type peerVocab struct {
	Model  string
	Keys   map[string]any
	Pieces []string
	Types  string // a digit each
	Merges []string
	Texts  []peerText
}

type peerText struct {
	text          string
	plain, marked []tandem.Token
}

func (p *peerText) UnmarshalJSON(line []byte) error {
	var parts []json.RawMessage
	err := json.Unmarshal(line, &parts)
	for i, to := range []any{&p.text, &p.plain, &p.marked}[:min(len(parts), 3)] {
		err = errors.Join(err, json.Unmarshal(parts[i], to))
	}
	if len(parts) == 2 {
		p.marked = p.plain
	}
	return err
}

func (p peerVocab) vocab(t *testing.T) *Vocab {
	d := newDraft()
	if p.Model == modelBytes {
		d = newBytes("").set("merges", p.Merges)
	}
	d.set("model", p.Model)
	for i, piece := range p.Pieces {
		d.add(kind(p.Types[i]-'0'), piece)
	}
	for k, v := range p.Keys {
		if n, ok := v.(float64); ok {
			v = uint32(n)
		}
		d.keys[k] = v
	}
	return d.vocab(t)
}

// TestOtherEngines compares the ids of texts full of markers in small vocabularies with those of the models' own tokenizer, Hugging
// Face's: how markers of every type are found, what is added and dropped beside them, and what is composed. The data are made by
// testdata/oracle.py, which also holds llama.cpp to them.
func TestOtherEngines(t *testing.T) {
	f, err := os.Open("testdata/oracle.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := json.NewDecoder(bufio.NewReader(f))
	vocabs, texts, faults := 0, 0, 0
	for lines.More() {
		var p peerVocab
		if err := lines.Decode(&p); err != nil {
			t.Fatal(err)
		}
		vocabs++
		v := p.vocab(t)
		for _, c := range p.Texts {
			for _, got := range []struct {
				name       string
				have, want []tandem.Token
			}{
				{"plain", v.Encode(c.text, false), c.plain},
				{"with control tokens", v.EncodeWithControl(c.text, false), c.marked},
				{"not guarded", v.EncodeGuarded(c.text, nil), c.marked},
			} {
				texts++
				if !slices.Equal(got.have, got.want) {
					if faults++; faults < 8 {
						t.Errorf("%v, %q %s:\n got %s\nwant %s", p.Keys, c.text, got.name, pieces(v, got.have), pieces(v, got.want))
					}
				}
			}
			for _, id := range []int{len(c.plain), len(c.marked)} {
				if least := v.AtLeast(c.text); least > id {
					t.Errorf("%v: %q has %d tokens, at least %d were said", p.Keys, c.text, id, least)
				}
			}
		}
	}
	if vocabs != 80 || texts != 5760 || faults > 0 {
		t.Errorf("%d vocabularies, %d texts, %d faults: want 80, 5760 and 0", vocabs, texts, faults)
	}
}
