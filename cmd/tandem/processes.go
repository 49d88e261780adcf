package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/supervise"
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
	speculationFlags          // what the gateway takes for requests that say nothing
	httpFlags                 // zero: no HTTP
	target           string   // path
	drafts           []string // paths, or lookupDraft; none = no drafter
	listen           string   // the gateway's address, "" = a socket in the run directory
	sessions         int
	keyFile          string // of the clients' keys, "" for none
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
	if l.keyFile, err = l.writeKeys(dir.File("keys")); err == nil {
		err = p.group.Start(a.ctx, l.specs(dir, p.addr)...)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	if len(l.drafts) > 0 {
		p.awaitDrafters(a.ctx, l)
	}
	awaitHTTP(a.ctx, l.url())
	return p, nil
}

// enlistTime is how long a gateway may take to find the drafter that serves already; it needs milliseconds.
const enlistTime = 2 * time.Second

// awaitDrafters waits until the gateway has found the drafter, so that the first request does not begin
// without it. One that it does not find is found later, or never: requests go on without it.
func (p *processes) awaitDrafters(ctx context.Context, l launch) {
	ctx, cancel := context.WithTimeout(ctx, enlistTime)
	defer cancel()
	options, err := l.dialing(p.addr)
	if err != nil {
		return
	}
	if tokens, err := l.tokens(); err == nil && len(tokens) > 0 {
		options = append(options, client.WithToken(tokens[0]), client.WithCleartext())
	}
	c, err := client.Dial(p.addr, options...)
	if err != nil {
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		d, err := c.Describe(ctx)
		if err == nil && slices.ContainsFunc(d.GetProcesses(), func(p *tandemv1.Process) bool { return p.GetRole() == "drafter" && p.GetUp() }) {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// pool returns the address of the pool, without its secret.
func (p *processes) pool() string {
	access, _ := pool.FromFile(p.dir.File("pool"))
	return access.URL
}

// during calls do with a ctx that also ends, with the reason as its cause, when a process is gone for good. Then it ends
// the processes. An error of do that has to do with the end of that ctx becomes its cause.
func (p *processes) during(a *app, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(a.ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case err := <-p.group.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err := do(ctx)
	if gone := context.Cause(ctx); err != nil && gone != nil {
		err = gone
	}
	cancel(nil)
	<-watched
	return errors.Join(err, p.stop(a.force))
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
		args := append(common[:len(common):len(common)], "--isa", l.ISA, "--threads", strconv.Itoa(threads), "--kv-type", l.KVType, "--prefix-cache", or(l.PrefixCache, "auto"), "--pool", "file:"+pool)
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
	if l.VerifierThreads == 0 && len(l.drafts) > 0 {
		verifierArgs = append(verifierArgs, "--spare-threads", strconv.Itoa(drafterThreads))
	}
	if !l.Measure {
		verifierArgs = append(verifierArgs, "--no-measure")
	}
	gatewayArgs = append(append(append(gatewayArgs, l.ruleFlags.args()...), l.speculationFlags.args()...), l.httpFlags.args(l.keyFile)...)
	gatewayArgs = append(gatewayArgs, l.secureFlags.args()...)
	specs := []supervise.Spec{{Name: "gateway"}, {Name: "verifier", Restart: true}}
	if len(l.drafts) > 0 {
		gatewayArgs = append(gatewayArgs, "--drafter", drafter)
		verifierArgs = append(verifierArgs, "--drafter", drafter)
		args := []string{"drafter", "--listen", drafter, "--inline-limit", strconv.Itoa(l.InlineLimit),
			"--ahead-gain", strconv.FormatFloat(l.AheadGain, 'g', -1, 64)}
		for _, d := range l.drafts {
			args = append(args, "--draft", d)
		}
		specs = append(specs, supervise.Spec{Name: "drafter", Restart: true, Args: append(args, kernels(drafterThreads)...)})
	}
	specs[0].Args, specs[1].Args = gatewayArgs, verifierArgs
	return specs
}

// split divides the cores between the processes. The verifier takes all, unless it finds at its start that it is about
// as quick without the drafter's (spareFlags): drafting and verifying mostly take turns, and what a drafter does meanwhile
// is bounded by what it spares (aheadFlags). On 2 cores this brings 1.4 times the tokens per second of a core
// each (docs/speculation.md).
func (l launch) split(cores int) (drafter, verifier int) {
	drafter, verifier = l.DrafterThreads, l.VerifierThreads
	if len(l.drafts) > 0 && drafter == 0 {
		drafter = max(1, cores/4)
	}
	if verifier == 0 {
		verifier = cores
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
