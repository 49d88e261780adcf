package devices

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Energy adds up what this machine's meters tell while it is open. A nil Energy has no meters.
type Energy struct {
	Names  []string // of the meters
	Absent []string // the kinds of which there is none here, each with why

	mu     sync.Mutex
	meters []func(passed time.Duration) float64 // joules since the call before
	joules []float64
	at     time.Time
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// energyBeat is how often meters of power are read.
const energyBeat = 50 * time.Millisecond

// OpenEnergy finds the meters: counters of powercap, sensors of kind INA, both below root ("/"), and what a program like nvidia-smi tells
// of the GPU with that index. The caller closes it.
func OpenEnergy(root, smi, gpu string) *Energy {
	ctx, stop := context.WithCancel(context.Background())
	e := &Energy{at: time.Now(), stop: stop}
	e.counters(filepath.Join(root, "sys/class/powercap"))
	e.sensors(filepath.Join(root, "sys/class/hwmon"))
	e.program(ctx, smi, gpu)
	e.joules = make([]float64, len(e.meters))
	e.done.Go(func() {
		tick := time.NewTicker(energyBeat)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				e.Joules()
			}
		}
	})
	return e
}

// Close ends the reading.
func (e *Energy) Close() {
	e.stop()
	e.done.Wait()
}

// Joules returns what each meter has told since OpenEnergy.
func (e *Energy) Joules() []float64 {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for i, m := range e.meters {
		e.joules[i] += m(now.Sub(e.at))
	}
	e.at = now
	return append([]float64(nil), e.joules...)
}

// since returns the joules after before, each divided by n.
func (e *Energy) since(before []float64, n int) []float64 {
	now := e.Joules()
	for i := range now {
		now[i] = (now[i] - before[i]) / float64(max(1, n))
	}
	return now
}

func (e *Energy) add(name string, m func(time.Duration) float64) {
	e.Names, e.meters = append(e.Names, name), append(e.meters, m)
}

// numberIn reads a number from a file.
func numberIn(path string) (float64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
}

func textIn(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// counters adds the packages of powercap, which count microjoules and begin again at the end of their range.
func (e *Energy) counters(folder string) {
	all, _ := filepath.Glob(filepath.Join(folder, "*:[0-9]*"))
	why := "powercap: none in " + folder
	for _, dir := range all {
		if strings.Count(filepath.Base(dir), ":") != 1 {
			continue // a part of a package
		}
		path := filepath.Join(dir, "energy_uj")
		last, err := numberIn(path)
		if err != nil {
			why = fmt.Sprintf("powercap: %v (root may read it)", err)
			continue
		}
		span, _ := numberIn(filepath.Join(dir, "max_energy_range_uj"))
		e.add("powercap "+textIn(filepath.Join(dir, "name")), func(time.Duration) float64 {
			now, err := numberIn(path)
			if err != nil {
				return 0
			}
			spent := now - last
			if last = now; spent < 0 {
				spent += span
			}
			return spent / 1e6
		})
		why = ""
	}
	e.lacks(why)
}

func (e *Energy) lacks(why string) {
	if why != "" {
		e.Absent = append(e.Absent, why)
	}
}

// sensors adds the channels of INA sensors, as a Jetson has them: millivolts times milliamperes.
func (e *Energy) sensors(folder string) {
	all, _ := filepath.Glob(filepath.Join(folder, "*", "name"))
	why := "INA sensors (tegrastats): none in " + folder
	for _, name := range all {
		if !strings.HasPrefix(textIn(name), "ina") {
			continue
		}
		dir := filepath.Dir(name)
		labels, _ := filepath.Glob(filepath.Join(dir, "in*_label"))
		for _, l := range labels {
			channel := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(l), "in"), "_label")
			volts, amperes := filepath.Join(dir, "in"+channel+"_input"), filepath.Join(dir, "curr"+channel+"_input")
			if _, err := numberIn(amperes); err != nil {
				continue // a sum of others
			}
			e.add("INA "+textIn(l), func(passed time.Duration) float64 {
				v, _ := numberIn(volts)
				a, _ := numberIn(amperes)
				return v * a / 1e6 * passed.Seconds()
			})
			why = ""
		}
	}
	e.lacks(why)
}

// program adds what nvidia-smi tells of a GPU, in watts, from its first line on.
func (e *Energy) program(ctx context.Context, smi, gpu string) {
	cmd := exec.CommandContext(ctx, smi, "--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id="+gpu, "--loop-ms=100")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.lacks(fmt.Sprintf("%s: %v", filepath.Base(smi), err))
		return
	}
	lines := bufio.NewScanner(out)
	first := "no power"
	if lines.Scan() {
		first = strings.TrimSpace(lines.Text())
	}
	watts, err := strconv.ParseFloat(first, 64)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		e.lacks(fmt.Sprintf("%s: it tells %q of the GPU's power", filepath.Base(smi), first))
		return
	}
	var mu sync.Mutex
	e.add(filepath.Base(smi)+", the GPU", func(passed time.Duration) float64 {
		mu.Lock()
		defer mu.Unlock()
		return watts * passed.Seconds()
	})
	e.done.Go(func() {
		for lines.Scan() {
			if w, err := strconv.ParseFloat(strings.TrimSpace(lines.Text()), 64); err == nil {
				mu.Lock()
				watts = w
				mu.Unlock()
			}
		}
		_ = cmd.Wait()
	})
}
