// Package arrows counts which files of a room use each other, and how many of these arrows run back up: those that remain when the files
// are put into the order in which most arrows run down. Where none does, a room can be read from top to bottom.
package arrows

import (
	"cmp"
	"fmt"
	"go/types"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// An Arrow runs from a file to one that declares names which it uses. Files are named as in Room.Files.
type Arrow struct {
	From, To string
	Names    []string // functions, types, methods, fields, variables and constants, sorted
}

// A Room is a package with those in folders below it, without tests.
type Room struct {
	Name  string   // its folder, from the module's root
	Files []string // in the order that was found, by their paths from the room's folder
	Down  []Arrow  // those to a later file
	Up    []Arrow  // those to an earlier file
}

// Count reads the rooms in folders below root, a module's root, as the go command builds them for this machine. It fails if a room cannot
// be built.
func Count(root string, folders []string) ([]Room, error) {
	var rooms []Room
	for _, folder := range folders {
		loaded, err := packages.Load(&packages.Config{Dir: root, Mode: packages.NeedName | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps | packages.NeedCompiledGoFiles},
			"./"+filepath.ToSlash(folder)+"/...")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		for _, p := range loaded {
			if len(p.Errors) > 0 {
				return nil, fmt.Errorf("%s: %w", folder, p.Errors[0])
			}
		}
		room, err := filepath.Abs(filepath.Join(root, folder))
		if err != nil {
			return nil, err
		}
		files, uses := read(room, loaded)
		rooms = append(rooms, arrange(folder, files, uses))
	}
	return rooms, nil
}

type pair struct{ from, to string }

// read returns the files below room, sorted, and the names by which each uses another.
func read(room string, loaded []*packages.Package) ([]string, map[pair]map[string]bool) {
	files, uses := map[string]bool{}, map[pair]map[string]bool{}
	for _, p := range loaded {
		for _, syntax := range p.Syntax {
			if from, inside := below(room, p.Fset.Position(syntax.Package).Filename); inside {
				files[from] = true
			}
		}
		for ident, object := range p.TypesInfo.Uses {
			from, inside := below(room, p.Fset.Position(ident.Pos()).Filename)
			to, declared := below(room, p.Fset.Position(object.Pos()).Filename)
			if !inside || !declared || from == to || !shared(object) {
				continue
			}
			if uses[pair{from, to}] == nil {
				uses[pair{from, to}] = map[string]bool{}
			}
			uses[pair{from, to}][object.Name()] = true
		}
	}
	return slices.Sorted(maps.Keys(files)), uses
}

// below returns the path of a file from a folder, and whether the file lies below it. What the compiler generates lies elsewhere.
func below(folder, file string) (string, bool) {
	return strings.CutPrefix(file, folder+string(filepath.Separator))
}

// shared reports whether other files can name an object: packages, labels and what functions declare for themselves cannot be.
func shared(o types.Object) bool {
	switch o := o.(type) {
	case *types.Var:
		return o.IsField() || o.Parent() == o.Pkg().Scope()
	case *types.Func:
		return true
	case *types.TypeName, *types.Const:
		return o.Parent() == o.Pkg().Scope()
	}
	return false
}

// Starts of the search for an order, and the seed of their shuffles: the same room always gives the same count.
const (
	starts = 50
	seed   = 1
)

// arrange finds an order of the files with few arrows back up. Files that do not reach each other both ways stand in the order of their
// arrows, none of which runs back up. In each ring of files that do, from shuffled orders, each file in turn goes to its best place, until
// none moves. The least number of arrows back up is the smallest feedback arc set, which no fast way is known to find.
func arrange(name string, files []string, uses map[pair]map[string]bool) Room {
	index := map[string]int{}
	for i, f := range files {
		index[f] = i
	}
	arrow := make([][]bool, len(files))
	for i := range arrow {
		arrow[i] = make([]bool, len(files))
	}
	for p := range uses {
		arrow[index[p.from]][index[p.to]] = true
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var best []int
	for _, ring := range rings(arrow) {
		least := ring
		for range starts {
			order := slices.Clone(ring)
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			improve(order, arrow)
			if up(order, arrow) < up(least, arrow) {
				least = order
			}
		}
		best = append(best, least...)
	}
	out := Room{Name: name, Files: make([]string, len(files))}
	place := map[string]int{}
	for i, f := range best {
		out.Files[i] = files[f]
		place[files[f]] = i
	}
	for p, names := range uses {
		a := Arrow{p.from, p.to, slices.Sorted(maps.Keys(names))}
		if place[p.to] > place[p.from] {
			out.Down = append(out.Down, a)
		} else {
			out.Up = append(out.Up, a)
		}
	}
	for _, list := range [][]Arrow{out.Down, out.Up} {
		slices.SortFunc(list, func(a, b Arrow) int {
			return cmp.Or(place[a.From]-place[b.From], place[a.To]-place[b.To])
		})
	}
	return out
}

// rings returns the strongly connected components (Tarjan, 1972), each before those that it has arrows to.
func rings(arrow [][]bool) (out [][]int) {
	seen, low := make([]int, len(arrow)), make([]int, len(arrow)) // seen: when it was reached, from 1
	var open []int                                                // reached, and not yet in a ring
	reached := 0
	var visit func(from int)
	visit = func(from int) {
		reached++
		seen[from], low[from] = reached, reached
		open = append(open, from)
		for to, there := range arrow[from] {
			switch {
			case !there:
			case seen[to] == 0:
				visit(to)
				low[from] = min(low[from], low[to])
			case slices.Contains(open, to):
				low[from] = min(low[from], seen[to])
			}
		}
		if low[from] == seen[from] {
			i := slices.Index(open, from)
			out, open = append(out, slices.Clone(open[i:])), open[:i]
		}
	}
	for from := range arrow {
		if seen[from] == 0 {
			visit(from)
		}
	}
	slices.Reverse(out)
	return out
}

// improve moves each file to the place with the fewest arrows back up, while that helps.
func improve(order []int, arrow [][]bool) {
	for moved := true; moved; {
		moved = false
		for from := range order {
			best, gain, change := from, 0, 0
			for to := from + 1; to < len(order); to++ { // past order[to], which then stands above
				if change += turn(arrow, order[from], order[to]); change < gain {
					best, gain = to, change
				}
			}
			change = 0
			for to := from - 1; to >= 0; to-- {
				if change += turn(arrow, order[to], order[from]); change < gain {
					best, gain = to, change
				}
			}
			if best != from {
				f := order[from]
				order = slices.Insert(slices.Delete(order, from, from+1), best, f)
				moved = true
			}
		}
	}
}

// turn returns how many more arrows run back up when a file and the one right below it change places.
func turn(arrow [][]bool, above, below int) (n int) {
	if arrow[above][below] {
		n++
	}
	if arrow[below][above] {
		n--
	}
	return n
}

func up(order []int, arrow [][]bool) (n int) {
	for i, from := range order {
		for _, to := range order[:i] {
			if arrow[from][to] {
				n++
			}
		}
	}
	return n
}
