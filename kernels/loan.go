package kernels

import (
	"fmt"
	"slices"
)

// Loan is the weights of a program that lie in the store of another one, so that both read one copy: a head that shares its target's
// output matrix, or a draft that looks tokens up in its target's embedding. It owns nothing, and is valid as long as the store.
type Loan struct {
	Borrower, Owner *Program
	Store           Weights // of Owner
	From            []W     // per weight of Borrower: which of Owner's it is
}

// Borrow returns the weights of a program: weight i of borrower is weight from[i] of owner, in owner's store. Errors: a weight of another
// shape, type or layout; a weight that the owner's passes do not read; a store that is not resident, since a pass of the borrower would
// disturb its ring. A RowStore that is not resident may still lend a matrix of which the borrower only looks up rows.
func Borrow(borrower, owner *Program, store Weights, from []W) (*Loan, error) {
	if len(from) != len(borrower.Weights) {
		return nil, fmt.Errorf("kernels: %d weights borrowed for a program of %d", len(from), len(borrower.Weights))
	}
	for i, w := range from {
		if w < 0 || int(w) >= len(owner.Weights) {
			return nil, fmt.Errorf("kernels: weight %d of %d borrowed", int(w), len(owner.Weights))
		}
		a, b := borrower.Weights[i], owner.Weights[w]
		if a.Type != b.Type || a.Rows != b.Rows || a.Cols != b.Cols || a.Experts != b.Experts || a.Layout != b.Layout {
			return nil, fmt.Errorf("kernels: weight %q (%v, %d·%d, %s) borrowed as %q (%v, %d·%d, %s)", b.Name, b.Type, b.Rows, b.Cols,
				b.Layout, a.Name, a.Type, a.Rows, a.Cols, a.Layout)
		}
		if stage, _ := owner.find(w); stage < 0 {
			return nil, fmt.Errorf("kernels: weight %q borrowed, but no operation of its owner reads it", b.Name)
		}
		if l, ok := store.(RowStore); !store.Resident() && (!ok || !borrower.looksUp(W(i)) || l.Matrix(w) == nil) {
			return nil, fmt.Errorf("kernels: weight %q borrowed from a store that is not resident", b.Name)
		}
	}
	return &Loan{borrower, owner, store, from}, nil
}

// looksUp reports whether all operations that read a weight look up rows of it.
func (p *Program) looksUp(w W) bool {
	for _, o := range p.Ops {
		if _, look := o.(Embed); o.uses(p).W == w && !look {
			return false
		}
	}
	return true
}

// Rows reads the rows of tokens from a RowStore that is not resident, as a Runner must before a pass with these tokens. With any other
// store it does nothing. Errors: RowStore.Rows's.
func (l *Loan) Rows(tokens []int32) error {
	from, ok := l.Store.(RowStore)
	if l.Store.Resident() || !ok {
		return nil
	}
	for _, w := range l.From {
		if err := from.Rows(w, tokens); err != nil {
			return err
		}
	}
	return nil
}

// find returns the first stage that reads a weight, and its place in StageWeights; -1 if none does.
func (p *Program) find(w W) (stage, at int) {
	for i := range p.StageCount() {
		if at := slices.Index(p.StageWeights(i), w); at >= 0 {
			return i, at
		}
	}
	return -1, -1
}

// Acquire implements Weights for a stage of the borrower.
func (l *Loan) Acquire(stage int, experts []int32) (all [][]byte, err error) {
	for _, w := range l.Borrower.StageWeights(stage) {
		if from, ok := l.Store.(RowStore); ok && !l.Store.Resident() {
			all = append(all, from.Matrix(l.From[w]))
			continue
		}
		theirs, at := l.Owner.find(l.From[w])
		views, err := l.Store.Acquire(theirs, experts)
		if err != nil {
			return nil, err
		}
		all = append(all, views[at])
		l.Store.Release(theirs)
	}
	return all, nil
}

func (l *Loan) Release(int)    {}
func (l *Loan) Resident() bool { return true }
