package roster

import "sync"

// Recovery wakes whoever waits for a peer to come up. The zero value is ready for use.
type Recovery struct {
	mu   sync.Mutex
	up   bool
	came chan struct{} // closed and replaced whenever the peer comes up
}

// Set notes that the peer is up or down. If it was down and is up, those that wait wake.
func (r *Recovery) Set(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if up && !r.up && r.came != nil {
		close(r.came)
		r.came = nil
	}
	r.up = up
}

// Pulse wakes those that wait, although the peer has neither come nor gone.
func (r *Recovery) Pulse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.came != nil {
		close(r.came)
		r.came = nil
	}
}

// Next returns a channel that closes the next time the peer comes up, or at the next Pulse.
func (r *Recovery) Next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.came == nil {
		r.came = make(chan struct{})
	}
	return r.came
}
