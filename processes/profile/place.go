package profile

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// File names a target without reading all of it: a placement that was measured for another one of the same name and size costs time only.
type File struct {
	Name  string `json:"name"`  // without folder and ending
	Bytes int64  `json:"bytes"` // size of all its parts
	KV    string `json:"kv"`    // type of keys and values
}

// Decision says where a target and its drafts are best computed on this machine.
type Decision struct {
	File
	Identity   tandem.Identity `json:"identity"`
	Placements []Placement     `json:"placements"` // most tokens per second first
}

// Placement is a target on one device and drafts on another or on the same.
type Placement struct {
	// Device is the target's, as --device has it. Where another setting decides as well, it follows a comma:
	// "cpu, --gpu-memory 2147483648".
	Device          string  `json:"device"`
	DraftDevice     string  `json:"draft_device,omitempty"` // where the drafts compute; "": without a draft model
	TokensPerSecond float64 `json:"tokens_per_second"`      // harmonic mean over the texts
	Rounds          []Round `json:"rounds"`                 // the best way of drafting, for each text
}

// Round is what a round of one placement is expected to bring and to take.
type Round struct {
	Text     string  `json:"text"`
	Drafter  string  `json:"drafter,omitempty"` // a draft model, or a way of the target's own; "": plain decoding
	Nodes    int     `json:"nodes"`             // nodes of the tree, root included
	Tokens   float64 `json:"tokens"`            // measured on the text
	VerifyNS int64   `json:"verify_ns"`         // a pass of so many rows
	DraftNS  int64   `json:"draft_ns"`
	Hits     float64 `json:"hits"`      // how often what is drafted ahead is of use, at least
	Burden   float64 `json:"burden"`    // what drafting ahead takes from the target's processor: a share of its speed
	HiddenNS int64   `json:"hidden_ns"` // the part of DraftNS that passes behind the target's pass
}

// time returns the time of a round.
func (r Round) time() time.Duration { return time.Duration(r.VerifyNS + r.DraftNS - r.HiddenNS) }

// Option is a way of drafting on one text for one placement, as it was measured.
type Option struct {
	Device, DraftDevice string
	Text                string
	Drafter             string
	Lengths             []Length      // tokens per round by nodes; none: plain decoding
	Verify              []tandem.Cost // passes of the target, behind one context
	Draft               time.Duration // time of one pass of the draft, which adds a token to a chain; for a way, of one guess
	Depths              []float64     // how often token i+1 of a chain is right if those before are; nil for a way
	Apart               bool          // target and draft are on different processors
	Burden              float64       // then: see Round
}

// best returns the round with the most tokens per second; false if no pass was measured that is wide enough.
//
// The estimate is τ(n) / (T_V(n) + T_D(n) − hidden). On the same processor nothing is hidden. On different ones drafting ahead is of use if
// the whole chain is right, and so is the draft's next token: that share h of rounds follows from measured depths. It is a lower bound, as
// a drafter also draws trees for other verdicts. A pass ahead takes a share b of the speed of the target's processor, so that h − b of the
// shorter of T_V and T_D is hidden, if that is positive: else the drafter does not draft ahead (drafter.Config.AheadGain).
func (o Option) best() (best Round, ok bool) {
	verify := worth.NewCosts(o.Verify)
	lengths := append([]Length{{1, 1, 1}}, o.Lengths...)
	for i, l := range lengths {
		if !verify.Known() || l.Nodes > verify.Widest() || i > 0 && len(o.Depths) > 0 && l.Nodes-1 > len(o.Depths) {
			continue
		}
		r := Round{Text: o.Text, Nodes: l.Nodes, Tokens: l.Measured, VerifyNS: int64(verify.Time(l.Nodes))}
		if i > 0 {
			r.Drafter = o.Drafter
			o.draft(&r)
		}
		if !ok || r.Tokens/float64(r.time()) > best.Tokens/float64(best.time()) {
			best, ok = r, true
		}
	}
	return best, ok
}

// draft fills in what drafting takes.
func (o Option) draft(r *Round) {
	passes := 1
	if len(o.Depths) > 0 {
		passes = r.Nodes - 1
	}
	r.DraftNS = int64(passes) * int64(o.Draft)
	if !o.Apart || len(o.Depths) == 0 {
		return
	}
	r.Burden, r.Hits = o.Burden, 1
	for d := range r.Nodes { // the chain, and the token behind it: as likely as the last that was measured
		r.Hits *= o.Depths[min(d, len(o.Depths)-1)]
	}
	r.HiddenNS = int64(max(0, r.Hits-r.Burden) * float64(min(r.VerifyNS, r.DraftNS)))
}

