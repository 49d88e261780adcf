//go:build amd64

package kernels

// TreePeer and its methods show the peers of tree attention to the benchmark.
type TreePeer = treePeer

func (t *treePeer) Naive()  { t.naive() }
func (t *treePeer) Sparse() { t.sparse() }
func (t *treePeer) Dense()  { t.dense() }
