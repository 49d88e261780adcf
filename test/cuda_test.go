package test

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// isC are the parts of the C library.
var isC = regexp.MustCompile(`^lib(c|m|dl|pthread|rt|resolv)\.so\.[0-9]+$`)

// elfLibraries returns the names of the libraries that a program is linked with.
func elfLibraries(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
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
	libraries, err := elfLibraries(filepath.Join(image, "tandem"))
	if err != nil || slices.ContainsFunc(libraries, func(l string) bool { return !strings.HasPrefix(l, "ld-") && !isC.MatchString(l) }) {
		t.Errorf("the program needs %q (%v): want the C library alone, since a GPU's box may have no other", libraries, err)
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

// TestCUDAInstall: 11.8 comes from Debian's packages with Debian's keys, and where the system has none, as on Ubuntu, its own sources give
// them, also before it has ever read its lists. apt-get is one of the test's own, the packages hold empty files.
func TestCUDAInstall(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no dpkg-deb: packages are of Debian and Ubuntu")
	}
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	const kit = "lib/nvidia-cuda-toolkit/"
	for name, files := range map[string]string{"nvidia-cuda-dev": "include/cuda.h",
		"debian-archive-keyring": "share/keyrings/debian-archive-keyring.gpg",
		"nvidia-cuda-toolkit": "bin/ptxas bin/cudafe++ bin/fatbinary bin/cuobjdump " + kit + "bin/nvcc " + kit + "bin/cicc " +
			kit + "bin/crt/x " + kit + "libdevice/x share/doc/nvidia-cuda-toolkit/copyright"} {
		write(name+"/DEBIAN/control", "Package: "+name+"\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: t\n", 0o644)
		for _, f := range strings.Fields(files) {
			write(name+"/usr/"+f, "", 0o755)
		}
		out, err := exec.Command("dpkg-deb", "-b", filepath.Join(dir, name), filepath.Join(dir, name+"_1_all.deb")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	write("debian/debian-archive-keyring.gpg", "", 0o644)
	write("bin/apt-get", `#!/bin/sh
for last; do :; done
[ "$last" = update ] && { cat "$(dirname "$PWD")/sources.list" 2>/dev/null; exit 0; }
case "$last $*" in debian-archive-keyring*) case "$KEYRING $*" in absent*) exit 100 ;; lists*State::Lists*) ;; lists*) exit 100 ;; esac ;; esac
for p; do [ ! -e "`+dir+`/${p}_1_all.deb" ] || cp "`+dir+`/${p}_1_all.deb" .; done
`, 0o755)
	for _, tc := range []struct{ name, keys, keyring, want string }{
		{"debian", filepath.Join(dir, "debian"), "absent", "signed-by=" + dir + "/debian/debian-archive-keyring.gpg"},
		{"ubuntu", dir, "there", "keys/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm non-free"},
		{"ubuntu without lists", dir, "lists", "keys/usr/share/keyrings/debian-archive-keyring.gpg]"},
		{"another", dir, "absent", "do not give the package debian-archive-keyring (on Ubuntu it is in universe): see above, or take"},
	} {
		cmd := exec.Command("scripts/cuda", "install")
		cache := filepath.Join(dir, tc.name)
		cmd.Env = append(os.Environ(), "CUDA=11.8", "TANDEM_CUDA=", "XDG_CACHE_HOME="+cache, "DEBIAN_KEYS="+tc.keys, "KEYRING="+tc.keyring,
			"PATH="+dir+"/bin:"+os.Getenv("PATH"))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if said := stderr.String(); !strings.Contains(said, tc.want) {
			t.Errorf("%s: %s: want %q", tc.name, said, tc.want)
		}
		if tc.name == "another" {
			if cmd.ProcessState.ExitCode() != 3 {
				t.Errorf("%s: %v: want exit code 3", tc.name, err)
			}
			continue
		}
		to := strings.TrimSpace(string(out))
		if err != nil || to != cache+"/tandem/cuda-11.8" {
			t.Errorf("%s: %v, %q\n%s", tc.name, err, to, stderr.String())
		}
		for _, f := range []string{"bin/nvcc", "bin/ptxas", "bin/nvcc.profile", "include/cuda.h", "libdevice/x", "copyright"} {
			if _, err := os.Stat(filepath.Join(to, f)); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	}
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
		{[]string{"verifier", "--gpu-memory", "1GiB", "--device", "auto"}, 2, "--gpu-memory 1.0 GiB with --device auto: it is for"},
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
