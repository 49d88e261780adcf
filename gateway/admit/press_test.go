package admit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// job is a request that needs a slot for some time, which it may have in parts. Opening takes some time again in each.
type job struct {
	tenant         string
	work, opening  time.Duration
	first, ended   time.Duration // until it had its first slot, and until its end, since it came
	yields, wasted int           // times that it was asked to yield; of these while it was still being opened
}

// run runs j at g.
func (j *job) run(t *testing.T, g *Gate) {
	came := time.Now()
	p, err := g.Enter(context.Background(), Need{Tenant: j.tenant, Tokens: 1})
	if err != nil {
		t.Error(err)
		return
	}
	defer g.Leave(p)
	j.first = time.Since(came)
	wait := func(d time.Duration) (rest time.Duration) {
		begun := time.Now()
		select {
		case <-time.After(d):
			return 0
		case <-g.Asked(p).Done():
			return d - time.Since(begun)
		}
	}
	for j.work > 0 {
		rest := wait(j.opening)
		if rest == 0 {
			g.Opened(p)
			j.work = wait(j.work)
		} else {
			j.wasted++
		}
		if j.work > 0 {
			j.yields++
			if err := g.Yield(context.Background(), p, Want{}); err != nil {
				t.Error(err)
				return
			}
		}
	}
	j.ended = time.Since(came)
}

// play runs jobs, each after the time given with it, and returns when all have ended.
func play(t *testing.T, g *Gate, jobs map[*job]time.Duration) {
	var all sync.WaitGroup
	for j, at := range jobs {
		all.Go(func() {
			testkit.Sleep(at)
			j.run(t, g)
		})
	}
	all.Wait()
	if len(g.inside) > 0 || len(g.tenants) > 0 {
		t.Errorf("%d inside, %d tenants are remembered", len(g.inside), len(g.tenants))
	}
}

// TestSmallRequestsOfOthers: a greedy tenant has all slots with long requests and more waiting. Each small request of another has a
// slot in little more than a second, whenever it comes; and the long ones all end, none much later than they would.
func TestSmallRequestsOfOthers(t *testing.T) {
	for _, sessions := range []int{1, 2, 8} {
		synctest.Test(t, func(t *testing.T) {
			g := New(sessions, 100)
			jobs, long := map[*job]time.Duration{}, []*job{}
			for range 4 * sessions {
				long = append(long, &job{tenant: "greedy", work: time.Minute, opening: 50 * time.Millisecond})
				jobs[long[len(long)-1]] = 0
			}
			var small []*job
			for i := range 20 {
				small = append(small, &job{tenant: "modest", work: 300 * time.Millisecond, opening: 50 * time.Millisecond})
				jobs[small[i]] = 5*time.Second + time.Duration(i*i)*317*time.Millisecond
			}
			play(t, g, jobs)
			for i, j := range small {
				most := 1300 * time.Millisecond
				if sessions == 1 {
					most = 2600 * time.Millisecond // the long one that has the only slot again keeps it for a second at least
				}
				if j.first > most {
					t.Errorf("%d slots: small request %d waited %v", sessions, i, j.first)
				}
			}
			yields := 0
			for _, j := range long {
				if yields += j.yields; j.ended > 5*time.Minute {
					t.Errorf("%d slots: a long request ended after %v", sessions, j.ended)
				}
			}
			if yields > len(small) {
				t.Errorf("%d slots: %d requests were parked for %d small ones", sessions, yields, len(small))
			}
		})
	}
}

// TestNobodyYieldsInVain: a tenant alone never yields, nor do tenants with equal shares; one that has more yields until they are equal.
func TestNobodyYieldsInVain(t *testing.T) {
	for name, x := range map[string]struct {
		slots, a, b int
		yields      int
	}{
		"alone":              {slots: 4, a: 16},
		"no more than fits":  {slots: 8, a: 6, b: 2},
		"until equal":        {slots: 8, a: 16, b: 16, yields: 4},
		"until nearly equal": {slots: 5, a: 16, b: 16, yields: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(x.slots, 100)
				jobs := map[*job]time.Duration{}
				for range x.a {
					jobs[&job{tenant: "a", work: 20 * time.Second}] = 0
				}
				for range x.b {
					jobs[&job{tenant: "b", work: 20 * time.Second}] = 3 * time.Second
				}
				play(t, g, jobs)
				yields := 0
				for j := range jobs {
					yields += j.yields
				}
				if yields != x.yields {
					t.Errorf("%d requests yielded: want %d", yields, x.yields)
				}
			})
		})
	}
}

// TestTenantsTakeTurns: more tenants than slots, and what they have takes long to be opened again. All get on, and at most about a fifth
// of the time goes into that.
func TestTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1, 10)
		const work, opening = time.Minute, 2 * time.Second
		jobs := map[*job]time.Duration{}
		for _, tenant := range []string{"a", "b", "c"} {
			jobs[&job{tenant: tenant, work: work, opening: opening}] = 0
		}
		begun := time.Now()
		play(t, g, jobs)
		for j := range jobs {
			if j.first > 30*time.Second || j.yields < 2 || j.wasted > 2 {
				t.Errorf("tenant %s had its first slot after %v, yielded %d times, %d of these while it was opened", j.tenant,
					j.first, j.yields,
					j.wasted)
			}
		}
		if took := time.Since(begun); took > 3*work*4/3 {
			t.Errorf("%v of work took %v", 3*work, took)
		}
	})
}
