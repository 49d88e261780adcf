// Package campaign disturbs tandems on several boxes, on purpose and for as long as it is told, and writes down what came of it. A box is a
// set of namespaces on this machine: its own network, processes, mounts and, where control groups are writable, memory limit. Boxes share
// no file system, memory or loopback; they reach each other over a bridge that leads nowhere else. Package history judges what was
// written.
//
// The command runs in three places: on the host (Enter), where it makes namespaces of its own; in these, the hub, where it starts boxes,
// injects faults and plays the clients (Run); and as the first process of each box, which mounts the box's files and restarts its processes
// (Inside).
package campaign

import (
	"fmt"
	"slices"
	"strings"
)

// Roles of processes.
const (
	Gateway  = "gateway"
	Verifier = "verifier"
	Drafter  = "drafter"
	NATS     = "nats"
)

// Roles are all roles.
var Roles = []string{Gateway, Verifier, Drafter, NATS}

const (
	firstPort   = 8400 // of a group's processes; ten more for the next group
	gatewayPort = 1
	httpPort    = 2
	serverPort  = 3 // of verifiers
	draftPort   = 4
	natsPort    = 4222
	routePort   = 6222
	hubAddress  = "10.77.0.1"
	network     = "/16"
)

// Member is one process of the layout.
type Member struct {
	Name  string // unique, such as "drafter-2b"
	Role  string
	Box   int // from 1
	Group int // that shares a secret and with it a pool, from 1; 0 for the NATS servers, which serve all groups
	Local bool
	Draft string // a drafter's model
}

// Layout says which process runs where. It is a plain table: whoever wants several gateways over one verifier changes the rows.
type Layout struct {
	Boxes   int
	Members []Member
}

var drafts = []string{"go", "prose", "py", "all"}

// empty is a layout with nothing but the NATS servers, on the first three boxes.
func empty(boxes int) Layout {
	l := Layout{Boxes: boxes}
	for i := range 3 {
		l.Members = append(l.Members, Member{Name: fmt.Sprintf("nats-%d", i+1), Role: NATS, Box: i%boxes + 1})
	}
	return l
}

// Fleet returns the layout of one group over all boxes: a gateway on every second box, which works with the verifiers and drafters of every
// box.
func Fleet(boxes int) Layout {
	l := empty(boxes)
	for i := range boxes {
		for _, role := range []string{Gateway, Verifier, Drafter} {
			if role != Gateway || i%2 == 0 {
				l.Members = append(l.Members, Member{Name: fmt.Sprintf("%s-1%c", role, 'a'+i), Role: role, Box: i + 1, Group: 1,
					Draft: drafts[i%len(drafts)]})
			}
		}
	}
	return l
}

// Groups returns the layout of separate groups, each with one gateway and one verifier: the first within box 1, where it shares memory, and
// each further one over two boxes. With two boxes there is one group, over both.
func Groups(boxes int) Layout {
	l := empty(boxes)
	group, box := 1, 1
	if boxes != 2 {
		l.group(group, 1, 1)
		group, box = 2, 2
	}
	for ; box <= boxes; group, box = group+1, box+2 {
		l.group(group, box, min(box+1, boxes))
	}
	return l
}

// group adds a group with its gateway on one box and its verifier on another, which may be the same.
func (l *Layout) group(n, front, back int) {
	local := front == back
	add := func(role, suffix string, box int, draft string) {
		l.Members = append(l.Members, Member{Name: fmt.Sprintf("%s-%d%s", role, n, suffix), Role: role, Box: box, Group: n, Local: local,
			Draft: draft})
	}
	add(Gateway, "", front, "")
	add(Verifier, "", back, "")
	add(Drafter, "a", back, drafts[(2*n)%len(drafts)])
	add(Drafter, "b", front, drafts[(2*n+1)%len(drafts)])
}

// address is a box's, in the network of the boxes.
func address(box int) string {
	if box == 0 {
		return hubAddress
	}
	return fmt.Sprintf("10.77.1.%d", box)
}

