package ref

// Version numbers the arithmetic: what this package defines, and how tokens are drawn from logits (engine/sample). It is part
// of tandem.Identity. A change after which any input may give other bits takes the next number; see docs/kernels.md.
const Version = 3
