package engine

import (
	"context"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Kinds of side files: architectures of GGUF files that are of no use without their target (docs/sidefiles.md).
const (
	SideMedusa   = string(side.Medusa)
	SidePPD      = string(side.PPD)
	SideDovetail = string(side.Dovetail)
	SideEagle    = string(side.Eagle)
	SideEagle3   = string(side.Eagle3)
)

// Side is what the header of a side file says.
type Side struct {
	Kind       string // SideMedusa …; "" for an ordinary model, and then nothing else is set
	Name       string
	Lineage    string // of the target: 32 hexadecimal digits
	Vocabulary string // fingerprint of the target's vocabulary: 16 hexadecimal digits
	Width      int    // numbers of the target's hidden state
	Vocab      int    // tokens of the target
	Taps       []int  // the target's hidden states that it reads: Options.Taps; none for ppd
	Levels     int    // medusa: heads; ppd: prompt tokens
	Members    int    // ppd: embeddings for each prompt token
	Blocks     int    // medusa: residual blocks of a head; drafts: transformer blocks
	DraftWidth int    // of a draft's own state: Width, but for eagle3
	DraftVocab int    // eagle3: tokens that it can guess
	Clusters   int    // gemma4-assistant: of tokens, of which a step looks into the best; 0: a step looks at all tokens
	Chosen     int    // of Clusters, by a step

	spec *side.Spec // nil for an assistant
}

// InVerifier reports whether the file is opened beside the target (Model.OpenSide); others are drafts (OpenDraft).
func (s Side) InVerifier() bool {
	return s.Kind == SideMedusa || s.Kind == SidePPD || s.Kind == SideAssistant
}

// Way names the way of guessing that the file gives its target.
func (s Side) Way() string {
	if s.Kind == SideAssistant {
		return tandem.Assistant
	}
	return s.Kind
}

// Draft reports whether the file is a draft with states.
func (s Side) Draft() bool { return s.Kind != "" && !s.InVerifier() }

// SideOf reads the header of the file at path. Errors: Invalid (no such file), Corrupt, Unsupported (tensors of no side file).
func SideOf(path string) (Side, error) {
	f, s, err := openSide(path)
	if err != nil {
		return Side{}, err
	}
	return s, f.Close()
}

// SideLineage identifies the side file at path, whatever its weights were quantised to and its target expanded to. It reads the whole
// file. Errors: as SideOf's, and ctx's once it has ended.
func SideLineage(ctx context.Context, path string) (string, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	tensors, err := f.NewDigest().Sum(ctx)
	if err != nil {
		return "", err
	}
	return f.Lineage(tensors)
}

func readSide(f *gguf.File) (Side, error) {
	if arch, ok := isAssistant(f); ok {
		return assistantSide(f, arch)
	}
	if !side.Is(f) {
		_, err := f.String("general.architecture")
		return Side{}, err
	}
	spec, err := side.Read(f)
	if err != nil {
		return Side{}, err
	}
	s := Side{Kind: string(spec.Kind), Lineage: spec.Lineage, Vocabulary: spec.Vocabulary, Width: spec.Dim, Vocab: spec.Vocab,
		Taps: spec.Taps, Levels: max(spec.Heads, spec.Tokens), Members: spec.Ensemble, Blocks: max(spec.Residual, spec.Draft.Blocks),
		DraftWidth: spec.Dim, DraftVocab: len(spec.Draft.IDs), spec: spec}
	if s.Draft() {
		s.DraftWidth = spec.Draft.Width
	}
	s.Name, err = f.StringOr("general.name", s.Kind)
	return s, err
}

// refuseSide returns Invalid for a side file.
func refuseSide(f *gguf.File) error {
	side, err := readSide(f)
	if err != nil || side.Kind == "" {
		return err
	}
	return tandem.Errorf("engine", tandem.Invalid, "%s is a side file (%s): it is opened together with its target", f.Path(), side)
}

// fits returns Invalid, with both values, unless the side file was made for t. A target whose lineage is "" is taken as the right one.
func (s *Side) fits(path string, t side.Target) error {
	if t.Lineage == "" {
		t.Lineage = s.Lineage
	}
	return s.spec.Fits(path, t)
}

// mostTaps bounds the hidden states that a model hands out.
const mostTaps = 16

// checkTaps refuses hidden states that a model of so many layers does not have.
func checkTaps(who string, taps []int, layers int) error {
	if len(taps) > mostTaps {
		return tandem.Errorf("engine", tandem.Invalid, "%s: %d hidden states asked for: want at most %d", who, len(taps), mostTaps)
	}
	for _, n := range taps {
		if n != -1 && (n < 1 || n > layers) {
			return tandem.Errorf("engine", tandem.Invalid,
				"%s: the hidden state after %d layers: want 1 to its %d, or -1 for the state after the final norm", who, n, layers)
		}
	}
	return nil
}

func (s Side) String() string {
	switch s.Kind {
	case SideMedusa:
		return fmt.Sprintf("%d medusa heads of %d blocks", s.Levels, s.Blocks)
	case SideAssistant:
		what := fmt.Sprintf("an assistant of %d blocks, %d tokens in a chain", s.Blocks, s.Levels)
		if s.Clusters > 0 {
			what += fmt.Sprintf(", each from the best %d of %d clusters of tokens", s.Chosen, s.Clusters)
		}
		return what
	case SidePPD:
		return fmt.Sprintf("%d prompt tokens, %d embeddings each", s.Levels, s.Members)
	}
	return fmt.Sprintf("%s draft of %d blocks, reads %v", s.Kind, s.Blocks, s.Taps)
}