// listen is where a member serves.
func (m Member) listen() string {
	if m.Role == NATS {
		return fmt.Sprintf("%s:%d", address(m.Box), m.port())
	}
	if m.Local && m.Role != Gateway { // in one box, memory is shared by those who talk over sockets
		return "unix:///run/" + m.Name + ".sock"
	}
	return fmt.Sprintf("%s:%d", address(m.Box), m.port())
}

// port is the TCP port at which a member serves.
func (m Member) port() int {
	base := firstPort + 10*m.Group
	switch m.Role {
	case NATS:
		return natsPort + int(m.Name[len(m.Name)-1]-'1') // a box may have two
	case Gateway:
		return base + gatewayPort
	case Verifier:
		return base + serverPort
	}
	return base + draftPort + int(m.Name[len(m.Name)-1]-'a')
}

// http is where a gateway serves HTTP.
func (m Member) http() string {
	return fmt.Sprintf("%s:%d", address(m.Box), firstPort+10*m.Group+httpPort)
}

// of returns the members with a role, in a group or, for 0, in any.
func (l Layout) of(role string, group int) (out []Member) {
	for _, m := range l.Members {
		if m.Role == role && (group == 0 || m.Group == group) {
			out = append(out, m)
		}
	}
	return out
}

// groups returns the numbers of the groups.
func (l Layout) groups() (out []int) {
	for _, m := range l.Members {
		if m.Group != 0 && !slices.Contains(out, m.Group) {
			out = append(out, m.Group)
		}
	}
	return out
}

// Files of a box, read-only.
const (
	program = "/lab/bin/tandem"
	lab     = "/lab/bin/tandem-lab"
	other   = "/lab/bin/other" // another release of tandem, where there is one
	models  = "/lab/models/"
	secrets = "/lab/box/"
)

// command returns the command line of a member, as docs/guides/two-boxes.md has it.
func (l Layout) command(m Member) []string {
	tls := []string{"--tls-cert", secrets + "cert.pem", "--tls-key", secrets + "key.pem", "--tls-ca", secrets + "ca.pem"}
	if m.Role == NATS { // its files are not where the fault of a full disk strikes: a server of NATS does not start without room
		var routes, keys []string
		for _, n := range l.of(NATS, 0) {
			routes = append(routes, n.route())
		}
		for _, g := range l.groups() {
			keys = append(keys, fmt.Sprintf("%ssecret-%d", secrets, g))
		}
		return append([]string{lab, "nats", "--name", m.Name, "--store", "/run/" + m.Name, "--listen", m.listen(), "--cluster", m.route(),
			"--routes", strings.Join(routes, ","), "--secrets", strings.Join(keys, ",")}, tls...)
	}
	var pool []string
	for _, n := range l.of(NATS, 0) {
		pool = append(pool, "tls://"+n.listen())
	}
	args := append([]string{program, m.Role, "--listen", m.listen(), "--pool", strings.Join(pool, ","), "--log-level", "warn",
		"--set", fmt.Sprintf("secret-file=%ssecret-%d", secrets, m.Group), "--set", "grace=1s", "--ready-fd", "3"}, tls...)
	switch m.Role {
	case Gateway:
		for _, v := range l.of(Verifier, m.Group) {
			args = append(args, "--verifier", v.listen())
		}
		return append(args, "--target", models+"gopher-19m-q8_0.gguf", "--http", m.http(),
			"--api-keys", secrets+"keys", "--set", "chat-template="+secrets+"chat.jinja")
	case Verifier:
		return append(args, "--target", models+"gopher-19m-q8_0.gguf", "--threads", "1", "--set", "kv-memory=96MiB",
			"--set", "prefix-store=8MiB", "--set", "cache=/tmp/cache", "--set", "measure=false")
	}
	return append(args, "--draft", models+"gopher-draft-"+m.Draft+"-f16.gguf", "--threads", "1", "--set", "kv-memory=32MiB")
}

// route is the address at which a NATS server meets the others.
func (m Member) route() string {
	return fmt.Sprintf("%s:%d", address(m.Box), routePort+m.port()-natsPort)
}
