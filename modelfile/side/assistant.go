package side

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Assistant is a draft that reads its target's keys and values (Gemma 4). Its files are made by other programs: they name no target.
const Assistant Kind = "gemma4-assistant"

// AssistantLevels is how many tokens an assistant drafts in a chain.
const AssistantLevels = 4

// AssistantShape is what only an assistant has: the names that its file gives to tensors, and, if its tokens are divided into clusters
// (Gemma 4 E2B, E4B), the number of these. The zero value is that of other kinds.
type AssistantShape struct {
	Enter, Leave     string // the matrices between the target's width and its own
	Clusters, Chosen int    // clusters of tokens, and how many of them a step looks into; 0: a step looks at all tokens
	Centroids, Order string
}

// spelling is how files of one architecture name what no other file has: the key of the target's width, and two matrices.
type spelling struct{ width, enter, leave string }

// spellings of an assistant, by architecture: that of today, and older ones.
var spellings = map[string]spelling{
	string(Assistant):  {"embedding_length_out", "nextn.pre_projection.weight", "nextn.post_projection.weight"},
	"gemma4_mtp":       {"backbone_embedding_length", "mtp_pre_proj.weight", "mtp_post_proj.weight"},
	"gemma4_assistant": {"n_embd_backbone", "mtp.pre_projection.weight", "mtp.post_projection.weight"},
}

// What converters call the parts of clusters; files of all spellings are read alike.
var (
	centroidNames = []string{"nextn.centroids.weight", "masked_embd_centroids.weight", "mtp.centroids.weight", "mtp_centroids.weight"}
	orderNames    = []string{"nextn.token_ordering.weight", "nextn.token_ordering", "masked_embd_ordering", "masked_embd_ordering.weight",
		"mtp.token_ordering.weight", "mtp.token_ordering", "mtp_token_ordering.weight", "mtp_token_ordering"}
	centroidCounts = []string{"n_centroids", "centroid_count", "num_centroids"}
	chosenCounts   = []string{"centroid_top_k", "centroid_intermediate_top_k"}
)

// usualClusters is how many clusters a step chooses if the file does not say.
const usualClusters = 32

var assistant = layout{kind: Assistant, selfDraft: tandem.Assistant, sort: Chain, read: readAssistant,
	describe: func(s *Spec) string {
		what := fmt.Sprintf("an assistant of %d blocks, %d tokens in a chain", s.Blocks, s.Levels)
		if c := s.Helper.Clusters; c > 0 {
			what += fmt.Sprintf(", each from the best %d of %d clusters of tokens", s.Helper.Chosen, c)
		}
		return what
	}}

func readAssistant(r *reader) {
	s, words := r.spec, spellings[r.arch]
	s.Taps, s.Levels = []int{LastNorm}, AssistantLevels
	s.Dim, s.Blocks, s.Draft.Width = r.count(words.width, maxDim), r.count("block_count", maxLayers), r.count("embedding_length", maxDim)
	if e := r.file.Tensor("token_embd.weight"); e != nil && len(e.Shape) == 2 { // not all converters write the number of tokens
		s.Vocab = r.countOr("vocab_size", maxVocab, e.Shape[1])
	} else {
		s.Vocab = r.count("vocab_size", maxVocab)
	}
	s.Helper = AssistantShape{Enter: words.enter, Leave: words.leave}
	if r.err == nil {
		r.clusters(&s.Helper, s.Vocab)
	}
}

