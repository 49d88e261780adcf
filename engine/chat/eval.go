package chat

import (
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"github.com/tandem-llm/tandem"
)

func (r *run) eval(n nodes.Node, sc *scope) any {
	r.step(1)
	r.enter()
	v := r.evalNode(n, sc)
	r.leave()
	return v
}

func (r *run) evalNode(n nodes.Node, sc *scope) any {
	switch n := n.(type) {
	case *nodes.None:
		return nil
	case *nodes.String:
		return lit(n.Val)
	case *nodes.Integer:
		return int64(n.Val)
	case *nodes.Float:
		return n.Val
	case *nodes.Bool:
		return n.Val
	case *nodes.Name:
		if n.Name.Val == "none" {
			return nil
		}
		return sc.get(n.Name.Val)
	case *nodes.List:
		return r.listOf(r.evalAll(n.Val, sc)...)
	case *nodes.Tuple:
		l := r.listOf(r.evalAll(n.Val, sc)...)
		l.tuple = true
		return l
	case *nodes.Dict:
		r.spend(perPair)
		d := &dict{}
		for _, p := range n.Pairs {
			r.put(d, r.eval(p.Key, sc), r.eval(p.Value, sc))
		}
		return d
	case *nodes.GetAttribute:
		if n.Attribute == "" {
			return r.item(r.eval(n.Node, sc), int64(n.Index))
		}
		return r.item(r.eval(n.Node, sc), lit(n.Attribute))
	case *nodes.GetItem:
		return r.item(r.eval(n.Node, sc), r.eval(n.Arg, sc))
	case *nodes.GetSlice:
		return r.cut(n, sc)
	case *nodes.Negation:
		return !truth(r.eval(n.Term, sc))
	case *nodes.UnaryExpression:
		return r.sign(n.Negative, r.eval(n.Term, sc))
	case *nodes.BinaryExpression:
		return r.binary(n, sc)
	case *nodes.FilteredExpression:
		v := r.eval(n.Expression, sc)
		for _, f := range n.Filters {
			v = r.filter(f.Name, v, r.args(f.Name, f.Args, f.Kwargs, sc))
		}
		return v
	case *nodes.TestExpression:
		return r.test(n.Test.Name, r.eval(n.Expression, sc), r.args(n.Test.Name, n.Test.Args, n.Test.Kwargs, sc))
	case *nodes.Call:
		return r.evalCall(n, sc)
	}
	r.fail(tandem.Invalid, "an expression is incomplete")
	return nil
}

func (r *run) evalAll(in []nodes.Expression, sc *scope) []any {
	out := make([]any, len(in))
	for i, e := range in {
		out[i] = r.eval(e, sc)
	}
	return out
}

// args are the values that a function, filter or test is called with.
type args struct {
	what  string // its name
	pos   []any
	named map[string]any
}

func (r *run) args(what string, pos []nodes.Expression, named map[string]nodes.Expression, sc *scope) args {
	a := args{what: what, pos: r.evalAll(pos, sc)}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if a.named == nil {
			a.named = map[string]any{}
		}
		a.named[name] = r.eval(named[name], sc)
	}
	return a
}

// get returns the i-th value or the one of that name.
func (a args) get(i int, name string) (any, bool) {
	if i >= 0 && i < len(a.pos) {
		return a.pos[i], true
	}
	v, ok := a.named[name]
	return v, ok
}

func (a args) or(i int, name string, def any) any {
	if v, ok := a.get(i, name); ok {
		return v
	}
	return def
}

// take checks that there are least to most values by position.
func (r *run) take(a args, least, most int) {
	if len(a.pos) < least || len(a.pos) > most {
		r.fail(tandem.Invalid, "%s takes %d to %d values, not %d", a.what, least, most, len(a.pos))
	}
}

func (r *run) textArg(a args, i int, name string) text {
	v, _ := a.get(i, name)
	t, ok := v.(text)
	if !ok {
		r.fail(tandem.Invalid, "%s wants a string, not %s", a.what, kind(v))
	}
	return t
}

func (r *run) intArg(a args, i int, name string, def int) int {
	v := a.or(i, name, int64(def))
	n, ok := integer(v)
	if !ok || n < math.MinInt32 || n > math.MaxInt32 {
		r.fail(tandem.Invalid, "%s wants a whole number up to 2³¹, not %s", a.what, kind(v))
	}
	return int(n)
}

