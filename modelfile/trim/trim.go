// Package trim makes drafts of models: it chooses the tokens that a draft can say, and writes a file whose output matrix has these rows
// alone. What the target says beyond them, the draft guesses wrong, and the target says it all the same.
package trim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/text/token"
)

const (
	op = "trim"

	// usualKeep is how many tokens are kept by default, but at most half of the vocabulary.
	usualKeep = 49152
	// mostText bounds a file of texts, in bytes.
	mostText = 256 << 20
)

// Config says which draft to make of which model.
type Config struct {
	In, Out string   // GGUF files
	Keep    int      // tokens that the draft can say; 0: usualKeep, or half of the vocabulary if that is less
	Texts   []string // files, and folders with files, in which tokens are counted; none: their order in the vocabulary decides
	Type    string   // of the weights: see convert.Types; "": as in In
	convert.Options
}

// Result describes the draft that was made. Counts are of tokens where nothing else is said.
type Result struct {
	*convert.Result
	Kept       int     `json:"kept"`
	Vocabulary int     `json:"vocabulary"`
	Texts      int     `json:"texts,omitempty"`    // files that were read
	Tokens     int     `json:"tokens,omitempty"`   // in them
	Covered    float64 `json:"covered,omitempty"`  // share of these that the draft can say
	LeftOut    int     `json:"left_out,omitempty"` // files in folders that are not UTF-8 text
}

// String describes the draft in a line, without the file's size.
func (r *Result) String() string {
	of := ""
	if r.Tokens > 0 {
		of = fmt.Sprintf(", %.2f %% of the %d in %d files", 100*r.Covered, r.Tokens, r.Texts)
	}
	return fmt.Sprintf("%d of %d tokens%s, %v", r.Kept, r.Vocabulary, of, r.Result)
}

// Run makes the draft and writes it to c.Out. Errors: Invalid for Keep below 0 and for texts without text; those of reading In and the
// texts, token.Vocab.Frequent's and convert.Trim's; ctx's once it has ended.
func Run(ctx context.Context, c Config) (*Result, error) {
	v, err := token.Open(c.In)
	if err != nil {
		return nil, err
	}
	r := &Result{Vocabulary: v.Size()}
	if c.Keep == 0 {
		c.Keep = min(usualKeep, v.Size()/2)
	}
	if c.Keep < 0 {
		return nil, tandem.Errorf(op, tandem.Invalid, "--keep is %d: want a number of tokens, or 0 for the default", c.Keep)
	}
	var counts []int
	if len(c.Texts) > 0 {
		counts = make([]int, v.Size())
		if err := r.count(ctx, v, counts, c.Texts); err != nil {
			return nil, err
		}
	}
	keep, err := v.Frequent(c.Keep, counts)
	if err != nil {
		return nil, err
	}
	r.Kept = len(keep)
	r.cover(counts, keep)
	r.Result, err = convert.Trim(ctx, c.In, c.Out, keep, v.Size(), c.Type, c.Options)
	return r, err
}

// count counts the tokens of all texts.
func (r *Result) count(ctx context.Context, v *token.Vocab, counts []int, texts []string) error {
	for _, root := range texts {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			case d.IsDir() || path != root && !d.Type().IsRegular():
				return nil
			}
			text, err := files.ReadFile(path, mostText)
			if err != nil {
				return err
			}
			if !utf8.Valid(text) || strings.ContainsRune(string(text), 0) {
				if path == root {
					return errors.New("not UTF-8 text: want a file of text")
				}
				r.LeftOut++
				return nil
			}
			r.Texts++
			v.Count(counts, string(text))
			return nil
		})
		if err != nil {
			kind := tandem.Invalid
			if ctx.Err() != nil {
				kind = tandem.KindOf(ctx.Err())
			}
			return tandem.Errorf(op, kind, "--texts %s: %w", root, err)
		}
	}
	for _, n := range counts {
		r.Tokens += n
	}
	if r.Tokens == 0 {
		return tandem.Errorf(op, tandem.Invalid, "--texts %s: no text in %d files: want texts as the target says them",
			strings.Join(texts, " "), r.Texts+r.LeftOut)
	}
	return nil
}

// cover sets how much of the texts the draft can say.
func (r *Result) cover(counts []int, keep []tandem.Token) {
	if r.Tokens == 0 {
		return
	}
	n := 0
	for _, t := range keep {
		n += counts[t]
	}
	r.Covered = float64(n) / float64(r.Tokens)
}
