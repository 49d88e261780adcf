package verifier

// SetPatience sets how the wait for more tickets is bounded.
func SetPatience(x float64) { patience = x }

// Hold keeps v's goroutine busy until c is closed.
func (v *Verifier) Hold(c chan struct{}) {
	begun := make(chan struct{})
	v.owner.Post(func() { close(begun); <-c })
	<-begun
}
