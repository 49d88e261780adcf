package round

import (
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	mostTickets = 1 + 2                  // tickets of one round without an answer, after which the verifier is lost
	quickWait   = 2 * time.Millisecond   // before a ticket that the pool refused is put again; doubles
	slowWait    = 250 * time.Millisecond //
	drafterWait = 500 * time.Millisecond // for the verdict on a ticket that a drafter put, at least
	fullPause   = 5 * time.Millisecond   // longest wait while the pool is merely full, which is never for long
)

// State is where a round stands. A round leaves Drafting and Waiting only by an event's method in this file.
type State uint8

const (
	Drafting State = iota // the sources asked draft
	Waiting               // a ticket is in the pool, or is to be put
	Answered              // Verdict may be committed
	Failed                // there is no verdict to commit, and the session must be opened again
	Ended                 // the request ends
)

// Round decides one round of a session. Events are its methods; each returns what its caller is to do next. It has one user.
//
//	            Propose                    Put, Wait                           Commit
//	Begin ─▶ drafting ─ all drafted, or ─▶ waiting ─ verdict ───────────────▶ answered
//	            │       others too late       ├─ too many tickets, too long,
//	            │                             │  stale or garbage verdict ────▶ failed     Reopen, MakeRoom
//	            └──────── Stopped ────────────┴─ verifier cannot do it ──────▶ ended      End
//
// Its rules:
//
//  1. A ticket with the drafted tree is put once; all after it have the root alone. Under the exact rule either continues the same text.
//  2. While it waits there is a time for the next Tick. Each Tick puts a ticket, at most mostTickets in all, or fails the round.
//  3. A tree that the verifier refuses costs its sources the session, and the round is repeated with the root alone.
//  4. An event that its state does not expect, such as a second verdict or a draft after Merged, changes nothing.
type Round struct {
	Plan
	Drafts []Draft // of the sources that answered in time; once merged in the order of Asks
	Drafted
	Verdict tandem.Verdict // valid once answered
	Prompts int            // prompt nodes in the ticket that was put
	Tickets int            // put in all

	rules   *Rules
	losses  *Losses
	state   State
	missing int // sources that have not answered
	late    bool
	first   tandem.Tree   // of the first ticket, unless a source has put that
	overdue bool          // the verdict on a source's own ticket
	wait    time.Duration // for the verdict on the first ticket
	retry   time.Duration // before a refused ticket is put again
	fault   error         // the pool's, of the latest ticket
}

// Do is the step that a round's caller is to take next.
type Do uint8

const (
	Wait     Do = iota // for the next event
	Propose            // ask the sources of Asks, of the next round if this one is committed
	Merge              // no other draft is waited for: take those that are there, give up the others, and call Merged
	Put                // the ticket that Ticket returns
	Commit             // Verdict
	Reopen             // the session, in a new epoch
	MakeRoom           // let others have the memory that the verifier lacks, and then as Reopen
	Park               // the session gives its slot back until its client reads
	GiveWay            // the session gives its slot to another request, and takes the next
	End                // the request, with Err, or because its text is complete or it was stopped
)

// Action is all that a round's caller is to do after an event, in the order of the fields.
type Action struct {
	Count   string        // a counter to add 1 to; "": none
	Judge   Judgement     // of the sources of Drafts
	Prompts bool          // the verifier has refused the prompt nodes
	Wait    time.Duration // after which Tick is to be called; 0: no change
	Do      Do
	Err     error // of Reopen, MakeRoom and End: why
}

// Judgement says how the sources that drafted for a round have behaved.
type Judgement uint8

const (
	Fine       Judgement = iota // nothing speaks against it
	Arrived                     // the ticket that it put reached the verifier
	Missed                      // the verifier has not seen the ticket that its answer says was put
	Suspicious                  // what became of its draft may be its fault: it is given up for the session
	Garbage                     // it has broken a contract: it is given up for the session, and that counts against it
)

