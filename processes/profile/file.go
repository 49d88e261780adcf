package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Name is the name of the plan in the cache's folder.
const Name = "plan.json"

// Beside returns the path of the plan that ships beside a model, which may be one that the program carries (gguf.Builtin).
func Beside(model string) string { return strings.TrimSuffix(model, ".gguf") + ".plan.json" }

// MostBytes is the size of the largest plan.
const MostBytes = 4 << 20

// Decode reads a plan and validates it. Errors: Corrupt. Fields that it does not know are refused: a misspelt one would be left out
// silently.
func Decode(b []byte) (*Plan, error) {
	if len(b) > MostBytes {
		return nil, corrupt("%d bytes: want at most %d", len(b), MostBytes)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	p := &Plan{}
	if err := d.Decode(p); err != nil {
		return nil, corrupt("no plan, at byte %d: %w: want what `tandem profile` writes", d.InputOffset(), err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, corrupt("more follows the plan, at byte %d: want one JSON object", d.InputOffset())
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// Encode returns p as a file has it. Errors: Corrupt if p is no plan.
func (p *Plan) Encode() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return nil, corrupt("%w", err)
	}
	if len(b) >= MostBytes {
		return nil, corrupt("%d bytes: want at most %d", len(b), MostBytes)
	}
	return append(b, '\n'), nil
}

// Read reads the plan in a file, on disk or carried by the program. Errors: Corrupt; Unavailable with fs.ErrNotExist in it if there is no
// such file, or with another reason if it cannot be read.
func Read(file string) (*Plan, error) {
	b, err := read(file)
	if err != nil {
		return nil, err
	}
	p, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

func read(file string) ([]byte, error) {
	if name, ok := strings.CutPrefix(file, gguf.Builtin); ok {
		b, err := gguf.ReadCarried(name)
		if err != nil {
			return nil, tandem.Errorf(op, tandem.Unavailable, "%w", err)
		}
		return b, nil
	}
	f, err := files.Open(file)
	if errors.As(err, new(*files.Irregular)) {
		return nil, corrupt("%s: %w", file, errors.Unwrap(err))
	}
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MostBytes+1))
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%s: %w", file, err)
	}
	return b, nil
}

// Write replaces the plan in a file, as a whole: readers see the old one or the new one. Its folder is made if it is not there. Errors:
// Corrupt if p is no plan, else Unavailable.
func (p *Plan) Write(file string) error {
	b, err := p.Encode()
	if err != nil {
		return err
	}
	if err = os.MkdirAll(filepath.Dir(file), 0o700); err == nil {
		err = files.Replace(file, b)
	}
	if err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "saving %s: %w", file, err)
	}
	return nil
}

// Load returns the plan in a file, such as Name in the cache's folder, merged with those beside the models. A file that is not there is
// left out; one that cannot be used is left out too, with a note that names it and says why. The result is never nil.
func Load(file string, models ...string) (p *Plan, notes []string) {
	p = &Plan{Format: Format}
	files := []string{file}
	for _, m := range models {
		files = append(files, Beside(m))
	}
	for i, file := range files {
		read, err := Read(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			notes = append(notes, fmt.Sprintf("plan not used: %v", err))
		case i > 0 && read.Machine != nil:
			notes = append(notes, fmt.Sprintf("%s: times of passes beside a model are not used: they are of one machine", file))
			read.Machine = nil
			fallthrough
		default:
			p.Merge(read)
		}
	}
	return p, notes
}
