package test

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	targetModel = "../models/gopher-19m-q8_0.gguf"
	draftModel  = "../models/gopher-draft-all-f16.gguf"
)

// loadingLines are the lines about a load that takes more than half a second, as loads do while much else runs.
var loadingLines = regexp.MustCompile(`(?m)^(?:\w+: )?loading \S+: \d+ % of .*\n`)

// refused checks that a command ended as a refusal must: one line on stderr that says want, beside those about loading, nothing on stdout,
// exit code 1 or 2.
func refused(t *testing.T, e ended, want string) {
	t.Helper()
	if e.code != 1 && e.code != 2 {
		t.Errorf("exit code %d: want 1 or 2; stderr %q", e.code, e.stderr)
	}
	if e.stdout != "" {
		t.Errorf("stdout %q: want nothing", e.stdout)
	}
	line, rest, ended := strings.Cut(loadingLines.ReplaceAllString(e.stderr, ""), "\n")
	if !ended || rest != "" || !strings.HasPrefix(line, "tandem: ") || len(line) > 400 {
		t.Errorf("stderr %q: want one line that begins with \"tandem: \"", e.stderr)
	}
	if !strings.Contains(e.stderr, want) {
		t.Errorf("stderr %q: want %q in it", e.stderr, want)
	}
}

func TestBadValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	generate := func(flags ...string) []string { return append([]string{"generate", "--prompt", "x"}, flags...) }
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no command":          {nil, `"run"`},
		"unknown command":     {[]string{"dance"}, "dance"},
		"unknown flag":        {generate("--max-token", "3"), "--max-token"},
		"empty prompt":        {[]string{"generate", "--prompt", ""}, "prompt is empty"},
		"two prompts":         {generate("--prompt-file", "x"), "--prompt-file"},
		"missing prompt file": {[]string{"generate", "--prompt-file", "/no/such"}, "/no/such"},
		"prompt not UTF-8":    {[]string{"generate", "--prompt", "ab\xff"}, "not valid UTF-8 at byte 2"},
		"prompt too long":     {[]string{"generate", "--prompt", strings.Repeat("word ", 2000)}, "the context holds 1024"},
		"max-tokens word":     {generate("--max-tokens", "many"), "max-tokens"},
		"temperature -1":      {generate("--temperature=-1"), "temperature is -1"},
		"temperature NaN":     {generate("--temperature", "NaN"), "temperature is NaN"},
		"temperature Inf":     {generate("--temperature", "Inf"), "temperature is +Inf"},
		"top-p 0":             {generate("--top-p", "0"), "top_p is 0"},
		"top-p 2":             {generate("--top-p", "2"), "top_p is 2"},
		"top-p NaN":           {generate("--top-p", "NaN"), "top_p is NaN"},
		"top-k -2":            {generate("--top-k=-2"), "top_k is -2"},
		"accept all":          {generate("--accept", "all"), "--accept must be one of"},
		"accept delta":        {generate("--accept-delta", "0.2"), "want them with typical alone"},
		"seed -1":             {generate("--seed=-1"), "seed"},
		"tree 0/0/0":          {generate("--tree", "0/0/0"), "nodes is 0"},
		"tree of words":       {generate("--tree", "a/b/c"), `nodes "a" is not a number`},
		"tree too large":      {generate("--tree", "100000/7/10"), "nodes is 100000"},
		"two drafts":          {generate("--draft", draftModel, "--draft", draftModel), "--draft is given 2 times"},
		"isa":                 {generate("--isa", "mmx"), "mmx"},
		"threads":             {generate("--verifier-threads=-3"), "--verifier-threads is -3"},
		"ctx":                 {generate("--ctx=-3"), "--ctx is -3"},
		"sessions":            {generate("--sessions=-3"), "--sessions is -3"},
		"address":             {generate("--addr", "nowhere"), "nowhere"},
		"nobody there":        {generate("--addr", "unix:///no/such.sock"), "/no/such.sock"},
		"tokens":              {[]string{"logits", "--model", targetModel, "--tokens", "1,x"}, `"x"`},
		"tokens out of range": {[]string{"logits", "--model", targetModel, "--tokens", "1,4096"}, "4096"},
		"tokens negative":     {[]string{"logits", "--model", targetModel, "--tokens=-1"}, "-1"},
		"top 0":               {[]string{"logits", "--model", targetModel, "--tokens", "1", "--top", "0"}, "--top is 0"},
		"continuation": {[]string{"logits", "--model", targetModel, "--tokens", "1", "--generate", "5000"},
			"the context holds 1024"},
		"configuration file":    {[]string{"config", "--config", "/no/such.yaml"}, "/no/such.yaml"},
		"run directory":         {generate("--run-dir", "/no/such"), "/no/such: no such file or directory"},
		"verifier without pool": {[]string{"verifier", "--target", targetModel, "--listen", "127.0.0.1:0"}, "--pool"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			refused(t, w.run(tc.args...), tc.want)
		})
	}
	w.t = t
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("temprature: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, w.run("generate", "--prompt", "x", "--config", path), `unknown key "temprature", did you mean "temperature"?`)
}