// Judge returns what the options bring, by placement: for each the best option on every text, and the placement with the most tokens per
// second first. Placements without a round on one of the texts that others have are left out.
func Judge(options []Option) []Placement {
	type key struct{ device, draftDevice string }
	var order []key
	found, texts := map[key][]Round{}, map[string]bool{}
	for _, o := range options {
		r, ok := o.best()
		if !ok {
			continue
		}
		k := key{o.Device, o.DraftDevice}
		if found[k] == nil {
			order = append(order, k)
		}
		texts[r.Text] = true
		i := slices.IndexFunc(found[k], func(x Round) bool { return x.Text == r.Text })
		switch {
		case i < 0:
			found[k] = append(found[k], r)
		case r.Tokens/float64(r.time()) > found[k][i].Tokens/float64(found[k][i].time()):
			found[k][i] = r
		}
	}
	var all []Placement
	for _, k := range order {
		if rounds := found[k]; len(rounds) == len(texts) {
			all = append(all, Placement{Device: k.device, DraftDevice: k.draftDevice, TokensPerSecond: speed(rounds), Rounds: rounds})
		}
	}
	slices.SortStableFunc(all, func(a, b Placement) int { return cmp.Compare(b.TokensPerSecond, a.TokensPerSecond) })
	return all
}

// speed returns the tokens per second of texts of equal lengths, one after the other.
func speed(rounds []Round) float64 {
	seconds := 0.0
	for _, r := range rounds {
		seconds += r.time().Seconds() / r.Tokens
	}
	return float64(len(rounds)) / seconds
}

// Decision returns where a target is best computed, if the plan says it for this box and version. Errors: Stale, with the reason in words.
func (p *Plan) Decision(box Box, version string, file File) (*Decision, error) {
	m, err := p.current(box, version)
	if err != nil {
		return nil, err
	}
	for i := range m.Decisions {
		if m.Decisions[i].File == file {
			return &m.Decisions[i], nil
		}
	}
	return nil, stale("it compares no devices for %s of %d bytes with keys and values of type %s", file.Name, file.Bytes, file.KV)
}

// Drafts returns the best placement with a draft model whose target is on a device, nil if there is none.
func (d *Decision) Drafts(device string) *Placement {
	for i, p := range d.Placements {
		if p.Device == device && p.DraftDevice != "" {
			return &d.Placements[i]
		}
	}
	return nil
}

func validDecisions(all []Decision) error {
	if len(all) > mostSubjects {
		return corrupt("%d decisions: want at most %d", len(all), mostSubjects)
	}
	seen := map[File]bool{}
	for i, d := range all {
		if err := d.validate(); err != nil {
			return fmt.Errorf("decision %d: %w", i, err)
		}
		if seen[d.File] {
			return corrupt("decision %d: a second one for %s", i, d.Name)
		}
		seen[d.File] = true
	}
	return nil
}

func (d Decision) validate() error {
	err := firstError(name("name", d.Name), name("type of keys and values", d.KV), identity("identity", string(d.Identity)))
	switch {
	case err != nil:
		return err
	case d.Bytes < 1:
		return corrupt("a target of %d bytes: want 1 or more", d.Bytes)
	}
	if err := validPlacements(d.Placements); err != nil {
		return err
	}
	for i, p := range d.Placements {
		if i > 0 && p.TokensPerSecond > d.Placements[i-1].TokensPerSecond {
			return corrupt("placement %d has %v tokens per second, the one before %v: want the best first", i, p.TokensPerSecond,
				d.Placements[i-1].TokensPerSecond)
		}
	}
	return nil
}

func validPlacements(all []Placement) error {
	if len(all) == 0 || len(all) > mostSubjects {
		return corrupt("%d placements: want 1 to %d", len(all), mostSubjects)
	}
	for i, p := range all {
		if err := p.validate(); err != nil {
			return fmt.Errorf("placement %d: %w", i, err)
		}
	}
	return nil
}

func (p Placement) validate() error {
	err := firstError(device("device", p.Device), device("draft device", p.DraftDevice))
	switch {
	case err != nil:
		return err
	case p.Device == "":
		return corrupt("no device: want one")
	case !(p.TokensPerSecond > 0) || math.IsInf(p.TokensPerSecond, 0):
		return corrupt("%v tokens per second: want more than 0", p.TokensPerSecond)
	case len(p.Rounds) == 0 || len(p.Rounds) > mostTables:
		return corrupt("%d rounds: want 1 to %d", len(p.Rounds), mostTables)
	}
	for i, r := range p.Rounds {
		if err := r.validate(); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return nil
}

func (r Round) validate() error {
	switch err := firstError(name("text", r.Text), text("drafter", r.Drafter)); {
	case err != nil:
		return err
	case r.Nodes < 1 || r.Nodes > mostRows || !(r.Tokens >= 1 && r.Tokens <= float64(r.Nodes)):
		return corrupt("%v tokens of %d nodes: want 1 to %d nodes, and tokens from 1 to the nodes", r.Tokens, r.Nodes, mostRows)
	case r.VerifyNS < 1 || r.VerifyNS > int64(mostTime) || r.DraftNS < 0 || r.DraftNS > int64(mostTime) || r.HiddenNS < 0 ||
		r.HiddenNS > min(r.VerifyNS, r.DraftNS):
		return corrupt("%d ns to verify, %d to draft, %d of them hidden: want up to %d, and hidden what both take at most", r.VerifyNS,
			r.DraftNS, r.HiddenNS, int64(mostTime))
	case !(r.Hits >= 0 && r.Hits <= 1) || !(r.Burden >= 0 && r.Burden <= 1):
		return corrupt("hits of %v and a burden of %v: want shares from 0 to 1", r.Hits, r.Burden)
	}
	return nil
}