func (r *run) evalCall(n *nodes.Call, sc *scope) any {
	if name, ok := n.Func.(*nodes.Name); ok && name.Name.Val == choose {
		if truth(r.eval(n.Args[0], sc)) {
			return r.eval(n.Args[1], sc)
		}
		if len(n.Args) > 2 {
			return r.eval(n.Args[2], sc)
		}
		return undefined{"else"}
	}
	if attr, ok := n.Func.(*nodes.GetAttribute); ok && attr.Attribute != "" {
		obj := r.eval(attr.Node, sc)
		a := r.args("."+attr.Attribute+"()", n.Args, n.Kwargs, sc)
		if v, ok := r.method(obj, attr.Attribute, a); ok {
			return v
		}
		return r.apply(r.item(obj, lit(attr.Attribute)), a)
	}
	what := "the function"
	if name, ok := n.Func.(*nodes.Name); ok {
		what = name.Name.Val
	}
	return r.apply(r.eval(n.Func, sc), r.args(what, n.Args, n.Kwargs, sc))
}

func (r *run) apply(f any, a args) any {
	switch f := f.(type) {
	case function:
		return f(r, a)
	case *macro:
		return r.call(f, a)
	}
	r.fail(tandem.Unsupported, "%s is called, which tandem does not know", short(a.what))
	return nil
}

// item is v[key] and v.key.
func (r *run) item(v, key any) any {
	name, _ := key.(text)
	i, isIndex := integer(key)
	switch v := v.(type) {
	case *dict:
		if e, ok := r.lookup(v, key); ok {
			return e
		}
	case *loopState:
		return v.attr(name.s)
	case undefined:
		r.fail(tandem.Invalid, "%s is undefined and has no %s", short(v.name), short(r.str(key).s))
	case *list:
		if i < 0 {
			i += int64(len(v.items))
		}
		if isIndex && i >= 0 && i < int64(len(v.items)) {
			return v.items[i]
		}
	case text:
		if isIndex {
			r.work(len(v.s))
			n := int64(utf8.RuneCountInString(v.s))
			if i < 0 {
				i += n
			}
			if i >= 0 && i < n {
				from := offset(v.s, int(i))
				return v.slice(from, from+offset(v.s[from:], 1))
			}
		}
	}
	return undefined{r.str(key).s}
}

// offset returns the byte at which character i of s begins.
func offset(s string, i int) int {
	if i == 0 {
		return 0
	}
	for at := range s {
		if i == 0 {
			return at
		}
		i--
	}
	return len(s)
}

// cut is v[start:end:step] of a list or string, as Python does it.
func (r *run) cut(n *nodes.GetSlice, sc *scope) any {
	v := r.eval(n.Node, sc)
	bound := func(n nodes.Node) (int, bool) {
		if n == nil {
			return 0, false
		}
		v := r.eval(n, sc)
		if v == nil {
			return 0, false
		}
		i, ok := integer(v)
		if !ok {
			r.fail(tandem.Invalid, "a slice wants whole numbers, not %s", kind(v))
		}
		return int(max(min(i, math.MaxInt32), -math.MaxInt32)), true
	}
	from, hasFrom := bound(n.Start)
	to, hasTo := bound(n.End)
	step, hasStep := bound(n.Step)
	if !hasStep {
		step = 1
	}
	if step == 0 {
		r.fail(tandem.Invalid, "a slice's step is 0")
	}
	if t, ok := v.(text); ok && step == 1 {
		r.work(len(t.s))
		count := utf8.RuneCountInString(t.s)
		i, j := bounds(count, from, to, 1, hasFrom, hasTo)
		return t.slice(offset(t.s, i), offset(t.s, max(i, j)))
	}
	switch v.(type) {
	case *dict, undefined:
		r.fail(tandem.Invalid, "%s cannot be sliced", kind(v))
	}
	items := r.items(v)
	i, j := bounds(len(items), from, to, step, hasFrom, hasTo)
	out := &list{}
	for ; step > 0 && i < j || step < 0 && i > j; i += step {
		r.push(out, items[i])
	}
	if _, ok := v.(text); ok {
		b := builder{r: r}
		for _, e := range out.items {
			b.add(e.(text))
		}
		return b.text()
	}
	return out
}

// bounds returns the first index of a slice of n items and the index at which it stops.
func bounds(n, from, to, step int, hasFrom, hasTo bool) (int, int) {
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}
	place := func(i int) int {
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	start, stop := low, high
	if step < 0 {
		start, stop = high, low
	}
	if hasFrom {
		start = place(from)
	}
	if hasTo {
		stop = place(to)
	}
	return start, stop
}