// gguf edits a copy of the bytes of a model file.
type gguf []byte

func (g gguf) with(old, new string) gguf {
	if len(old) != len(new) || !bytes.Contains(g, []byte(old)) {
		panic("edit of " + old + " does not fit")
	}
	return bytes.Replace(g, []byte(old), []byte(new), 1)
}

// number replaces the 32-bit value of a key.
func (g gguf) number(key string, v uint32) gguf {
	out := bytes.Clone(g)
	at := bytes.Index(out, []byte(key)) + len(key) + 4 // the key, its type
	binary.LittleEndian.PutUint32(out[at:], v)
	return out
}

// tensorType replaces the type number of a tensor of two dimensions.
func (g gguf) tensorType(name string, v uint32) gguf {
	out := bytes.Clone(g)
	at := bytes.Index(out, []byte(name)) + len(name) + 4 + 16
	binary.LittleEndian.PutUint32(out[at:], v)
	return out
}

// dim replaces the first dimension of a tensor.
func (g gguf) dim(name string, v uint64) gguf {
	out := bytes.Clone(g)
	at := bytes.Index(out, []byte(name)) + len(name) + 4
	binary.LittleEndian.PutUint64(out[at:], v)
	return out
}

func (g gguf) header(at int, v uint32) gguf {
	out := bytes.Clone(g)
	binary.LittleEndian.PutUint32(out[at:], v)
	return out
}

func TestBadModels(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(draftModel)
	if err != nil {
		t.Fatal(err)
	}
	g := gguf(good)
	for name, tc := range map[string]struct {
		data gguf
		want string
	}{
		"empty":      {gguf{}, "empty"},
		"text":       {gguf("Once upon a time there was a text that was no model.\n"), "GGUF"},
		"Git LFS":    {gguf("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"), "pointer of Git LFS"},
		"magic":      {g.header(0, 0x12345678), "GGUF"},
		"version 1":  {g.header(4, 1), "version 1"},
		"version 99": {g.header(4, 99), "version 99"},
		"big-endian": {g.header(4, 3<<24), "big-endian"},
		"architecture": {g.with("general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama",
			"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00mamba"), "mamba"},
		"unsupported type": {g.tensorType("blk.0.attn_q.weight", 16), "iq2_xxs"},
		"unknown type":     {g.tensorType("blk.0.attn_q.weight", 12345), "12345"},
		"tensor missing":   {g.with("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight"), "blk.1.ffn_up.weight"},
		"tensor shape":     {g.dim("blk.1.attn_k.weight", 128), "blk.1.attn_k.weight"},
		"no layers":        {g.number("llama.block_count", 0), "block_count"},
		"-1 layers":        {g.number("llama.block_count", 1<<32-1), "block_count"},
		"no heads":         {g.number("llama.attention.head_count", 0), "head_count"},
		"-1 context":       {g.number("llama.context_length", 1<<32-1), "context_length"},
		"huge embedding":   {g.number("llama.embedding_length", 1<<30), "embedding_length"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			path := filepath.Join(t.TempDir(), "bad.gguf")
			if err := os.WriteFile(path, tc.data, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, w.run("generate", "--prompt", "x", "--target", targetModel, "--draft", path), tc.want)
			refused(t, w.run("generate", "--prompt", "x", "--no-draft", "--target", path), tc.want)
			refused(t, w.run("logits", "--model", path, "--tokens", "1,2"), tc.want)
			refused(t, w.run("verifier", "--target", path, "--listen", "127.0.0.1:0", "--pool", "nats://127.0.0.1:1"), tc.want)
		})
	}
	for name, path := range map[string]string{"missing": "/no/such.gguf", "directory": t.TempDir(), "device": "/dev/null"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			refused(t, w.run("generate", "--prompt", "x", "--target", path), path)
			refused(t, w.run("model", "info", path), path)
			refused(t, w.run("tokenize", "--model", path, "--text", "x"), path)
		})
	}
}

