package verifier

import "context"

// SetPatience sets how the wait for more tickets is bounded.
func (v *Verifier) SetPatience(x float64) error {
	return v.sched.Do(context.Background(), func() error { v.sched.SetPatience(x); return nil })
}

// SetBatches sets into how many batches sessions are divided.
func (v *Verifier) SetBatches(n int) error {
	return v.sched.Do(context.Background(), func() error { v.sched.SetBatches(n); return nil })
}

// Hold keeps v's goroutine busy until c is closed.
func (v *Verifier) Hold(c chan struct{}) {
	begun := make(chan struct{})
	v.sched.Post(func() { close(begun); <-c })
	<-begun
}
