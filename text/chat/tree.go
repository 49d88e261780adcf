package chat

// The tree of a template: expressions and statements, as the parser makes them. Immutable.

// expr is an expression: one of the types below.
type expr interface {
	eval(r *run, sc *scope) any
}

type (
	constant struct{ v any } // nil, bool, int64, wide, float64, text
	variable struct{ name string }
	listing  struct {
		items []expr
		tuple bool
	}
	mapping   struct{ keys, vals []expr }
	attribute struct {
		of   expr
		name string
	}
	subscript struct{ of, key expr }
	slicing   struct{ of, from, to, step expr } // nil: not given
	call      struct {
		of   expr
		args callArgs
	}
	applied struct { // of|name(args), or "of is name(args)"
		of   expr // nil: what the block around prints
		test bool
		name string
		args callArgs
	}
	negation struct{ of expr } // not
	minus    struct {          // a sign
		minus bool
		of    expr
	}
	binary struct { // + - * / // % ** and or
		op          string
		left, right expr
	}
	comparison struct { // a < b <= c …
		first expr
		ops   []string
		rest  []expr
	}
	concat  struct{ parts []expr }       // ~
	ternary struct{ yes, cond, no expr } // no: nil for undefined

	// callArgs are what stands in the parentheses of a call.
	callArgs struct {
		pos         []expr
		names       []string // of vals, in the order in which they are written
		vals        []expr
		list, pairs expr // *list and **pairs; nil: not given
	}
)

// target is what a statement assigns to: a variable, an attribute of a namespace, or several.
type target struct {
	name, attr string
	parts      []target
	several    bool // a tuple
}

// statement is one of the types below. hides are names that are undefined where its body begins: see names.
type statement interface {
	exec(r *run, sc *scope) flow
}

type (
	data   struct{ text string }
	output struct {
		line  int
		value expr
	}
	branching struct {
		line     int
		branches []branch
	}
	branch struct {
		cond expr // nil: else
		body []statement
	}
	loop struct {
		line       int
		to         target
		over       expr
		cond       expr        // nil: all
		body, none []statement // none: nil for no else
		hasElse    bool

		hides, noneHides []string
	}
	assignment struct {
		line  int
		to    target
		value expr // nil: what a block prints
		block printedBlock
	}
	printedBlock struct {
		body  []statement
		chain expr // filters around a nil, through which goes what body prints; nil for none
		hides []string
	}
	macroDef struct {
		line   int
		name   string // "" of a call block
		params []string
		values []expr // defaults of the last params
		body   []statement
		caller bool // the body reads it
		hides  []string
	}
	callBlock struct {
		line int
		call *call
		def  *macroDef // caller
	}
	filterBlock struct {
		line  int
		block printedBlock
	}
	with struct {
		line   int
		to     []target
		values []expr
		body   []statement
		hides  []string
	}
	plainBlock struct { // generation
		body  []statement
		hides []string
	}
	jump struct{ to flow }
)

// flow is how a body ended.
type flow uint8

const (
	onward flow = iota
	breaks
	continues
)
