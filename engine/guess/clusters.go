package guess

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
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

// collectClusters finds the centroids and the order of tokens, and makes the output matrix one of clusters.
func collectClusters(c *tensors.Catalog, w *blocks.Weights, cfg *blocks.Config, s *side.AssistantShape) *clusters {
	k := &clusters{count: s.Clusters, chosen: s.Chosen}
	c.Matrix(&k.centroids, s.Centroids, true, k.count, cfg.Dim)
	t := c.Find(s.Order, true, cfg.Vocab)
	if c.Err != nil {
		return nil
	}
	var err error
	if k.tokens, err = side.ReadOrder(c.File, t, k.count); err != nil {
		c.Keep(err)
		return nil
	}
	m := &c.Matrices[w.Head]
	m.Rows, m.Experts, m.Order = cfg.Vocab/k.count, k.count, k.tokens
	return k
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
