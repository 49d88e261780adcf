package main

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/cmd/tandem/supervise"
)

// processes are gateway, drafter and verifier as children of this process, with a run directory of
// their own.
type processes struct {
	dir   *supervise.RunDir
	group *supervise.Group
	addr  string // of the gateway, as clients dial it
}

// launch says which processes to start.
type launch struct {
	groupFlags
	target, draft string // paths; draft "" = no drafter
	listen        string // the gateway's address, "" = a socket in the run directory
	sessions      int
}

// exitTime is what a process may take to end once its calls have: most of it is for its last traces.
const exitTime = 4 * time.Second

// startProcesses starts the processes at once and returns when all serve. Stop must be called on what
// it returns; after an error nothing is left.
func (a *app) startProcesses(l launch) (*processes, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := supervise.NewRunDir(l.RunDir)
	if err != nil {
		return nil, err
	}
	p := &processes{dir: dir, addr: l.listen}
	if p.addr == "" {
		p.addr = "unix://" + dir.File("gateway.sock")
	}
	p.group = supervise.New(supervise.Config{Program: program, Env: childEnv(os.Environ(), dir.Path), Stderr: a.stderr, Grace: l.Grace + exitTime})
	if err := p.group.Start(a.ctx, l.specs(dir, p.addr)...); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// stop ends the processes in order and removes the run directory.
func (p *processes) stop(force context.Context) error {
	p.group.Stop(force)
	return p.dir.Close()
}

// kill ends the processes at once and removes the run directory.
func (p *processes) kill() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	return p.stop(now)
}

// specs returns the command lines of the processes; the gateway, which is stopped first, comes first.
func (l launch) specs(dir *supervise.RunDir, addr string) []supervise.Spec {
	drafterThreads, verifierThreads := l.split(runtime.NumCPU())
	drafter, verifier := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock")
	pool := dir.File("pool")
	common := []string{"--ready-fd", strconv.Itoa(supervise.ReadyFD), "--sessions", strconv.Itoa(l.sessions), "--ctx", strconv.Itoa(l.Ctx)}
	if l.OTLPEndpoint != "" {
		common = append(common, "--otlp-endpoint", l.OTLPEndpoint)
	}
	kernels := func(threads int) []string {
		args := append(common[:len(common):len(common)], "--isa", l.ISA, "--threads", strconv.Itoa(threads), "--kv-type", l.KVType, "--pool", "file:"+pool)
		if l.Lock {
			args = append(args, "--lock")
		}
		return args
	}
	gatewayArgs := append([]string{"gateway", "--listen", addr, "--target", l.target, "--verifier", verifier,
		"--pool-file", pool, "--grace", l.Grace.String()}, common...)
	if !l.KeepAwake {
		gatewayArgs = append(gatewayArgs, "--no-keep-awake")
	}
	verifierArgs := append([]string{"verifier", "--listen", verifier, "--target", l.target}, kernels(verifierThreads)...)
	if l.draft != "" {
		gatewayArgs = append(gatewayArgs, "--drafter", drafter)
		verifierArgs = append(verifierArgs, "--drafter", drafter)
	}
	specs := []supervise.Spec{{Name: "gateway", Args: gatewayArgs}, {Name: "verifier", Restart: true, Args: verifierArgs}}
	if l.draft != "" {
		specs = append(specs, supervise.Spec{Name: "drafter", Restart: true,
			Args: append([]string{"drafter", "--listen", drafter, "--draft", l.draft, "--inline-limit", strconv.Itoa(l.InlineLimit)}, kernels(drafterThreads)...)})
	}
	return specs
}

// split divides the cores between the processes: never more threads than cores, but one each.
func (l launch) split(cores int) (drafter, verifier int) {
	drafter, verifier = l.DrafterThreads, l.VerifierThreads
	if l.draft != "" && drafter == 0 {
		drafter = max(1, cores/4)
	}
	if verifier == 0 {
		verifier = max(1, cores-drafter)
	}
	return drafter, verifier
}

// childEnv returns the environment for the children: their settings come as flags alone, and their
// temporary files go to the run directory.
func childEnv(env []string, tmp string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "TANDEM_") && !strings.HasPrefix(kv, "TMPDIR=") {
			out = append(out, kv)
		}
	}
	return append(out, "TMPDIR="+tmp)
}