// clusters reads how an assistant's tokens are divided, if they are.
func (r *reader) clusters(s *AssistantShape, vocab int) {
	const key = "use_ordered_embeddings"
	t := oneOf(r.file, centroidNames)
	ordered, err := r.file.BoolOr(r.key(key), t != nil)
	switch r.keep(err); {
	case !ordered || err != nil:
		return
	case t == nil:
		r.fail(tandem.Corrupt, "key %q is true, but tensor %q is missing", r.key(key), centroidNames[0])
		return
	case len(t.Shape) != 2:
		r.fail(tandem.Corrupt, "tensor %q has shape %v: want a row for each centroid", t.Name, t.Shape)
		return
	}
	s.Centroids, s.Clusters, s.Chosen = t.Name, t.Shape[1], min(usualClusters, t.Shape[1])
	if s.Order = orderNames[0]; oneOf(r.file, orderNames) != nil {
		s.Order = oneOf(r.file, orderNames).Name
	}
	for _, key := range centroidCounts {
		if n := r.countOr(key, maxVocab, s.Clusters); n != s.Clusters {
			r.fail(tandem.Corrupt, "key %q is %d, but tensor %q has %d rows", r.key(key), n, t.Name, s.Clusters)
		}
	}
	if vocab%s.Clusters != 0 {
		r.fail(tandem.Corrupt, "tensor %q has %d rows, among which %d tokens cannot be divided evenly", t.Name, s.Clusters, vocab)
	}
	for _, key := range chosenCounts {
		if s.Chosen = r.countOr(key, maxVocab, s.Chosen); s.Chosen > s.Clusters {
			r.fail(tandem.Corrupt, "key %q is %d: want at most %d, the number of centroids", r.key(key), s.Chosen, s.Clusters)
		}
	}
}

// oneOf returns the first of these tensors that the file has; nil: none.
func oneOf(f *gguf.File, names []string) *gguf.Tensor {
	if i := slices.IndexFunc(names, func(name string) bool { return f.Tensor(name) != nil }); i >= 0 {
		return f.Tensor(names[i])
	}
	return nil
}

// ReadOrder returns the tokens of all clusters, one cluster after the other, all of one size. It reads them from the tensor t of file f,
// which has an entry for each token, in one of two forms: the tokens themselves, cluster by cluster; or for each token the number of its
// cluster. The order within a cluster means nothing. Errors: Unsupported (another type), Corrupt, and those of reading.
func ReadOrder(f *gguf.File, t *gguf.Tensor, clusters int) ([]int32, error) {
	fail := func(k tandem.Kind, format string, args ...any) ([]int32, error) {
		return nil, tandem.Errorf(op, k, "%s: tensor %q%w", f.Path(), t.Name, fmt.Errorf(format, args...))
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	all := make([]int64, t.Elements())
	for i := range all {
		switch t.Type {
		case gguf.Int32:
			all[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		case gguf.Int64:
			all[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		default:
			return fail(tandem.Unsupported, " has type %s: want %s or %s", t.Type, gguf.Int32, gguf.Int64)
		}
	}
	wrong := permutation(all)
	if wrong < 0 {
		tokens := make([]int32, len(all))
		for i, v := range all {
			tokens[i] = int32(v)
		}
		return tokens, nil
	}
	if tokens := byCluster(all, clusters); tokens != nil {
		return tokens, nil
	}
	return fail(tandem.Corrupt, ": entry %d is %d: want each of the tokens 0 to %d once, or for each token one of %d clusters, "+
		"each %d times", wrong, all[wrong], len(all)-1, clusters, len(all)/clusters)
}

// permutation returns the first entry that is none of 0 … len(all)-1, or is there a second time; -1: there is none.
func permutation(all []int64) int {
	seen := make([]bool, len(all))
	for i, v := range all {
		if v < 0 || v >= int64(len(all)) || seen[v] {
			return i
		}
		seen[v] = true
	}
	return -1
}

// byCluster returns the tokens of each of count clusters, given each token's cluster; nil unless all clusters have as many.
func byCluster(of []int64, count int) []int32 {
	size := len(of) / count
	tokens, have := make([]int32, len(of)), make([]int, count)
	for token, v := range of {
		if v < 0 || v >= int64(count) || have[v] == size {
			return nil
		}
		tokens[int(v)*size+have[v]] = int32(token)
		have[v]++
	}
	return tokens
}
