// Package testkit is what tests of several rooms share. Only test files import it.
package testkit

import (
	"bytes"
	"flag"
	"os"
	"strconv"
	"testing"
	"time"
)

// Rewrite says that golden files are to be written anew: flag -rewrite of a test program.
var Rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// patience is how long Eventually and Until wait: far longer than anything takes that is going to happen, on a loaded machine too.
const patience = 2 * time.Minute

// Eventually waits for ok, or fails the test after two minutes: what says what was waited for, or what was wrong all the time.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Until(ok) {
		t.Fatalf("gave up after %v: %s", patience, what)
	}
}

// Until waits up to two minutes for ok and reports whether it came: for goroutines of a test, which may not end it.
func Until(ok func() bool) bool {
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Sleep is time.Sleep in a bubble of testing/synctest, where it takes no time: nobody else may call it. A bubble's clock starts in 2000.
func Sleep(d time.Duration) {
	if time.Now().Year() > 2020 {
		panic("testkit.Sleep by the machine's clock: wait for what is to happen, or test in a bubble")
	}
	time.Sleep(d)
}

// AtOnce lets up to n parallel tests of a package run beside each other, however few processors there are: for packages whose tests wait
// more than they compute. It is called by TestMain, before the tests run; flag -parallel has precedence.
func AtOnce(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // a program that is no test
	}
}

// Golden compares got with a file, or writes the file if Rewrite is set.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if *Rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-rewrite accepts it):\n%s", path, got)
	}
}
