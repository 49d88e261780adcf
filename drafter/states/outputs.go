package states

// outputs are the draft's outputs at the explored nodes: the states of the rows below them.
type outputs struct {
	width  int
	values []float32 // (explored nodes, width)
}

// at returns the output at an explored node, valid until the next call of another method.
func (o *outputs) at(node int) []float32 { return o.values[node*o.width:][:o.width] }

// begin forgets all and sets that at the root.
func (o *outputs) begin(root []float32) { o.values = append(o.values[:0], root...) }

// add adds that at the next explored node.
func (o *outputs) add(x []float32) { o.values = append(o.values, x...) }

// keep forgets all but those at the root and at the nodes in used, ascending, which are numbered anew.
func (o *outputs) keep(used []int32) {
	for i, node := range used {
		copy(o.values[(i+1)*o.width:][:o.width], o.at(int(node)))
	}
	o.values = o.values[:min(len(o.values), (len(used)+1)*o.width)]
}
