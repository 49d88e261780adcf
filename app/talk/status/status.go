// Package status says what a gateway and its processes do: what tandem ps and top print.
package status

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/roles/verifier"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/telemetry"
)

// Status is a gateway and the processes behind it.
type Status struct {
	Model     string    `json:"model"`
	Version   string    `json:"version"`
	Context   int       `json:"context"`
	Processes []Process `json:"processes"`
	Fleet     []Member  `json:"fleet,omitempty"`
	Verbose   bool      `json:"-"` // Print shows ids, and what else few need
}

// Member is a verifier or a gateway that shares the gateway's pool, as it announces itself.
type Member struct {
	Role      string   `json:"role"`
	Address   string   `json:"address"`
	State     string   `json:"state"`
	Model     string   `json:"model,omitempty"`
	Version   string   `json:"version,omitempty"`
	Identity  string   `json:"identity,omitempty"`
	Running   int      `json:"running"`
	Waiting   int      `json:"waiting"`
	Pages     int      `json:"pages,omitempty"`
	FreePages int      `json:"free_pages,omitempty"`
	Lease     *float64 `json:"lease_seconds,omitempty"` // absent: it never announced itself
	HTTP      string   `json:"http,omitempty"`
	Host      string   `json:"host,omitempty"`
}

// where returns the member's address. One that is of use on the member's host alone is named with that: other hosts have the same.
func (m Member) where() string {
	if m.Host == "" {
		return m.Address
	}
	host, _, _ := net.SplitHostPort(m.Address)
	if strings.HasPrefix(m.Address, "unix://") || host == "localhost" || net.ParseIP(host).IsLoopback() {
		return m.Address + " on " + m.Host
	}
	return m.Address
}

// Process is one process behind a gateway, or the gateway, as the gateway describes it.
type Process struct {
	Role     string           `json:"role"`
	Up       bool             `json:"up"`
	Model    string           `json:"model,omitempty"`
	PID      int              `json:"pid,omitempty"`
	Threads  int              `json:"threads,omitempty"`
	Device   string           `json:"device,omitempty"`
	ISA      string           `json:"isa,omitempty"`
	Identity string           `json:"identity,omitempty"`
	Lineage  string           `json:"lineage,omitempty"`
	Ways     []string         `json:"ways,omitempty"` // the target's self-drafts
	Protocol uint32           `json:"protocol,omitempty"`
	Counters map[string]int64 `json:"counters,omitempty"`
	Brings   string           `json:"brings,omitempty"` // what a profile says that a draft brings
}

// Measured sets Brings of each drafter to what brings returns for the identities of the verifier's model and the draft; "": nothing known.
func (r Status) Measured(brings func(target, draft string) string) {
	target := ""
	for _, p := range r.Processes {
		if p.Role == "verifier" {
			target = p.Identity
		}
	}
	for i := range r.Processes {
		if p := &r.Processes[i]; p.Role == "drafter" && p.Identity != "" {
			p.Brings = brings(target, p.Identity)
		}
	}
}

// Of returns a gateway's description of itself in the form that is printed.
func Of(d *tandemv1.DescribeResponse) Status {
	out := Status{Model: d.GetModel(), Version: d.GetVersion(), Context: int(d.GetContext())}
	for _, p := range d.GetProcesses() {
		out.Processes = append(out.Processes, Process{Role: p.GetRole(), Up: p.GetUp(), Model: p.GetModel(), PID: int(p.GetPid()),
			Threads: int(p.GetThreads()), Device: p.GetDevice(), ISA: p.GetIsa(),
			Identity: p.GetIdentity(), Lineage: p.GetLineage(), Ways: p.GetWays(), Protocol: p.GetProtocol(), Counters: p.GetCounters()})
	}
	for _, m := range d.GetFleet() {
		member := Member{Role: m.GetRole(), Address: m.GetAddress(), State: m.GetState(), Model: m.GetModel(), Version: m.GetVersion(),
			Identity: m.GetIdentity(), Running: int(m.GetRunning()), Waiting: int(m.GetWaiting()), Pages: int(m.GetPages()),
			FreePages: int(m.GetFreePages()), HTTP: m.GetHttp(), Host: m.GetHost()}
		if m.LeaseMs != nil {
			seconds := float64(m.GetLeaseMs()) / 1e3
			member.Lease = &seconds
		}
		out.Fleet = append(out.Fleet, member)
	}
	return out
}

