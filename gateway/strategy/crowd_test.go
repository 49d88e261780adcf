package strategy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// crowd replays sessions that come at any time and share the passes of a target and of a draft model, on cores that both share: while both
// compute, each takes twice as long. The drafter serves all sessions that wait in the same passes; so does the target, which waits for the
// next one as long as sharing a pass with it saves (schedule.Schedule).
type crowd struct {
	b        *box
	now      float64 // seconds
	sessions []*visitor
	drafts   []job // that wait for the drafter
	drafting work
	pass     work
	free     float64 // when the latest pass ended
}

// visitor is a session of a crowd.
type visitor struct {
	*session
	come, gone float64
	reading    float64 // seconds of the target's passes that read the prompt, before it begins
	begun      float64 // of the round
	round      drafted
	state      visitorState
	until      float64 // of a rest
	came       float64 // into the line
	answered   float64 // end of the latest pass
	rhythm     float64 // mean time from there into the line
	readBusy   float64 // what the drafter reads for it before its next draft
	leave      func()
}

type visitorState int

const (
	away visitorState = iota // not come, or gone
	resting
	drawing // waits for its draft
	inLine
	inPass
)

// job is what a drafter computes for one session: seconds, in that many passes of its model. then is called at its end.
type job struct {
	seconds float64
	passes  int
	then    func()
}

// work is what a model computes.
type work struct {
	left float64 // seconds, alone on the cores; 0: it is idle
	then func()
}

func (c *crowd) seconds(rows int) float64 { return c.b.verified.Time(rows).Seconds() }

// serve replays the texts, which come at these times, and returns the tokens per second of a session, in the mean over its time.
func (b *box) serve(texts []*recorded, times []float64, shared *Shared, names []string, request tandem.Request) (rate float64) {
	c := &crowd{b: b}
	for i, r := range texts {
		req := request
		req.Sampling.Temperature = r.temperature
		v := &visitor{come: times[i], reading: prefill(b.verified, len(r.prompt)).Seconds()}
		v.session = &session{b: b, r: r, req: req, shared: shared, among: names}
		c.sessions = append(c.sessions, v)
	}
	tokens, took := 0, 0.0
	for c.step() {
	}
	for _, v := range c.sessions {
		if !v.done() {
			panic("a session has not ended")
		}
		tokens, took = tokens+len(v.r.text), took+v.gone-v.come
	}
	return float64(tokens) / took
}

// step goes on to the next event; false: there is none.
func (c *crowd) step() bool {
	c.enter()
	c.work()
	pace := 1.0
	if c.drafting.left > 0 && c.pass.left > 0 {
		pace = 0.5
	}
	next := math.Inf(1)
	for _, w := range []*work{&c.drafting, &c.pass} {
		if w.left > 0 {
			next = min(next, c.now+w.left/pace)
		}
	}
	for _, v := range c.sessions {
		switch {
		case v.state == away && v.gone == 0 && v.come > c.now:
			next = min(next, v.come)
		case v.state == resting:
			next = min(next, v.until)
		}
	}
	if until, waits := c.waits(); waits && c.pass.left <= 0 {
		next = min(next, until)
	}
	if math.IsInf(next, 1) {
		return false
	}
	span := next - c.now
	c.now = next
	for _, w := range []*work{&c.drafting, &c.pass} {
		if w.left > 0 {
			if w.left -= span * pace; w.left < 1e-9 {
				then := w.then
				w.left, w.then = 0, nil
				then()
			}
		}
	}
	return true
}

// enter lets sessions go on whose time has come.
func (c *crowd) enter() {
	for _, v := range c.sessions {
		switch {
		case v.state == away && v.gone == 0 && v.come <= c.now && c.pass.left <= 0:
			v.state = inPass // the prompt is read in passes of its own
			c.pass = work{v.reading, func() {
				v.leave = v.shared.Enter()
				v.later = func(seconds float64, opened func()) { c.drafts = append(c.drafts, job{seconds, 0, opened}) }
				v.session.start()
				c.free, v.answered = c.now, c.now
				c.begin(v)
			}}
		case v.state == resting && v.until <= c.now:
			v.state, v.came = inLine, c.now
			if took := c.now - v.answered; v.rhythm == 0 {
				v.rhythm = took
			} else {
				v.rhythm += (took - v.rhythm) / 4
			}
		}
	}
}

// begin begins a round.
func (c *crowd) begin(v *visitor) {
	v.begun, v.round = c.now, v.draft()
	rest := func() {
		for i := range v.round.outcome.Drafts { // what waits for others is the way, to the strategy
			if d := &v.round.outcome.Drafts[i]; d.Got.Passes > 0 {
				d.Away = max(time.Duration((c.now-v.begun)*float64(time.Second))-d.Got.Busy, 0)
			}
		}
		own := v.round.busy - v.round.models // of lookup and the like
		v.state, v.until = resting, c.now+(v.round.rest+max(own, 0)).Seconds()
	}
	if v.round.models == 0 {
		rest()
		return
	}
	passes := 0
	for _, d := range v.round.outcome.Drafts {
		passes = max(passes, d.Got.Passes)
	}
	v.state = drawing
	c.drafts = append(c.drafts, job{v.round.models.Seconds() + v.readBusy, passes, rest})
	v.readBusy = 0
}