// TestCutModel cuts a model at every 4 KiB boundary (a sample of them in the short form).
func TestCutModel(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(draftModel)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "cut.gguf")
	step := 4096
	if !*long {
		step = 4096 * 61
	}
	for n := 0; n < len(good); n += step {
		if err := os.WriteFile(path, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, w.run("generate", "--prompt", "x", "--draft", path), "cut.gguf")
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWorld(t)
	refused(t, w.run("up", "--http", "off", "--listen", l.Addr().String()), "address in use")
	refused(t, w.run("gateway", "--http", "off", "--target", targetModel, "--verifier", "127.0.0.1:1", "--listen", l.Addr().String()),
		"address in use")
}

// unprivileged runs a command of the world as a user without rights, where the test has the right to.
func (w *world) unprivileged(t *testing.T, args ...string) ended {
	t.Helper()
	if os.Getuid() != 0 {
		return w.run(args...)
	}
	cmd := w.command(t.Context(), args...)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	if err := os.Chmod(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return w.wait(cmd)
}

func TestReadOnlyTemporaryDirectory(t *testing.T) {
	w := newWorld(t)
	if err := os.Chmod(w.tmp, 0o555); err != nil {
		t.Fatal(err)
	}
	refused(t, w.unprivileged(t, absolute(t, "generate", "--prompt", "x")...), "permission denied")
	if err := os.Chmod(w.tmp, 0o700); err != nil {
		t.Fatal(err)
	}
}

// absolute adds the models to a command line by paths that hold for every user. Where the command will
// run as another user these are copies: the checkout may lie below a directory that is its owner's alone.
func absolute(t *testing.T, args ...string) []string {
	t.Helper()
	dir := ""
	if os.Getuid() == 0 {
		dir = forAll(t)
	}
	for _, m := range []struct{ flag, path string }{{"--target", targetModel}, {"--draft", draftModel}} {
		path, err := filepath.Abs(m.path)
		if err != nil {
			t.Fatal(err)
		}
		if dir != "" {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			path = filepath.Join(dir, filepath.Base(path))
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o644); err != nil { // whatever the umask
				t.Fatal(err)
			}
		}
		args = append(args, m.flag, path)
	}
	return args
}

// forAll returns an empty directory that every user may enter, or skips the test where the temporary
// directory itself is closed to others.
func forAll(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tw-all")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&0o005 != 0o005 {
			t.Skipf("a user without rights cannot enter %s (%v): set TMPDIR to a directory that all may enter", d, info.Mode())
		}
	}
	return dir
}

func TestFullTemporaryDirectory(t *testing.T) {
	w := newWorld(t)
	full := filepath.Join(t.TempDir(), "full")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs the right to mount a small file system: ", err)
	}
	defer func() {
		if err := syscall.Unmount(full, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(full, "filler"), make([]byte, 64<<10), 0o600); err != nil {
		t.Log(err)
	}
	refused(t, w.run("generate", "--prompt", "x", "--run-dir", full), "no space left on device")
	if entries, _ := os.ReadDir(full); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// limited runs generate under a resource limit of the shell.
func limited(t *testing.T, limit string, args ...string) ended {
	t.Helper()
	w := newWorld(t)
	cmd := w.command(t.Context(), args...)
	cmd.Args = append([]string{"sh", "-c", limit + ` && exec "$0" "$@"`, program}, args...)
	cmd.Path = "/bin/sh"
	if os.Getuid() == 0 { // the kernel does not limit root's locked memory
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		for _, dir := range []string{filepath.Dir(program), w.tmp} {
			if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w.wait(cmd)
}

func TestNoRightToLockMemory(t *testing.T) {
	refused(t, limited(t, "ulimit -l 64", absolute(t, "generate", "--prompt", "x", "--lock")...), "lock memory")
}

func TestNoMemory(t *testing.T) {
	// Enough address space for Go and its threads, not for such a cache.
	args := absolute(t, "generate", "--prompt", "x", "--kv-memory", "64GiB")
	refused(t, limited(t, "ulimit -v "+strconv.Itoa(8<<20), args...), "memory")
}