// Print writes the processes as a table, and what waits and is being read below it. On one box it fits into 100 columns, unless a model's
// name is long or r is verbose.
func (r Status) Print(to io.Writer) error {
	to = terminal.Printable{To: to}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	row := func(verbose []any, cells ...any) {
		if r.Verbose {
			cells = slices.Insert(cells, 5, verbose[:2]...)
			cells = append(cells, verbose[2:]...)
		}
		fmt.Fprintln(w, strings.TrimSuffix(fmt.Sprintf(strings.Repeat("%v\t", len(cells)), cells...), "\t"))
	}
	row([]any{"ISA", "KV PAGES", "IDENTITY"}, "ROLE", "STATE", "PID", "DEVICE", "THREADS", "RESTARTS", "MODEL")
	for _, p := range r.Processes {
		state := "down"
		if p.Up {
			state = "up"
		}
		verbose := []any{cmp.Or(p.ISA, "-"), p.counter("kv.pages"), cmp.Or(terminal.Shown(p.Identity), "-")}
		models := []string{cmp.Or(terminal.Shown(p.model()), "-")}
		if !r.Verbose { // drafts in one process have a line each
			models = strings.Split(models[0], ", ")
		}
		row(verbose, p.Role, state, orDash(p.PID), cmp.Or(p.Device, "-"), orDash(p.Threads), p.counter("restarts"), models[0])
		for _, more := range models[1:] {
			row(nil, "", "", "", "", "", "", more)
		}
	}
	err := w.Flush()
	lines := []string{poolLine(r.Processes), prefillLine(r.Processes), awayLine(r.Processes)}
	for _, p := range r.Processes {
		lines = append(lines, terminal.Shown(p.Brings))
	}
	for _, line := range lines {
		if line != "" {
			_, more := fmt.Fprintln(to, wrapped(line))
			err = errors.Join(err, more)
		}
	}
	return errors.Join(err, r.printFleet(to))
}

// wrapped breaks a line behind commas, so that it fits 100 columns.
func wrapped(line string) string {
	out, column := "", 0
	for i, part := range strings.SplitAfter(line, ", ") {
		if i > 0 && column+utf8.RuneCountInString(part) > 100 {
			out, column = strings.TrimSuffix(out, " ")+"\n  ", 2
		}
		out, column = out+part, column+utf8.RuneCountInString(part)
	}
	return out
}

// awayLine says how far away the drafters are that rounds have asked, which the planner adds to what their drafts cost; "" for nothing.
func awayLine(all []Process) string {
	var ways []string
	for _, p := range all {
		for _, name := range slices.Sorted(maps.Keys(p.Counters)) {
			if drafter, ok := strings.CutPrefix(name, gateway.AwayOf); ok {
				ways = append(ways, fmt.Sprintf("%s %.1f ms", terminal.Shown(drafter), float64(p.Counters[name])/1e3))
			}
		}
	}
	if len(ways) == 0 {
		return ""
	}
	return "the way to a drafter and back: " + strings.Join(ways, ", ")
}

