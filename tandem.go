// Package tandem is the vocabulary of speculative decoding in tandem: the values that drafter,
// verifier and gateway exchange, the interfaces between them, and their contracts. It imports only the standard library, and
// kernels and client do not import it. Its files are its subjects: vocabulary, peers, requests, trees, plans, events, errors.
//
// One round: the gateway asks a Drafter to Propose a Tree for a session; the drafter puts a Ticket
// with that tree into the Pool; the verifier takes tickets, checks all their trees in one pass of the
// target model and answers each with a Verdict; the gateway commits the verdict's tokens and starts
// the next round. The gateway alone owns the truth: the committed tokens of every session and its
// Epoch. Everything else can be lost and computed again.
//
// # Models and processes
//
//   - target: the model whose text is wanted. Speculation never changes that text, unless a request asks for typical acceptance.
//   - draft model: a small model that guesses what the target will say. Draft: the tree that one drafter guesses in one round.
//   - side file: heads, prompt tokens or a draft, trained for one target and of no use without it (docs/sidefiles.md).
//     Head: guesses from the target's hidden state. Prompt token: an embedding that is trained to guess.
//   - tap: which hidden state of the target is read: after a layer, or after the final norm. Feature: its value at a committed position.
//   - draft with states: a draft model that reads features: with each token the state of the position before, the target's or its own.
//   - verifier: runs the target and holds its keys and values.
//   - drafter: guesses, with a draft model or without one (lookup). A process of drafters has one or several.
//   - self-draft: what a side file lets the target itself guess: medusa, ppd, assistant. It is named where drafters are named, but no
//     process of drafters has it.
//   - gateway: serves requests, and owns what has been committed.
//   - peer: any of the three as another sees it. Owner: the process that opened a session at a peer.
//   - identity: a name for all that a text depends on besides its request. Lineage: which model it is, whatever its quantisation.
//     Fingerprint: of a vocabulary. Protocol: the version of the messages between processes.
//
// # Requests
//
//   - request: one prompt and how to continue it. Tenant: whose it is.
//   - generation: what happens to a request from admission to its last token. Session: its state in all three processes.
//   - committed: chosen by the target and never taken back. Base: the number of committed tokens. Epoch: how often the session was opened
//     again from them.
//   - sampling: how a token is drawn from the target's logits. It does not depend on speculation.
//   - parked: a session is parked when it has given up its slot: its client does not read, or others need the slot or the memory.
//
// # Rounds
//
//   - round: the steps between two commits: a proposal or none, a ticket, a pass, a verdict.
//   - tree: guesses below the last committed token, its root. Nodes are its tokens, root included; a path leads down from the root; a
//     chain is a tree with one path. Depth is counted from the root, width is the number of nodes of one depth.
//   - guess: candidates of a self-draft for the tokens to come, level by level; it travels with the verdict of the round before.
//     Prompt node: a node of a tree with a trained embedding in place of a token, whose row makes the target guess; it is never in
//     a path.
//   - successors: the tokens that the target finds likeliest after a node of a verified tree. Recycling drafts from those of earlier
//     rounds.
//   - bounds: the nodes, depth and width that a tree may have at most. Growth: the order in which it gets them.
//   - proposal: what a gateway asks of a drafter. Ticket: asks the verifier to check a tree. Verdict: its answer.
//   - pool: the queue of tickets for the verifier. Segment: the shared memory of a process. Handle: where in a segment a ticket's
//     tree lies.
//   - pass: one run of a model over rows. Row: one token in a pass. Part: one session's rows. Batch: the tickets of one pass.
//   - accepted: a node is accepted if it is on the path that the target takes: its own draws (exact), or likely tokens (typical,
//     which is lossy). Origin: who guessed a committed token first.
//   - plain: a round is plain if nothing was guessed.
//
// # Decisions
//
//   - strategy: decides which drafters are asked in a round, and for what: its decision. Vote: how trees of several drafters become one.
//   - plan: costs and probabilities by which a drafter decides how large a tree is worth verifying. Cost: the time of a pass.
//   - technique: a part of a strategy that a request may leave out, to see what it brings.
//   - hindsight: which committed tokens a drafter would have guessed.
//   - ahead: a drafter drafts ahead when it drafts for the next round while the target verifies.
package tandem
