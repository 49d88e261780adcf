package enlist

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	describeTime  = 5 * time.Second        // how long a verifier may take to describe itself
	describePause = 200 * time.Millisecond // before it is asked again
)

// VerifierConfig is what NewVerifier needs.
type VerifierConfig struct {
	// Gateway is told whether there is a verifier, and what it is.
	Gateway interface {
		State(up bool)
		Is(d tandem.Description)
	}
	// Monitor is told why the verifier cannot be used.
	Monitor     interface{ VerifierRefused(why string) }
	Members     *Members                                              // told the verifier's identity and its target's self-drafts
	Describe    func(ctx context.Context) (tandem.Description, error) // asks the verifier
	Fingerprint string                                                // of the gateway's vocabulary
	Counters    *tandem.Counters
	Log         *slog.Logger
}

// Verifier keeps a gateway informed about its verifier. Safe for concurrent use.
type Verifier struct {
	cfg VerifierConfig

	ctx  context.Context // of work
	end  context.CancelFunc
	work sync.WaitGroup // goroutines that ask a verifier what it is
	turn atomic.Uint64  // changes when a verifier comes or goes

	mu       sync.Mutex
	identity tandem.Identity // of the latest verifier
	trouble  string          // why the latest one cannot be used; "" for nothing
}

// NewVerifier returns a Verifier for c. The caller must Close it, after the last State.
func NewVerifier(c VerifierConfig) *Verifier {
	w := &Verifier{cfg: c}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// Close cancels what runs in the background, and waits for its end.
func (w *Verifier) Close() {
	w.end()
	w.work.Wait()
}

// State says that the verifier has come up or is gone. In the background, one that has come up is asked what it is.
func (w *Verifier) State(up bool) {
	w.cfg.Gateway.State(up)
	turn := w.turn.Add(1)
	if up {
		w.work.Go(func() { w.introduce(turn) })
	}
}

// Refused says why the present verifier cannot be used. The monitor is told each time; each new reason is logged once.
func (w *Verifier) Refused(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cfg.Monitor.VerifierRefused(err.Error())
	if w.trouble != err.Error() {
		w.trouble = err.Error()
		if other := tandem.Refusal(err); other != "" {
			w.cfg.Counters.Add("refused."+other, 1)
		}
		w.cfg.Log.Warn("the verifier refuses this gateway, or is refused", "error", err)
	}
}

// introduce asks a verifier that has come up for its description and passes it to the gateway, unless it is gone again. One that does not
// answer in time, as on a busy machine, is asked again.
func (w *Verifier) introduce(turn uint64) {
	d, err := w.ask()
	for tandem.KindOf(err) == tandem.Deadline && w.turn.Load() == turn && w.ctx.Err() == nil {
		time.Sleep(describePause)
		d, err = w.ask()
	}
	if err != nil {
		return
	}
	w.cfg.Gateway.Is(d)
	w.compare(d)
	w.cfg.Members.TargetIs(d.Identity, d.SelfDraftNames())
}

func (w *Verifier) ask() (tandem.Description, error) {
	ctx, cancel := context.WithTimeout(w.ctx, describeTime)
	defer cancel()
	return w.cfg.Describe(ctx)
}

// compare refuses a verifier of another vocabulary, and warns of one that computes other texts than the one before.
func (w *Verifier) compare(d tandem.Description) {
	if d.Fingerprint != w.cfg.Fingerprint {
		w.Refused(tandem.Errorf(tandem.OpVocabulary, tandem.Unavailable,
			"the verifier's model %s has vocabulary %s, the gateway's %s: want one model file for both", d.Model, d.Fingerprint,
			w.cfg.Fingerprint))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble = ""
	if before := w.identity; before != "" && before != d.Identity {
		w.cfg.Counters.Add("verifier.other_identity", 1)
		w.cfg.Log.Warn("another verifier has come, which computes other texts: running requests wait for one like that before",
			"before", before, "now", d.Identity, "differ in", before.Difference(d.Identity))
	}
	w.identity = d.Identity
}