// New returns a round that has not begun. rules and losses are those of its session; the round changes losses.
func New(p Plan, rules *Rules, losses *Losses) Round {
	return Round{Plan: p, rules: rules, losses: losses, missing: len(p.Asks), retry: quickWait,
		wait: max(rules.Wait, min(worth.Overdue*p.Pace, rules.VerifierWait/(1<<3)))}
}

// Begin begins the round.
func (r *Round) Begin() Action {
	if len(r.Asks) == 0 {
		return Action{Do: Merge}
	}
	return Action{Do: Propose}
}

// Answer takes what a source has drafted; nil: it has failed, or drafted nothing.
func (r *Round) Answer(d *Draft) Action {
	if r.missing--; d != nil && r.state == Drafting {
		r.Drafts = append(r.Drafts, *d)
	}
	return r.gather()
}

// Skip says that the sources of the last n Asks are not asked, because what the others have drafted is enough.
func (r *Round) Skip(n int) Action {
	r.Asks = r.Asks[:len(r.Asks)-n]
	r.missing -= n
	return r.gather()
}

// Ahead reports whether a source was asked to go on drafting after it has answered.
func (r *Round) Ahead() bool {
	return slices.ContainsFunc(r.Asks, func(k strategy.Ask) bool { return k.Proposal.Ahead })
}

// Late says that Patience is over: once one source has answered, the round does not wait for the others.
func (r *Round) Late() Action {
	r.late = true
	return r.gather()
}

func (r *Round) gather() Action {
	if r.state != Drafting || r.missing > 0 && !(r.late && len(r.Drafts) > 0) {
		return Action{}
	}
	return Action{Do: Merge}
}

// Merged says that no more drafts come, and makes one tree of those that are there. took is how long drafting took. answered says that the
// verdict has come already, as happens if a drafter has put its ticket and then failed.
func (r *Round) Merged(took time.Duration, answered bool) Action {
	r.Drafted = r.join(r.Drafts, r.rules.Nodes-r.Reserve, took)
	r.state = Waiting
	switch {
	case r.Origin == InPool:
		r.Tickets = 1
		// One more ticket costs nothing; the drafter's may be missing.
		return Action{Wait: min(r.wait, max(worth.Overdue*r.Pace, drafterWait))}
	case r.Origin == Nothing:
		r.first = tandem.Root(r.Root)
	default:
		r.first = r.Tree
	}
	if r.Reserve > 0 {
		r.first = r.Prompt(r.first)
	}
	if answered {
		return Action{Wait: r.wait}
	}
	return Action{Do: Put, Wait: r.wait}
}

// Sent says that a ticket was put; err is the pool's answer, nil if it has taken the ticket.
func (r *Round) Sent(now time.Time, err error) (a Action) {
	if r.fault = err; err != nil {
		r.losses.Suspect(now)
		if errors.Is(err, tandem.UnknownSession) { // whoever holds it does not, so asking again is in vain
			return r.fail(Action{Count: "pool." + tandem.KindOf(err).String(), Err: err})
		}
		a.Count, a.Wait = "pool."+tandem.KindOf(err).String(), r.retry
		if errors.Is(err, tandem.Exhausted) {
			a.Wait = min(a.Wait, fullPause)
		}
		r.retry = min(2*r.retry, slowWait)
		return a
	}
	if r.Tickets > 0 {
		a.Count = "tickets.repeated"
	}
	a.Wait = r.wait << r.Tickets
	r.Tickets, r.retry = r.Tickets+1, quickWait
	return a
}

// Tick says that the time of the latest Action.Wait is over.
func (r *Round) Tick(now time.Time) Action {
	r.overdue = r.overdue || r.Origin == InPool && r.Tickets == 1
	return r.again(now)
}

// VerifierUp says that the verifier has come up. It has lost the tickets that were put before.
func (r *Round) VerifierUp(now time.Time) Action {
	r.Tickets = min(r.Tickets, 1)
	return r.again(now)
}

