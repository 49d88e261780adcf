package campaign

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestMain plays a process that tells the time, for TestClock.
func TestMain(m *testing.M) {
	if os.Getenv("TELL_TIME") == "" {
		os.Exit(m.Run())
	}
	begun := time.Now()
	for range 4 { // threads that read the time all the while
		go func() {
			for !time.Now().IsZero() {
			}
		}()
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		now := time.Now()
		fmt.Println(now.Unix(), int64(now.Sub(begun)/time.Millisecond))
	}
}

// TestClock: a process is made to see another wall clock, again another, and the right one; its monotonic clock goes on.
func TestClock(t *testing.T) {
	if _, err := findVDSO(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TELL_TIME=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	lines, last := bufio.NewReader(out), int64(0)
	tell := func(by time.Duration) {
		t.Helper()
		fmt.Fprintln(in)
		var wall, mono int64
		line, err := lines.ReadString('\n')
		if _, scan := fmt.Sscan(line, &wall, &mono); err != nil || scan != nil {
			t.Fatalf("%q: %v, %v", line, err, scan)
		}
		if off := time.Duration(wall)*time.Second - time.Duration(time.Now().Add(by).Unix())*time.Second; off.Abs() > 2*time.Second {
			t.Errorf("its wall clock differs by %v from what it should be", off)
		}
		if mono < last || mono > last+60_000 {
			t.Errorf("its monotonic clock went from %d to %d ms", last, mono)
		}
		last = mono
	}
	tell(0)
	for _, by := range []time.Duration{400 * 24 * time.Hour, -time.Hour, 0, -50 * 365 * 24 * time.Hour, 0} {
		for range 20 {
			if err := stepClock(cmd.Process.Pid, by); err != nil {
				t.Fatal(err)
			}
			tell(by)
		}
	}
}
