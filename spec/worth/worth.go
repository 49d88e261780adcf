// Package worth is the one account of what a draft costs and what it brings: pure, no clock, the formula at the head of each file. None of
// its types is safe for concurrent use.
package worth