// again puts one more ticket, or gives the verifier up.
func (r *Round) again(now time.Time) Action {
	if r.state != Waiting {
		return Action{}
	}
	r.losses.Suspect(now)
	if r.Tickets < mostTickets && now.Sub(r.losses.Since) <= r.rules.VerifierWait {
		return Action{Do: Put}
	}
	if r.fault != nil {
		return r.fail(Action{Err: r.fault})
	}
	return r.fail(Action{Count: "verifier.silent",
		Err: tandem.Errorf(op, tandem.Unavailable, "verifier answered none of %d tickets", r.Tickets)})
}

// Stopped says that the request has ended.
func (r *Round) Stopped() Action {
	r.state = Ended
	return Action{Do: End}
}

// Answered takes the verdict on the round's question, whatever its kind.
func (r *Round) Answered(v tandem.Verdict) Action {
	switch {
	case r.state != Waiting:
		return Action{}
	case v.Kind == tandem.Invalid && (r.drafted() || r.Prompts > 0):
		return r.refused()
	}
	r.Verdict = v
	switch a := (Action{Count: "verifier." + v.Kind.String()}); v.Kind {
	case tandem.OK:
	case tandem.Unsupported: // no other try would give another result
		a.Do, a.Err = End, &tandem.Error{Op: op, Kind: tandem.Corrupt, Field: "model", Err: errors.New(v.Message)}
		r.state = Ended
		return a
	default:
		a.Err = tandem.Errorf(op, v.Kind, "verifier answered %v: %s", v.Kind, v.Message)
		return r.fail(a)
	}
	if err := r.check(); err != nil {
		return r.fail(Action{Count: "verdicts.garbage", Judge: Suspicious, Err: err}) // it may have to do with the tree
	}
	r.state = Answered
	return Action{Judge: r.arrived(), Do: Commit}
}

// Judged reports whether the whole tree was verified, so that the verdict says something about it.
func (r *Round) Judged() bool {
	return r.drafted() && r.Tree.Len() > 1 && r.Verdict.Nodes == r.Tree.Len()+r.Prompts
}

// check returns nil if the verdict may be committed.
func (r *Round) check() error {
	nodes := r.rules.Nodes
	if r.Judged() {
		nodes = r.Tree.Len() // of prompt nodes none is in a path
	}
	if err := WellFormed(r.Verdict, nodes, r.rules.Vocab); err != nil {
		return err
	}
	return checkLogprobs(r.Verdict, r.rules.Logprobs, r.rules.Vocab)
}

// refused repeats the round with the root alone, after the verifier has refused its tree because that breaks a contract; the session is
// intact. If a drafter put the tree itself, it is to blame; for one that the gateway put, perhaps with prompt nodes, nobody is for certain.
func (r *Round) refused() Action {
	a := Action{Judge: Suspicious, Prompts: r.Prompts > 0, Do: Put}
	if r.Origin == InPool {
		a.Judge = Garbage
	}
	r.Origin, r.Prompts = Nothing, 0
	return a
}

// arrived judges, as far as the verdict shows it, whether the ticket that a source put itself has reached the verifier.
func (r *Round) arrived() Judgement {
	switch {
	case r.Origin != InPool || r.Size < 2:
		return Fine
	case r.Verdict.Nodes > 1:
		return Arrived
	case r.overdue && r.Verdict.Nodes == 1:
		return Missed
	}
	return Fine
}

func (r *Round) fail(a Action) Action {
	r.state, a.Do = Failed, Reopen
	if r.Verdict.Kind == tandem.Exhausted {
		a.Do = MakeRoom
	}
	return a
}

// Next decides what follows a committed round. finished says that the text is complete; unread, that the client has left its output unread
// for long; claimed, that another request waits for the slot.
func Next(finished, unread, claimed bool) Do {
	switch {
	case finished:
		return End
	case unread:
		return Park
	case claimed:
		return GiveWay
	}
	return Propose
}
