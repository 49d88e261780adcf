package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/roles/drafter"
	"github.com/tandem-llm/tandem/roles/group"
	"github.com/tandem-llm/tandem/roles/pair"
	"github.com/tandem-llm/tandem/services/supervise"
)

// launch says which processes to start.
type launch struct {
	groupFlags
	speculationFlags          // the gateway's defaults for requests
	httpFlags                 // zero: no HTTP
	target           string   // path
	drafts           []string // paths; drafter.Lookup among them stands for none; empty = no drafter, lookup neither
	listen           string   // the gateway's address, "" = a socket in the run directory
	sessions         int
	keepGateway      bool // restart it when it dies; else all processes end with it, because its requests are lost
}

// startProcesses starts all processes at the same time and returns when all serve. The caller must Stop
// them; after an error none is left.
func (a *app) startProcesses(l launch) (*group.Processes, error) {
	return group.Start(a.ctx, group.Config{RunDir: l.RunDir, Addr: l.listen, Grace: l.Grace, Stderr: a.stderr, Specs: l.specs, Dial: l.dial,
		Drafts: len(l.files()) > 0, HTTPURL: l.url()})
}

// files returns the files of the draft models.
func (l launch) files() []string {
	return slices.DeleteFunc(slices.Clone(l.drafts), func(d string) bool { return d == drafter.Lookup })
}

// dial returns the options with which this process reaches the gateway at addr.
func (l launch) dial(addr string) ([]client.Option, error) {
	options, err := l.dialing(addr)
	if tokens, wrong := l.tokens(); wrong == nil && len(tokens) > 0 {
		options = append(options, client.WithToken(tokens[0]), client.WithCleartext())
	}
	return options, err
}

// specs returns the command lines of the processes, the gateway's first: it is stopped first.
func (l launch) specs(dir *supervise.RunDir, addr string) ([]supervise.Spec, error) {
	keyFile, err := l.writeKeys(dir.File("keys"))
	if err != nil {
		return nil, err
	}
	files := l.files()
	onCPU := len(files) > 0 && !strings.HasPrefix(l.DraftDevice, "cuda") // else the drafter leaves the cores to the verifier
	drafterThreads, verifierThreads := group.Split(runtime.NumCPU(), onCPU, l.DrafterThreads, l.VerifierThreads)
	drafter, verifier := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock")
	pool := group.PoolFile(dir)
	common := []string{"--ready-fd", strconv.Itoa(supervise.ReadyFD), "--pulse-fd", strconv.Itoa(supervise.PulseFD), "--sessions",
		strconv.Itoa(l.sessions), "--ctx", strconv.Itoa(l.Ctx)}
	common = append(common, l.secretFlags.args()...)
	if l.OTLPEndpoint != "" {
		common = append(common, "--otlp-endpoint", l.OTLPEndpoint)
	}
	kernels := func(device string, threads int) []string {
		args := append(common[:len(common):len(common)], "--device", device, "--isa", l.ISA,
			"--threads", strconv.Itoa(threads), "--kv-type", l.KVType, "--prefix-cache", or(l.PrefixCache, "auto"), "--pool", "file:"+pool)
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
	verifierArgs := append([]string{"verifier", "--listen", verifier, "--target", l.target}, kernels(l.Device, verifierThreads)...)
	verifierArgs = append(verifierArgs, l.gpuMemoryFlags.arg())
	for _, h := range l.Heads {
		verifierArgs = append(verifierArgs, "--heads", h)
	}
	if l.VerifierThreads == 0 && onCPU {
		verifierArgs = append(verifierArgs, "--spare-threads", strconv.Itoa(drafterThreads))
	}
	if l.Batches > 0 {
		verifierArgs = append(verifierArgs, "--batches", strconv.Itoa(l.Batches))
	}
	taps, err := pair.Taps(files)
	if err != nil {
		return nil, err
	}
	if len(taps) > 0 {
		verifierArgs = append(verifierArgs, "--taps="+strings.Trim(strings.ReplaceAll(fmt.Sprint(taps), " ", ","), "[]"),
			"--feature-memory", strconv.Itoa(l.FeatureMemory))
	}
	if !l.Measure {
		verifierArgs = append(verifierArgs, "--no-measure")
	}
	if l.Plan != "" {
		verifierArgs = append(verifierArgs, "--plan", l.Plan)
	}
	gatewayArgs = append(append(append(gatewayArgs, l.ruleFlags.args()...), l.speculationFlags.args()...), l.httpFlags.args(keyFile)...)
	gatewayArgs = append(gatewayArgs, l.secureFlags.args()...)
	lookup, err := l.lookupFlags.args(l.prefixFlags, len(l.drafts) == 0)
	if err != nil {
		return nil, err
	}
	gatewayArgs = append(gatewayArgs, lookup...)
	specs := []supervise.Spec{{Name: "gateway", Restart: l.keepGateway}, {Name: "verifier", Restart: true}}
	if len(files) > 0 {
		gatewayArgs = append(gatewayArgs, "--drafter", drafter)
		verifierArgs = append(verifierArgs, "--drafter", drafter)
		args := []string{"drafter", "--listen", drafter, "--inline-limit", strconv.Itoa(l.InlineLimit),
			gpuMemoryFlags{}.arg(), "--ahead-gain=" + strconv.FormatFloat(l.AheadGain, 'g', -1, 64)}
		for _, d := range files {
			args = append(args, "--draft", d)
		}
		for _, h := range l.DraftHeads {
			args = append(args, "--draft-heads", h)
		}
		if len(taps) > 0 {
			args = append(args, "--target", l.target, "--verifier", verifier)
		}
		specs = append(specs, supervise.Spec{Name: "drafter", Restart: true, Args: append(args, kernels(l.DraftDevice, drafterThreads)...)})
	}
	specs[0].Args, specs[1].Args = gatewayArgs, verifierArgs
	return specs, nil
}
