package enlist

import (
	"context"
	"log/slog"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/text/token"
)

// Process is a process with drafters in it.
type Process struct {
	Addr     string
	Instance uint64    // differs at each start; 0: it has never announced itself, only the configuration names it
	Drafters []Drafter // empty until the process has announced itself
	Link     Link
	Up       bool // it is connected
	Draining bool // it takes no new work
}

// Drafter is what a process announces about one of its drafters.
type Drafter struct {
	Name        string          // within the process
	Model       string          // "" for none
	Vocab       int             // size of the vocabulary; 0: it takes any
	Fingerprint string          // of the vocabulary; "": it takes any
	Identity    tandem.Identity // of what computes its drafts; "" for none
	Features    bool            // it reads hidden states of the target
	Costs       []tandem.Cost   // of its passes, as it measured them; nil: it did not
	Window      int             // tokens of a text that it reads at most; 0: all
}

// Link is a connection to a process. Equal links (==) are the same connection.
type Link interface {
	// Drafter returns the drafter whose name in the process is name. enlisted is its name in the gateway.
	Drafter(name, enlisted string) tandem.Drafter
	// Vocabulary fetches the texts of a drafter's first tokens, at most most of them. Size may be left 0; Tokenizer is empty if the
	// version of the process does not send it. After errors of kind Unavailable, Deadline and Canceled it may be asked again.
	Vocabulary(ctx context.Context, name string, most int) (token.Listing, error)
	// Target sends a drafter the target's tokenizer, which is what MembersConfig.Tokenizer returned. From then on the drafter translates.
	// Errors: Unsupported if it cannot; after Unavailable, Deadline and Canceled it may be sent again.
	Target(ctx context.Context, name, fingerprint string, file []byte) error
}

// Gateway is the part of a gateway that Members tells about drafters.
type Gateway interface {
	Enlist(gateway.Enlisted)           // sessions may ask it from now on
	Dismiss(name string)               // it is gone for good: sessions drop it
	DrafterState(name string, up bool) // whether it answers now
	// PassCosts says what passes of an enlisted drafter's model cost: its process has measured them since.
	PassCosts(name string, costs []tandem.Cost)
}

// MembersConfig is what NewMembers needs.
type MembersConfig struct {
	Gateway     Gateway
	Vocab       *token.Vocab // the target's
	Fingerprint string       // of Vocab
	Counters    *tandem.Counters
	Log         *slog.Logger
	// Compared lists the addresses of processes whose vocabularies were compared before, by the program that started them. Harmless
	// differences of those are not logged again.
	Compared []string
	Taken    []string // names of drafters inside the gateway's own process
	// Tokenizer returns a GGUF file of the target's tokenizer, for drafters of other vocabularies; nil: they are refused.
	Tokenizer func() ([]byte, error)
}

// key is a drafter in a process.
type key struct{ addr, name string }
