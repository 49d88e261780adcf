package engine

import (
	"encoding/binary"
	"fmt"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// clusters divide the tokens of an assistant with ordered embeddings (Gemma 4 E2B, E4B) evenly among centroids. A step computes only the
// logits of the tokens of the best centroids:
//
//	centroids by C·y, the largest first, the lower number among equals; for the tokens of the best `chosen`: logits = E·y
//
// E is the assistant's own embedding, whose rows are loaded cluster by cluster: a cluster is to the kernels what an expert is.
type clusters struct {
	count, chosen int
	tokens        []int32   // cluster by cluster
	centroids     kernels.W // C: (count, d)
	route         kernels.Route
}

// usualClusters is how many centroids a step chooses if the file does not say.
const usualClusters = 32

// What converters call these things; files of all spellings are read alike.
var (
	centroidNames = []string{"nextn.centroids.weight", "masked_embd_centroids.weight", "mtp.centroids.weight", "mtp_centroids.weight"}
	orderNames    = []string{"nextn.token_ordering.weight", "nextn.token_ordering", "masked_embd_ordering", "masked_embd_ordering.weight",
		"mtp.token_ordering.weight", "mtp.token_ordering", "mtp_token_ordering.weight", "mtp_token_ordering"}
	centroidCounts = []string{"n_centroids", "centroid_count", "num_centroids"}
	chosenCounts   = []string{"centroid_top_k", "centroid_intermediate_top_k"}
)

// oneOf returns the first of these tensors that the file has; nil: none.
func oneOf(f *gguf.File, names []string) *gguf.Tensor {
	for _, name := range names {
		if t := f.Tensor(name); t != nil {
			return t
		}
	}
	return nil
}

// readClusters returns how many clusters of tokens an assistant has, and how many a step chooses; 0, 0: its embeddings are not ordered.
func readClusters(h *blocks.Reader, vocab int) (count, chosen int) {
	const key = ".use_ordered_embeddings"
	t := oneOf(h.File, centroidNames)
	ordered, err := h.File.BoolOr(h.Arch+key, t != nil)
	if h.Keep(err); !ordered || h.Err != nil {
		return 0, 0
	}
	if t == nil {
		h.Fail(tandem.Corrupt, "key %q is true, but tensor %q is missing", h.Arch+key, centroidNames[0])
		return 0, 0
	}
	if len(t.Shape) != 2 {
		h.Fail(tandem.Corrupt, "tensor %q has shape %v: want a row for each centroid", t.Name, t.Shape)
		return 0, 0
	}
	count = t.Shape[1]
	for _, key := range centroidCounts {
		if n := h.Count(key, count, blocks.MaxVocab); n != count {
			h.Fail(tandem.Corrupt, "key %q is %d, but tensor %q has %d rows", h.Arch+"."+key, n, t.Name, count)
		}
	}
	if vocab%count != 0 {
		h.Fail(tandem.Corrupt, "tensor %q has %d rows, among which %d tokens cannot be divided evenly", t.Name, count, vocab)
	}
	chosen = min(usualClusters, count)
	for _, key := range chosenCounts {
		if chosen = h.Count(key, chosen, blocks.MaxVocab); chosen > count {
			h.Fail(tandem.Corrupt, "key %q is %d: want at most %d, the number of centroids", h.Arch+"."+key, chosen, count)
		}
	}
	return count, chosen
}

// collectClusters finds the centroids and the order of tokens, and makes the output matrix one of clusters.
func collectClusters(c *tensors.Catalog, w *blocks.Weights, cfg *blocks.Config, count, chosen int) *clusters {
	k := &clusters{count: count, chosen: chosen}
	c.Matrix(&k.centroids, oneOf(c.File, centroidNames).Name, true, count, cfg.Dim)
	t := oneOf(c.File, orderNames)
	if t == nil {
		c.Fail(tandem.Corrupt, "tensor %q is missing", orderNames[0])
		return nil
	}
	if k.tokens = order(c, t, cfg.Vocab, count); c.Err != nil {
		return nil
	}
	m := &c.Matrices[w.Head]
	m.Rows, m.Experts, m.Order = cfg.Vocab/count, count, k.tokens
	return k
}

// order reads the tokens of all clusters. There are two forms of the tensor: all tokens, cluster by cluster; and for each token the number
// of its cluster, in which case the tokens of a cluster are taken in ascending order. The order within a cluster means nothing.
func order(c *tensors.Catalog, t *gguf.Tensor, vocab, count int) []int32 {
	if c.Find(t.Name, true, vocab); c.Err != nil {
		return nil
	}
	data, err := t.Bytes()
	if c.Keep(err); err != nil {
		return nil
	}
	all := make([]int64, vocab)
	for i := range all {
		switch t.Type {
		case gguf.Int32:
			all[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		case gguf.Int64:
			all[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		default:
			c.Fail(tandem.Unsupported, "tensor %q has type %s: want %s or %s", t.Name, t.Type, gguf.Int32, gguf.Int64)
			return nil
		}
	}
	wrong := permutation(all)
	if wrong < 0 {
		tokens := make([]int32, vocab)
		for i, v := range all {
			tokens[i] = int32(v)
		}
		return tokens
	}
	if tokens := byCluster(all, count); tokens != nil {
		return tokens
	}
	c.Fail(tandem.Corrupt, "tensor %q: entry %d is %d: want each of the tokens 0 to %d once, or for each token one of %d clusters, "+
		"each %d times", t.Name, wrong, all[wrong], vocab-1, count, vocab/count)
	return nil
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

// logits lays out the choice of clusters and the logits of their tokens, best cluster first. Each row is a wanted one.
func (k *clusters) logits(b *blocks.Planner) {
	scores, n := b.Buf(k.count), k.chosen*(b.Vocab/k.count)
	b.Norm(b.X, b.W.OutputNorm, b.Normed)
	b.MatMul(k.centroids, b.Normed, scores, kernels.MatMulOpt{})
	k.route = kernels.Route(len(b.Routes))
	b.Routes = append(b.Routes, kernels.RouteShape{Experts: k.count, Used: k.chosen})
	b.Add(kernels.ChooseExperts{RouteOpt: kernels.RouteOpt{Normed: true}, Logits: scores, Out: k.route})
	apart, logits := b.Buf(n), b.WantedBuf(n)
	b.Stage("the clusters")
	b.Add(kernels.ExpertMatMul{W: b.W.Head, In: b.Normed, Route: k.route, Out: apart})
	b.Gather(apart, logits)
	b.TopK(logits)
}

// name puts tokens in place of places among the logits of a row that chose these clusters.
func (k *clusters) name(best kernels.Top, chosen []int32) (kernels.Top, error) {
	if len(chosen) != k.chosen {
		return best, fmt.Errorf("engine: a row of an assistant chose %d clusters instead of %d", len(chosen), k.chosen)
	}
	size := len(k.tokens) / k.count
	ids := make([]int32, len(best.IDs))
	for i, at := range best.IDs {
		ids[i] = k.tokens[int(chosen[int(at)/size])*size+int(at)%size]
	}
	best.IDs = ids
	return best, nil
}
