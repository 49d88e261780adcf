package emulated

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed child
var child embed.FS

// ErrNoCompiler is the error for a machine without g++.
var ErrNoCompiler = errors.New("the emulated GPU is compiled by g++, which is not here: install it (Debian: apt install g++)")

// unit is the source that includes all others.
const unit = "tandem.cu"

// keep is how long a program that no test has used stays in the cache.
const keep = 7 * 24 * time.Hour

// build returns the path of the program that runs the kernels of sources. It compiles unless the cache has it.
// With gauge the kernels tell their accesses.
func build(sources fs.FS, sanitize, gauge bool) (string, error) {
	compiler, err := exec.LookPath("g++")
	if err != nil {
		return "", ErrNoCompiler
	}
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", compiler, err)
	}
	files, err := gather(sources)
	if err != nil {
		return "", err
	}
	flags := flagsOf(sanitize)
	key := digest(files, strings.Join(flags, " "), string(version), fmt.Sprint(gauge))
	folder, err := cacheFolder()
	if err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(folder, key+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	program := filepath.Join(folder, key)
	now := time.Now()
	if err := os.Chtimes(program, now, now); err == nil {
		return program, nil
	}
	removeOld(folder, now.Add(-keep))
	return program, compile(compiler, flags, gauge, files, folder, program)
}

// flagsOf returns g++'s flags. Nothing contracts a product and a sum; fma is the processor's if it has one, with the same bits.
func flagsOf(sanitize bool) []string {
	flags := []string{"-std=c++17", "-g1", "-fno-math-errno", "-ffp-contract=off", "-rdynamic", "-I."}
	if sanitize {
		flags = append(flags, "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	} else {
		flags = append(flags, "-O2")
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil && runtime.GOARCH == "amd64" && bytes.Contains(info, []byte(" fma ")) {
		flags = append(flags, "-mfma")
	}
	return flags
}

// gather returns the kernels' sources and those of the process, by name.
func gather(sources fs.FS) (map[string][]byte, error) {
	own, err := fs.Sub(child, "child")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, from := range []fs.FS{sources, own} {
		names, err := fs.Glob(from, "*")
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if files[name] != nil {
				return nil, fmt.Errorf("emulated GPU: source %s: the emulation has a file of this name", name)
			}
			if files[name], err = fs.ReadFile(from, name); err != nil {
				return nil, err
			}
		}
	}
	if files[unit] == nil {
		return nil, fmt.Errorf("emulated GPU: the sources lack %s", unit)
	}
	return files, nil
}

func digest(files map[string][]byte, more ...string) string {
	h := sha256.New()
	for _, name := range sortedKeys(files) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(files[name]), files[name])
	}
	for _, m := range more {
		fmt.Fprintf(h, "%d\n%s", len(m), m)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

func cacheFolder() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir() // no HOME
	}
	folder := filepath.Join(base, "tandem-emulated")
	return folder, os.MkdirAll(folder, 0o700)
}

// lock waits until no other process compiles the same.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// removeOld removes what no test has used since then, folders of compilers that were killed too.
func removeOld(folder string, since time.Time) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(since) {
			os.RemoveAll(filepath.Join(folder, e.Name()))
		}
	}
}

// compile makes the program in a folder of its own and then moves it to its place.
func compile(compiler string, flags []string, gauge bool, files map[string][]byte, folder, program string) error {
	work, err := os.MkdirTemp(folder, "compile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(work, name), text, 0o600); err != nil {
			return err
		}
	}
	flags = append(flags, "-ffile-prefix-map="+work+"=.")
	kernels := []string{"-c", "-o", "kernels.o", "-x", "c++", unit}
	if gauge {
		kernels = append(kernels, "-fsanitize=thread")
	}
	for _, args := range [][]string{kernels, {"-o", "program", "main.cpp", "threads.cpp", "gauge.cpp", "kernels.o", "-ldl"}} {
		cmd := exec.Command(compiler, append(slices.Clip(flags), args...)...)
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("emulated GPU: g++ %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return os.Rename(filepath.Join(work, "program"), program)
}
