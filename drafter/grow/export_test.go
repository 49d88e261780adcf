package grow

// MaxWidth is maxWidth.
const MaxWidth = maxWidth

// Candidates is candidates.
var Candidates = candidates

// AheadNowhere has a session draft so many nodes ahead with nowhere to note it.
func (s *Session) AheadNowhere(nodes int) { s.Lookahead.trees, s.Lookahead.left = nil, nodes }