// work begins a draft and a pass if their models are idle.
func (c *crowd) work() {
	if c.drafting.left <= 0 && len(c.drafts) > 0 {
		jobs := c.drafts
		c.drafts = nil
		one := 0.0
		if c.b.drafted != nil {
			one = c.b.drafted.Time(1).Seconds()
		}
		total, most := 0.0, 0
		for _, j := range jobs {
			total, most = total+max(j.seconds-one*float64(j.passes), 0), max(most, j.passes)
		}
		for i := range most { // a pass of all that have so many
			rows := 0
			for _, j := range jobs {
				if j.passes > i {
					rows++
				}
			}
			total += c.b.drafted.Time(rows).Seconds()
		}
		c.drafting = work{max(total, 1e-8), func() {
			for _, j := range jobs {
				j.then()
			}
		}}
	}
	line := c.line()
	if _, waits := c.waits(); c.pass.left > 0 || len(line) == 0 || waits {
		return
	}
	rows := 0
	for _, v := range line {
		rows += v.round.outcome.Tree.Len()
		v.state = inPass
	}
	begun := c.now
	c.pass = work{c.seconds(rows), func() {
		c.free = c.now
		for _, v := range line {
			v.answered = c.now
			wall := time.Duration((c.now - v.begun) * float64(time.Second))
			v.readBusy += v.commit(v.round, rows, len(line), wall, time.Duration((c.now-begun)*float64(time.Second))).Seconds()
			if v.done() {
				v.strategy.HandOn()
				v.leave()
				v.gone, v.state = c.now, away
				continue
			}
			c.begin(v)
		}
	}}
}

// line returns the sessions that wait for a pass.
func (c *crowd) line() (list []*visitor) {
	for _, v := range c.sessions {
		if v.state == inLine {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *visitor) int {
		if a.came < b.came {
			return -1
		}
		return 1
	})
	return list
}

// waits reports until when the next pass waits for one more session.
func (c *crowd) waits() (until float64, waits bool) {
	line := c.line()
	if len(line) == 0 {
		return 0, false
	}
	rows := 0
	for _, v := range line {
		rows += v.round.outcome.Tree.Len()
	}
	var next *visitor
	due := math.Inf(1)
	for _, v := range c.sessions {
		if at := v.answered + v.rhythm; (v.state == resting || v.state == drawing) && v.rhythm > 0 && at < due &&
			c.now <= v.answered+2*v.rhythm+1e-3 {
			next, due = v, at
		}
	}
	if next == nil {
		return 0, false
	}
	theirs := next.round.outcome.Tree.Len()
	saved := max(c.seconds(rows)+c.seconds(theirs)-c.seconds(rows+theirs), c.seconds(rows)/10)
	until = max(line[0].came, c.free) + saved
	if due > until || c.now >= until {
		return 0, false
	}
	return min(until, next.answered+2*next.rhythm+1.1e-3), true
}

// TestCrowds replays sessions that share passes: so many that come at once, and eight that come at random. It prints the tokens a second of
// a session, from its request on, over plain decoding with the same arrivals.
func TestCrowds(t *testing.T) {
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range benches {
		var out strings.Builder
		reached := bars{many: math.Inf(1)}
		for _, of := range arrivals {
			all, alone := x.crowded(t, of, rules, x.everyone(), true), x.crowded(t, of, rules, free, true)
			fmt.Fprintf(&out, "\n%-24s planner %.3f, free alone %.3f", of.name, all, alone)
			reached.many = min(reached.many, all)
		}
		t.Log(x.name + out.String())
		x.check(t, reached)
	}
}

// arrival says how many sessions come, and in the mean how many seconds apart.
type arrival struct {
	name  string
	count int
	gap   float64
}

var arrivals = []arrival{{"1 alone", 1, 0}, {"4 at once", 4, 0}, {"8 at once", 8, 0}, {"16 at once", 16, 0}, {"8 at random, 1 s", 8, 1}}

// crowded returns the rate of the planner with those drafters over that of plain decoding, for arrivals of one half of the texts. Before
// them the gateway has served as many of the other half, which came alike.
func (x bench) crowded(t testing.TB, of arrival, rules Rules, names []string, verdict bool) float64 {
	pick := func(verdict bool) (texts []*recorded) {
		all := x.texts(t, verdict)
		for i := range of.count {
			texts = append(texts, all[i*7%len(all)])
		}
		return texts
	}
	r := rand.New(rand.NewPCG(45, 0))
	times := make([]float64, of.count)
	for i := 1; i < of.count; i++ {
		times[i] = times[i-1] + of.gap*r.ExpFloat64()
	}
	rate := func(names []string, request tandem.Request) float64 {
		shared := x.gateway(rules)
		x.box.serve(pick(!verdict), times, shared, names, request)
		return x.box.serve(pick(verdict), times, shared, names, request)
	}
	return rate(names, planned()) / rate(nil, tandem.Request{Strategy: tandem.StrategyFixed})
}
