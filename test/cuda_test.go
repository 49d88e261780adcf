package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// cudaImage builds what the image drafter-cuda holds, with more environment, or skips the test where there is no CUDA compiler.
func cudaImage(t *testing.T, env ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	cmd := exec.Command("scripts/cuda", "image", dir)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.ExitCode() == 3 {
		t.Skipf("no CUDA here: %s", out)
	}
	if err != nil {
		t.Fatalf("test/scripts/cuda image: %v\n%s", err, out)
	}
	return dir
}

// startsWithoutGPU checks what a program with CUDA does on a machine without a driver. run returns what it prints, and its error holds
// what it prints to stderr.
func startsWithoutGPU(t *testing.T, run func(args ...string) (string, error)) {
	t.Helper()
	const why = "there is no NVIDIA driver: libcuda.so.1: cannot open shared object file"
	if out, err := run("version"); err != nil || !strings.Contains(out, "cuda: none: "+why) {
		t.Errorf("version: %q, %v: want that there is no driver", out, err)
	}
	logits := []string{"logits", "--tokens", "1,2,3", "--threads", "1", "--device"}
	if out, err := run(append(logits, "cuda")...); err == nil || !strings.Contains(err.Error(), "tandem: --device cuda: "+why) {
		t.Errorf("--device cuda: %q, %v: want why it cannot be used", out, err)
	}
	want := newWorld(t).ok(append(logits, "cpu")...).stdout
	if out, err := run(append(logits, "auto")...); err != nil || out != want {
		t.Errorf("--device auto: %v\n%s\nwant\n%s", err, out, want)
	}
}

// TestCUDA: the program with CUDA, with no other files than those of its image, starts where there is no driver.
func TestCUDA(t *testing.T) {
	mayBeSlow(t)
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("there is a GPU here: test/scripts/gpu-check tests with it")
	}
	image := cudaImage(t)
	if os.Getuid() != 0 {
		t.Skip("only root may run a program in another root folder")
	}
	startsWithoutGPU(t, func(args ...string) (string, error) {
		cmd := exec.Command("/tandem", args...)
		cmd.SysProcAttr, cmd.Dir, cmd.Env = &syscall.SysProcAttr{Chroot: image}, "/", []string{"HOME=/"}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			err = errors.New(stderr.String())
		}
		return string(out), err
	})
}

// TestCUDAOnARM is TestCUDA for a Jetson's processor, which qemu imitates.
func TestCUDAOnARM(t *testing.T) {
	mayBeSlow(t)
	x := armTools(t)
	image := cudaImage(t, "GOARCH=arm64", "CC="+x.gcc)
	t.Setenv("QEMU_LD_PREFIX", image) // where qemu looks for the loader and libraries
	startsWithoutGPU(t, func(args ...string) (string, error) {
		return x.run("cortex-a76", image, filepath.Join(image, "tandem"), args...)
	})
}

// TestDevices: a device that is not there, or none at all, is refused before anything is loaded, with what would be right.
func TestDevices(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"logits", "--tokens", "1", "--device", "gpu"}, 2, `--device is "gpu": no processor is called "gpu": want cpu, cuda, cuda:N`},
		{[]string{"logits", "--tokens", "1", "--device", "cuda:-1"}, 2, `--device is "cuda:-1": no GPU has the number "-1": want`},
		{[]string{"generate", "--prompt", "x", "--draft-device", "cuda:x"}, 2, `--draft-device is "cuda:x": no GPU has the number "x": want`},
		{[]string{"generate", "--prompt", "x", "--draft-device", "cuda"}, 1, "--draft-device cuda: this tandem is built without CUDA"},
		{[]string{"logits", "--tokens", "1", "--gpu-memory", "0"}, 2, `--gpu-memory: "0": want the memory for at least one layer`},
		{[]string{"verifier", "--gpu-memory=-1GiB"}, 2, `--gpu-memory: "-1GiB": want the memory for at least one layer`},
		{[]string{"verifier", "--gpu-memory", "1GiB", "--device", "cuda"}, 2, "--gpu-memory 1.0 GiB with --device cuda: it is for"},
		{[]string{"up", "--gpu-memory", "1GiB", "--device", "auto"}, 2, "--gpu-memory 1.0 GiB with --device auto: it is for"},
		{[]string{"logits", "--tokens", "1", "--gpu-memory", "1GiB"}, 1, "--gpu-memory 1.0 GiB: this tandem is built without CUDA"},
		{[]string{"generate", "--prompt", "x", "--gpu-memory", "1GiB"}, 1, "--gpu-memory 1.0 GiB: this tandem is built without CUDA"},
		{[]string{"bench", "kernels"}, 2, "./tandem-lab bench kernels"},
		{[]string{"drafter", "--device", "cuda:1"}, 1, "--device cuda:1: this tandem is built without CUDA"},
	} {
		if r := w.run(tc.args...); r.code != tc.code || !strings.Contains(r.stderr, tc.want) {
			t.Errorf("%v: exit code %d, %s\nwant %d and %q", tc.args, r.code, r.stderr, tc.code, tc.want)
		}
	}
	r := w.ok("logits", "--tokens", "1", "--device", "auto")
	if !strings.Contains(r.stderr, "--device auto computes on the processor: this tandem is built without CUDA") {
		t.Errorf("--device auto says %q: want what it takes, and why", r.stderr)
	}
}
