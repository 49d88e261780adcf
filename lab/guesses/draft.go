package guesses

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/mempool"
	"github.com/tandem-llm/tandem/text/token"
)

// name returns the name of a model file.
func name(path string) string { return strings.TrimSuffix(filepath.Base(path), ".gguf") }

// draft is a draft with the drafter that grows its trees.
type draft struct {
	name    string
	kind    string // of its side file; "" for a plain draft
	blocks  int
	vocab   int // of the target
	model   *engine.Model
	drafter *drafter.Drafter
	source  *recorded
	next    tandem.SessionID
}

// openDraft opens a draft, and checks that it speaks the target's vocabulary.
func (b *bench) openDraft(path string) (_ *draft, err error) {
	side, err := engine.SideOf(path)
	if err != nil {
		return nil, err
	}
	if side.Kind == "" {
		v, err := token.Open(path)
		if err != nil {
			return nil, err
		}
		if _, err := token.Compare(b.target.Vocab().Listing(), v.Listing()); err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "draft model %s does not speak the vocabulary of target %s: %w", path,
				b.Target, err)
		}
	}
	d := &draft{name: name(path), kind: string(side.Kind), blocks: side.Blocks, vocab: b.target.Vocab().Size(),
		source: &recorded{width: b.target.FeatureWidth()}}
	if d.kind != "" && side.Lineage == "" { // inside the target's file, whose name is the target's
		d.name = side.Name
	}
	length := b.longest + b.MaxTokens + draftDepth
	d.model, err = b.Draft(path, engine.Options{MaxRows: 128, KVPages: engine.PagesFor(1, length, drafter.DefaultTreeRows)})
	if err != nil {
		return nil, err
	}
	if d.kind == "" {
		d.blocks = d.model.Config().Layers
	}
	d.drafter, err = drafter.New(drafter.Config{Model: d.model, Name: d.name, Pool: mempool.Pool{}, Counters: &tandem.Counters{},
		PrefixCache: -1, Features: d.source, Taps: side.Taps})
	if err != nil {
		d.model.Close()
		return nil, err
	}
	return d, nil
}

func (d *draft) close() {
	_ = d.drafter.Shutdown(context.Background())
	d.model.Close()
}

// recorded hands out the states that were kept with a text. It implements tandem.FeatureSource for one session at a time.
type recorded struct {
	mu    sync.Mutex
	told  *measure.Told
	taps  []int
	width int
}

// Features implements tandem.FeatureSource.
func (s *recorded) Features(_ context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.told.Features[int(q.From)*s.width : int(q.Until)*s.width]
	return tandem.Features{From: q.From, Taps: s.taps, Width: s.width, Rows: append([]uint16(nil), rows...)}, nil
}

// nodes is the size of the trees that are grown: the largest of all widths. A smaller tree is the likeliest part of it.
const nodes = largest

// grow returns the tree below each token of a text from the last of the prompt on, the last token excluded.
func (d *draft) grow(ctx context.Context, told *measure.Told, p tandem.Sampling, taps []int) (trees []tandem.Tree, err error) {
	d.source.mu.Lock()
	d.source.told, d.source.taps = told, taps
	d.source.mu.Unlock()
	d.next++
	held := told.Prompt
	_, err = d.drafter.Open(ctx, tandem.Opening{Session: d.next, Epoch: 1, Tokens: told.Text[:held], Prompt: held,
		Limit: tandem.Position(len(told.Text) + draftDepth), MaxNodes: nodes,
		Vocab: d.vocab, Sampling: p})
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := d.drafter.Close(ctx, d.next); err == nil {
			err = failed
		}
	}()
	for base := told.Prompt; base < len(told.Text); base++ {
		got, err := d.drafter.Propose(ctx, tandem.Proposal{Session: d.next, Epoch: 1, Base: tandem.Position(base),
			Hash: tandem.EmptyPrefix.Add(told.Text[:base]...), From: tandem.Position(held), Suffix: told.Text[held:base],
			Bounds: tandem.Bounds{Nodes: nodes, Depth: draftDepth, Width: draftWidth}, Temper: spec.DraftTemper(p.Temperature),
			Return: true})
		if err != nil {
			return nil, err
		}
		trees, held = append(trees, got.Tree), base
	}
	return trees, nil
}

// head returns the likeliest n nodes of a tree, root included.
func head(t tandem.Tree, n int) tandem.Tree {
	t, _ = spec.Cut(t, tandem.Plan{Verify: make([]time.Duration, max(n, 1))}, 0)
	return t
}
