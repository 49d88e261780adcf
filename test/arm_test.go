package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// crossARM is what it takes to build for ARM and to run the result here.
type crossARM struct{ gcc, qemu string }

// armTools finds the tools or skips the test. `make arm` installs them.
func armTools(t *testing.T) crossARM {
	t.Helper()
	const packages = "make arm installs it: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
	if runtime.GOARCH == "arm64" {
		t.Skip("this machine is ARM: the other tests have run on it")
	}
	var x crossARM
	for _, name := range []string{"qemu-aarch64-static", "qemu-aarch64"} {
		if path, err := exec.LookPath(name); err == nil && x.qemu == "" {
			x.qemu = path
		}
	}
	if x.qemu == "" {
		t.Skip("no qemu-aarch64-static; " + packages)
	}
	var err error
	if x.gcc, err = exec.LookPath("aarch64-linux-gnu-gcc"); err != nil {
		t.Skip("no aarch64-linux-gnu-gcc; " + packages)
	}
	if libc, err := exec.Command(x.gcc, "-print-file-name=libc.a").Output(); err != nil ||
		!filepath.IsAbs(strings.TrimSpace(string(libc))) {
		t.Skip("aarch64-linux-gnu-gcc has no libc.a; " + packages)
	}
	return x
}

// build runs a build command of go for ARM. The result is static, so that it needs no libraries.
func (x crossARM) build(t *testing.T, args ...string) {
	t.Helper()
	args = append(args[:len(args)-1:len(args)-1], "-tags", "netgo,osusergo", "-ldflags", `-linkmode external -extldflags "-static"`,
		args[len(args)-1])
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=1", "CC="+x.gcc)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s for arm64: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// run runs a program in dir on a processor that qemu imitates and returns what it prints.
func (x crossARM) run(cpu, dir, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, x.qemu, append([]string{"-cpu", cpu, program}, args...)...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), nil
}

// TestARM builds for ARM and runs the result under qemu: some tests of the kernels, which compare NEON, sdot
// and smmla with the definition, and the main model's logits, which must be those of this machine to the last
// digit. `make arm` runs more of it.
func TestARM(t *testing.T) {
	mayBeSlow(t)
	x := armTools(t)
	w := newWorld(t)
	dir := t.TempDir()
	arm, kernels := filepath.Join(dir, "tandem"), filepath.Join(dir, "kernels.test")

	x.build(t, "test", "-c", "-o", kernels, "../kernels/cpu")
	out, err := x.run("max", "../kernels/cpu", kernels, "-test.short", "-test.v", "-test.run",
		"TestPrograms/MatMul$/.*/(33x|5x)|TestPrograms/Attention$/.*dim:80_|TestPrograms/(Gates|SoftCap)")
	for _, kind := range []string{"MatMul", "Attention", "Gates", "SoftCap"} {
		if err != nil || !strings.Contains(out, "--- PASS: TestPrograms/"+kind) {
			t.Fatalf("the kernels' tests, %s: %v\n%s", kind, err, out)
		}
	}

	x.build(t, "build", "-o", arm, "../cmd/tandem")
	logits := []string{"logits", "--model", targetModel, "--tokens", "1,2,3,564,308", "--generate", "2", "--json"}
	want := w.ok(logits...).stdout
	for _, c := range []struct{ cpu, isa, lacks string }{{"cortex-a72", "auto", "neon-dot"}, {"cortex-a76", "neon-dot", "neon-i8mm"},
		{"max", "neon-i8mm", "avx2"}} {
		if got, err := x.run(c.cpu, ".", arm, append(logits, "--isa", c.isa)...); err != nil || got != want {
			t.Errorf("logits on %s with --isa %s: %v, %s want this machine's: %s", c.cpu, c.isa, err, got, want)
		}
		if _, err := x.run(c.cpu, ".", arm, append(logits, "--isa", c.lacks)...); err == nil ||
			!strings.Contains(err.Error(), "has no "+c.lacks+": want auto or one of") {
			t.Errorf("%s with --isa %s: %v, want a refusal that names what it has", c.cpu, c.lacks, err)
		}
	}
}
