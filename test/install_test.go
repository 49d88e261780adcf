package test

import (
	"archive/zip"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// installed is the version under which TestInstall publishes the checkout.
const (
	modulePath = "github.com/tandem-llm/tandem"
	installed  = "v0.0.1"
)

// TestInstall: `go install …/cmd/tandem@latest` gives a program that needs nothing else. The checkout is published by a module proxy in
// a folder; what it depends on comes from what the go command has downloaded for the checkout itself. So nothing that only a main
// module may have, such as a replace directive, is needed, and every file that the build wants is in the module.
func TestInstall(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	if *tags != "" {
		t.Skip("builds with tags are wrong on purpose")
	}
	proxy, home := t.TempDir(), t.TempDir()
	publish(t, filepath.Join(proxy, filepath.FromSlash(modulePath), "@v"))
	downloads := strings.TrimSpace(goOutput(t, nil, "env", "GOMODCACHE")) + "/cache/download"
	t.Cleanup(func() { goOutput(t, []string{"GOMODCACHE=" + home + "/mod", "GOFLAGS="}, "clean", "-modcache") }) // its files are read-only
	env := []string{"GOPROXY=file://" + proxy + ",file://" + downloads + ",off", "GOMODCACHE=" + home + "/mod", "GOBIN=" + home + "/bin",
		"GOSUMDB=off", "GONOSUMDB=", "GONOPROXY=", "GOPRIVATE=", "GOFLAGS=-mod=mod -trimpath", "GOTOOLCHAIN=local", "GOWORK=off"}
	goOutput(t, env, "install", modulePath+"/cmd/tandem@latest")

	w := newWorld(t)
	want, err := os.ReadFile(readmeGolden)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := func(args ...string) ended {
		cmd := w.command(ctx, args...)
		cmd.Path, cmd.Dir = filepath.Join(home, "bin", "tandem"), home
		return w.wait(cmd)
	}
	if e := run("generate", "--prompt", "func (r *Reader) Read("); e.code != 0 || e.stdout != string(want) {
		t.Errorf("exit code %d, %q, %q: want %q", e.code, e.stdout, e.stderr, want)
	}
	if e := run("version"); !strings.HasPrefix(e.stdout, "tandem "+installed+" ") {
		t.Errorf("version %q: want %s", e.stdout, installed)
	}
}

// goOutput runs the go command outside of the checkout and returns what it prints.
func goOutput(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = os.TempDir(), append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		stderr := ""
		if exit, is := err.(*exec.ExitError); is {
			stderr = string(exit.Stderr)
		}
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return string(out)
}

// publish writes the checkout into a folder as a module proxy serves it: its files without those of nested modules, and nothing that git
// would not track.
func publish(t *testing.T, dir string) {
	t.Helper()
	list, err := exec.Command("git", "-C", "..", "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout: ", err)
	}
	files := strings.Split(strings.TrimRight(string(list), "\x00"), "\x00")
	var nested []string
	for _, f := range files {
		if path.Base(f) == "go.mod" && f != "go.mod" {
			nested = append(nested, path.Dir(f)+"/")
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"list": installed + "\n", installed + ".mod": string(mod),
		installed + ".info": fmt.Sprintf(`{"Version":%q,"Time":"2026-11-22T00:00:00Z"}`, installed)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := os.Create(filepath.Join(dir, installed+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	z := zip.NewWriter(out)
	for _, f := range files {
		if slices.ContainsFunc(nested, func(n string) bool { return strings.HasPrefix(f, n) }) {
			continue
		}
		if err := pack(z, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// pack adds a file of the checkout to a module's zip file.
func pack(z *zip.Writer, name string) error {
	st, err := os.Lstat(filepath.Join("..", name))
	if os.IsNotExist(err) || err == nil && !st.Mode().IsRegular() {
		return nil // deleted, not yet committed; modules have no links
	} else if err != nil {
		return err
	}
	in, err := os.Open(filepath.Join("..", name))
	if err != nil {
		return err
	}
	defer in.Close()
	w, err := z.CreateHeader(&zip.FileHeader{Name: modulePath + "@" + installed + "/" + name, Method: zip.Store})
	if err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

// TestProgramModules: no library that tests alone use is in the program.
func TestProgramModules(t *testing.T) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) < 10 {
		t.Fatalf("%d modules: want those of gRPC, NATS and others", len(info.Deps))
	}
	for _, m := range info.Deps {
		for _, only := range []string{"pgregory.net/rapid", "go.uber.org/goleak"} {
			if strings.HasPrefix(m.Path, only) {
				t.Errorf("%s is in the program: it is for tests", m.Path)
			}
		}
	}
}