// printFleet writes the members of a fleet as a table; nothing if there are none, or, unless r is verbose, only one gateway and one
// verifier, whose states the table above shows.
func (r Status) printFleet(to io.Writer) error {
	roles, told := map[string]int{}, r.Verbose && len(r.Fleet) > 0
	for _, m := range r.Fleet {
		roles[m.Role]++
		told = told || roles[m.Role] > 1 || m.State == "draining" || m.State == "lapsed"
	}
	if !told {
		return nil
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	identity := func(id string) string {
		if !r.Verbose {
			return ""
		}
		return "\t" + id
	}
	fmt.Fprintln(w, "\nFLEET\tSTATE\tADDRESS\tRUNNING\tWAITING\tFREE PAGES\tLEASE\tMODEL"+identity("IDENTITY"))
	for _, m := range r.Fleet {
		free, lease := "-", "-"
		if m.Pages > 0 {
			free = fmt.Sprintf("%d of %d", m.FreePages, m.Pages)
		}
		if m.Lease != nil {
			lease = fmt.Sprintf("%.1f s", max(0, *m.Lease))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s%s\n", m.Role, m.State, cmp.Or(terminal.Shown(m.where()), "-"), m.Running,
			m.Waiting, free, lease, cmp.Or(terminal.Shown(m.Model), "-"), identity(cmp.Or(terminal.Shown(m.Identity), "-")))
	}
	return w.Flush()
}

// mostShown bounds the sessions that a line names.
const mostShown = 8

// prefillLine says how far the verifier has read the prompts of which sessions; "" if it reads none.
func prefillLine(all []Process) string {
	for _, p := range all {
		n := p.Counters[telemetry.Prefills]
		if p.Role != "gateway" || n == 0 {
			continue
		}
		line := fmt.Sprintf("prefilling: %d sessions, %d of %d tokens", n, p.Counters[telemetry.PrefillDone],
			p.Counters[telemetry.PrefillTotal])
		var of []string
		for _, name := range slices.Sorted(maps.Keys(p.Counters)) {
			if id, found := strings.CutSuffix(name, ".done"); found && strings.HasPrefix(id, gateway.PrefillOf) && len(of) < mostShown {
				of = append(of, fmt.Sprintf("%s %d of %d", strings.TrimPrefix(id, gateway.PrefillOf),
					p.Counters[name], p.Counters[id+".total"]))
			}
		}
		if len(of) > 0 {
			line += " (" + strings.Join(of, ", ") + ")"
		}
		return line
	}
	return ""
}

// model names the process's model and, behind a plus, its self-drafts.
func (p Process) model() string {
	return strings.Join(append([]string{p.Model}, p.Ways...), "+")
}

// poolLine says which tickets wait in the pool, whose they are, and which wait to get in; "" if the verifier does not tell.
func poolLine(all []Process) string {
	line, paused := "", int64(0)
	for _, p := range all {
		if p.Role == "drafter" {
			paused += p.Counters["pool.paused"]
		}
		most := p.Counters["pool.limit"]
		if p.Role != "verifier" || most == 0 {
			continue
		}
		line = fmt.Sprintf("pool: %d of %d tickets", p.Counters["pool.depth"], most)
		if p.Counters["pool.depth"] == 0 {
			continue
		}
		var of []string
		for _, name := range slices.Sorted(maps.Keys(p.Counters)) {
			if who, found := strings.CutPrefix(name, verifier.PoolOf); found {
				of = append(of, fmt.Sprintf("%s %d", who, p.Counters[name]))
			}
		}
		line += fmt.Sprintf(" (%s), the oldest for %.1f ms", strings.Join(of, ", "), float64(p.Counters["pool.oldest_us"])/1e3)
	}
	if line != "" && paused > 0 {
		line += fmt.Sprintf("; %d drafts wait for room", paused)
	}
	return line
}

// counter prints a counter that not every process has.
func (p Process) counter(name string) string {
	if n, found := p.Counters[name]; found {
		return fmt.Sprint(n)
	}
	return "-"
}

func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// Activity is what a gateway's processes have done up to a point in time.
type Activity struct {
	at       time.Time
	verifier map[string]int64
	drafts   int64 // trees
	nodes    int64 // of them, roots not counted
}

// ActivityOf returns the activity up to at, the time when the gateway gave the description d.
func ActivityOf(d *tandemv1.DescribeResponse, at time.Time) Activity {
	out := Activity{at: at}
	for _, p := range d.GetProcesses() {
		switch n := p.GetCounters(); p.GetRole() {
		case "verifier":
			out.verifier = n
		case "drafter":
			out.drafts += n["drafts"]
			out.nodes += n["drafts.nodes"]
		}
	}
	return out
}

// Print writes one line of rates since before; Status.Print tells what is in the pool. A process that was restarted in between counts
// from 0.
func (a Activity) Print(w io.Writer, before Activity) error {
	seconds := a.at.Sub(before.at).Seconds()
	since := func(name string) int64 {
		if n := a.verifier[name] - before.verifier[name]; n >= 0 {
			return n
		}
		return a.verifier[name]
	}
	passes, verdicts := since("passes"), since("verdicts")
	perPass := 0.0
	if passes > 0 {
		perPass = float64(since("passes.rows")) / float64(passes)
	}
	_, err := fmt.Fprintf(w, "%s  %.1f passes/s of %.1f rows  %.0f verdicts/s  busy %.0f %%  %.0f drafts/s of %.0f nodes/s\n",
		a.at.Format(time.TimeOnly), float64(passes)/seconds, perPass, float64(verdicts)/seconds,
		float64(since("passes.busy_us"))/seconds/1e4,
		max(float64(a.drafts-before.drafts), 0)/seconds, max(float64(a.nodes-before.nodes), 0)/seconds)
	return err
}
