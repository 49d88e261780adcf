package oai

import (
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Piece is a token and its text: a string, or an array of bytes if they are not UTF-8.
type Piece struct {
	ID    tandem.Token `json:"id"`
	Piece any          `json:"piece"`
}

// NewPiece returns a token in /tokenize's form.
func NewPiece(t tandem.Token, w Word) Piece {
	if utf8.Valid(w.Bytes) {
		return Piece{t, w.Text}
	}
	return Piece{t, ints(w.Bytes)}
}