func (r *run) sign(negative bool, v any) any {
	switch v := v.(type) {
	case float64:
		if negative {
			return -v
		}
		return v
	case int64, bool:
		i, _ := integer(v)
		if negative {
			return -i
		}
		return i
	}
	r.fail(tandem.Invalid, "%s has no sign", kind(v))
	return nil
}

func (r *run) binary(n *nodes.BinaryExpression, sc *scope) any {
	left := r.eval(n.Left, sc)
	switch n.Operator.Token.Type {
	case tokens.And:
		if !truth(left) {
			return left
		}
		return r.eval(n.Right, sc)
	case tokens.Or:
		if truth(left) {
			return left
		}
		return r.eval(n.Right, sc)
	}
	right := r.eval(n.Right, sc)
	switch n.Operator.Token.Type {
	case tokens.Equals:
		return r.equal(left, right)
	case tokens.Ne:
		return !r.equal(left, right)
	case tokens.LowerThan:
		return r.compare(left, right) < 0
	case tokens.LowerThanOrEqual:
		return r.compare(left, right) <= 0
	case tokens.GreaterThan:
		return r.compare(left, right) > 0
	case tokens.GreaterThanOrEqual:
		return r.compare(left, right) >= 0
	case tokens.Tilde:
		return r.join(r.str(left), r.str(right))
	case tokens.Addition:
		switch x := left.(type) {
		case text:
			if y, ok := right.(text); ok {
				return r.join(x, y)
			}
		case *list:
			if y, ok := right.(*list); ok {
				r.spend(perItem * (len(x.items) + len(y.items)))
				return &list{items: slices.Concat(x.items, y.items), tuple: x.tuple}
			}
		}
	case tokens.Multiply:
		if v, ok := r.repeat(left, right); ok {
			return v
		}
	}
	return r.arithmetic(n.Operator.Token.Val, left, right)
}

// repeat is a string or list times a number, in either order.
func (r *run) repeat(v, times any) (any, bool) {
	n, ok := integer(times)
	if !ok {
		if n, ok = integer(v); !ok {
			return nil, false
		}
		v = times
	}
	n = max(0, min(n, math.MaxInt32)) // so that the products below stay within int64
	switch v := v.(type) {
	case text:
		r.spend(int(n) * (len(v.s) + 16*len(v.user)))
		if len(v.user) > 0 {
			return caller(strings.Repeat(v.s, int(n))), true
		}
		return lit(strings.Repeat(v.s, int(n))), true
	case *list:
		r.spend(int(n) * perItem * len(v.items))
		return &list{items: slices.Repeat(v.items, int(n)), tuple: v.tuple}, true
	}
	return nil, false
}

// arithmetic computes with numbers as Python does, except that whole numbers beyond 64 bits are an error.
func (r *run) arithmetic(op string, left, right any) any {
	x, xok := number(left)
	y, yok := number(right)
	if !xok || !yok {
		r.fail(tandem.Invalid, "%s %s %s is not defined", kind(left), op, kind(right))
	}
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		r.fail(tandem.Invalid, "division by zero")
	}
	i, iok := integer(left)
	j, jok := integer(right)
	whole := iok && jok
	var f float64
	var n int64
	switch op {
	case "+":
		f, n = x+y, i+j
	case "-":
		f, n = x-y, i-j
	case "*":
		f, n = x*y, i*j
	case "/":
		return x / y
	case "//":
		f = math.Floor(x / y)
		if whole {
			n = (i - modulo(i, j)) / j
			return n
		}
	case "%":
		if whole {
			return modulo(i, j)
		}
		f = x - y*math.Floor(x/y)
	case "**":
		f = math.Pow(x, y)
		if whole = whole && j >= 0 && math.Abs(f) < 1<<53; whole {
			n = int64(f)
		}
	default:
		r.fail(tandem.Unsupported, "operator %s is not one that tandem knows", op)
	}
	if !whole {
		return f
	}
	if math.Abs(f) >= 1<<63 || math.Abs(f-float64(n)) > 4096 {
		r.fail(tandem.Invalid, "%d %s %d does not fit into 64 bits", i, op, j)
	}
	return n
}

// modulo has the sign of j, as in Python.
func modulo(i, j int64) int64 {
	if j == -1 {
		return 0 // and MinInt64 % -1 stays defined
	}
	m := i % j
	if m != 0 && (m < 0) != (j < 0) {
		m += j
	}
	return m
}
