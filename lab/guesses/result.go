package guesses

// Result is the result of Run.
type Result struct {
	Target       string         `json:"target"`
	Tokens       int            `json:"max_tokens"`
	Sources      []Source       `json:"sources"`
	Spread       float64        `json:"spread"` // of equal passes
	Passes       []Pass         `json:"passes"`
	Temperatures []*Temperature `json:"temperatures"`
	Published    []Published    `json:"published"`
}

// Source is a way or a draft.
type Source struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`              // medusa, ppd, dovetail …; draft: a plain one
	Levels  int    `json:"levels,omitempty"`  // of guesses
	Members int    `json:"members,omitempty"` // rows of a prompt token
	Blocks  int    `json:"blocks,omitempty"`  // of a draft
}

// Pass is what a pass of so many rows takes: T_V(W).
type Pass struct {
	Width int     `json:"width"`
	MS    float64 `json:"ms"`
}

// Temperature is what was measured at one temperature of the target.
type Temperature struct {
	Temperature float64      `json:"temperature"`
	Texts       []TextCount  `json:"texts"`
	Lengths     []Lengths    `json:"acceptance_length"`
	Accuracy    []Accuracy   `json:"accuracy"`
	Predictions []Prediction `json:"predictions"`
	Transfer    []Transfer   `json:"calibrated_elsewhere"`
	Ablations   []Ablation   `json:"ablations"`
	Sizes       []Size       `json:"sizes"`
}

// TextCount is how much text there is of a domain.
type TextCount struct {
	Domain      string `json:"domain"`
	Judged      int    `json:"judged_tokens"`
	Calibration int    `json:"calibration_tokens"`
}

// Lengths are the acceptance lengths of one way to make trees in one domain, by the trees' size.
type Lengths struct {
	Trees  string   `json:"trees"`
	Domain string   `json:"domain"` // "": all of them
	Tau    []Length `json:"tau"`
}

// Length is an acceptance length τ: tokens per round, the target's own included.
type Length struct {
	Width    int     `json:"width"` // nodes, root and prompt nodes included
	Tau      float64 `json:"tau"`
	Foretold float64 `json:"foretold,omitempty"` // what the trees' chances add up to, of trees that follow each guess
}

// Accuracy is how often the right token is among the likeliest candidates of a level, at all places of the judged texts.
type Accuracy struct {
	Way   string    `json:"way"`
	Level int       `json:"level"` // 1: the token after the next, which the target itself says
	Top   []TopRate `json:"top"`
}

// TopRate is the share of places where the right token is among the n likeliest candidates.
type TopRate struct {
	N    int     `json:"n"`
	Rate float64 `json:"rate"`
}

// Prediction is what is foretold of trees, and what they have: of one tree by tables of the calibration texts, of trees that follow each
// guess by the sum of their chances.
type Prediction struct {
	Trees       string  `json:"trees"`
	Width       int     `json:"width"`
	Independent float64 `json:"independent,omitempty"` // by the product of accuracies; only of medusa
	Foretold    float64 `json:"foretold"`              // by the rates that depend on the path
	Calibration float64 `json:"calibration,omitempty"` // on the calibration texts
	Judged      float64 `json:"judged"`                // on the judged texts
}

// Transfer is a tree that was calibrated on one domain and judged on another.
type Transfer struct {
	Way   string  `json:"way"`
	Width int     `json:"width"`
	From  string  `json:"from"`
	To    string  `json:"to"`
	Tau   float64 `json:"tau"`
	OfOwn float64 `json:"of_own"` // through that of a tree of the domain itself
}

// Ablation is a tree with a part of its making left out.
type Ablation struct {
	Way    string  `json:"way"`
	Width  int     `json:"width"`
	Trees  string  `json:"trees"`
	Tau    float64 `json:"tau"`     // on the judged texts; random trees: the mean of several
	OfBest float64 `json:"of_best"` // through that of the whole method
}

// Size is what trees of one size bring.
type Size struct {
	Way      string  `json:"way"`
	Width    int     `json:"width"`
	MS       float64 `json:"ms"`                 // of a pass with such a tree
	Foretold float64 `json:"foretold"`           // tokens per time over plain decoding, by the tables and T_V
	Judged   float64 `json:"judged"`             // by the judged texts' τ and T_V
	Real     float64 `json:"measured,omitempty"` // decoded with real rounds, the guesses' time included
}
