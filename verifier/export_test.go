package verifier

import "context"

// SetPatience sets how the wait for more tickets is bounded.
func (v *Verifier) SetPatience(x float64) error {
	return v.sched.Do(context.Background(), func() error { v.sched.SetPatience(x); return nil })
}

// SetBatches sets into how many batches sessions are divided; weighed: only while that is expected to be faster.
func (v *Verifier) SetBatches(n int, weighed bool) error {
	return v.sched.Do(context.Background(), func() error { v.sched.SetBatches(n, weighed); return nil })
}

// Hold keeps v's goroutine busy until c is closed.
func (v *Verifier) Hold(c chan struct{}) {
	begun := make(chan struct{})
	v.sched.Post(func() { close(begun); <-c })
	<-begun
}
