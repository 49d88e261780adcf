package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/roles/drafter"
	"github.com/tandem-llm/tandem/roles/group"
	"github.com/tandem-llm/tandem/roles/pair"
	"github.com/tandem-llm/tandem/services/supervise"
)

// launch says which processes to start.
type launch struct {
	groupFlags
	speculationFlags // the gateway's defaults for requests
	httpFlags        // zero: no HTTP
	drawFlags
	outputFlags
	logFlags                // zero: warnings alone
	target         string   // path
	drafts         []string // paths; drafter.Lookup among them stands for none; empty = no drafter, lookup neither
	listen         string   // the gateway's address, "" = a socket in the run directory
	sessions       int
	streamed       bool              // the target's weights do not fit into its memory
	verifierBudget int64             // bytes of memory for the verifier; 0: it may take what is free
	room           kvRoom            // for keys and values
	decision       *profile.Decision // of the plan, for --device auto; nil: none
	keepGateway    bool              // restart it when it dies; else all processes end with it, because its requests are lost
}

// startProcesses starts all processes at the same time and returns when all serve. The caller must Stop
// them; after an error none is left.
func (a *app) startProcesses(l launch) (*group.Processes, error) {
	return group.Start(a.ctx, group.Config{RunDir: l.RunDir, Addr: l.listen, Grace: l.Grace, Stderr: a.stderr, Line: l.line(),
		Specs: l.specs, Dial: l.dial,
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

// places returns where the target and the drafts compute.
func (l launch) places() (target, drafts place, err error) {
	if target, err = parsePlace("device", l.Device); err == nil {
		drafts, err = parsePlace("draft-device", l.DraftDevice)
	}
	if target.auto && l.decision != nil {
		p, wrong := bestPlace(l.decision)
		if cmp.Or(wrong, p.checkThreads("device", "verifier-threads", l.VerifierThreads)) == nil {
			target = p // as the verifier will find
		}
	}
	return target, drafts, err
}

// gain returns the setting of a drafter, which cannot know that the verifier is on the same processor.
func (l launch) gain(target, drafts place) float64 {
	if l.AheadGain == drafter.Measured && !target.auto && !drafts.auto && target.overlaps(drafts) {
		return sharedGain
	}
	return l.AheadGain
}

// specs returns the command lines of the processes, the gateway's first: it is stopped first.
func (l launch) specs(dir *supervise.RunDir, addr string) ([]supervise.Spec, error) {
	keyFile, err := l.writeKeys(dir.File("keys"))
	if err != nil {
		return nil, err
	}
	files := l.files()
	at, draftsAt, err := l.places()
	if err != nil {
		return nil, err
	}
	onCPU := len(files) > 0 && draftsAt.shared() // else the drafter leaves the cores to the verifier
	drafterThreads, verifierThreads := group.Split(runtime.NumCPU(), onCPU, l.DrafterThreads, l.VerifierThreads)
	if at.grouped() {
		verifierThreads = 0 // its cores say how many
	}
	if draftsAt.grouped() {
		drafterThreads = 0
	}
	drafter, verifier := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock")
	pool := group.PoolFile(dir)
	common := []string{"--ready-fd", strconv.Itoa(supervise.ReadyFD), "--pulse-fd", strconv.Itoa(supervise.PulseFD), "--sessions",
		strconv.Itoa(l.sessions)}
	common = append(append(common, l.secretFlags.args()...), l.logFlags.args()...)
	if l.OTLPEndpoint != "" {
		common = append(common, "--otlp-endpoint", l.OTLPEndpoint)
	}
	kernels := func(device string, threads int, kvMemory int64) []string {
		args := append(common[:len(common):len(common)], "--ctx", strconv.Itoa(l.Ctx), "--device", device, "--isa", l.ISA,
			"--threads", strconv.Itoa(threads), "--kv-type", l.KVType, "--prefix-cache", or(l.PrefixCache, "auto"), "--pool", "file:"+pool)
		if l.Lock {
			args = append(args, "--lock")
		}
		if kvMemory > 0 {
			args = append(args, "--kv-memory", strconv.FormatInt(kvMemory, 10))
		}
		return args
	}
	gatewayArgs := append([]string{"gateway", "--listen", addr, "--target", l.target, "--verifier", verifier,
		"--pool-file", pool, "--grace", l.Grace.String(), "--ctx", strconv.Itoa(l.context())}, common...)
	if !l.KeepAwake {
		gatewayArgs = append(gatewayArgs, "--no-keep-awake")
	}
	verifierArgs := append([]string{"verifier", "--listen", verifier, "--target", l.target},
		kernels(l.Device, verifierThreads, l.room.target)...)
	verifierArgs = append(append(verifierArgs, l.gpuMemoryFlags.arg()), l.memoryArgs()...)
	for _, h := range l.Heads {
		verifierArgs = append(verifierArgs, "--heads", h)
	}
	if l.VerifierThreads == 0 && onCPU && at.shared() {
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
	gatewayArgs = append(append(gatewayArgs, l.drawFlags.args()...), l.outputFlags.args()...)
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
			gpuMemoryFlags{}.arg(), "--ahead-gain=" + strconv.FormatFloat(l.gain(at, draftsAt), 'g', -1, 64)}
		for _, d := range files {
			args = append(args, "--draft", d)
		}
		for _, h := range l.DraftHeads {
			args = append(args, "--draft-heads", h)
		}
		if len(taps) > 0 {
			args = append(args, "--target", l.target, "--verifier", verifier)
		}
		specs = append(specs, supervise.Spec{Name: "drafter", Restart: true, Spare: true,
			Args: append(args, kernels(l.DraftDevice, drafterThreads, l.room.drafts)...)})
	}
	specs[0].Args, specs[1].Args = gatewayArgs, verifierArgs
	return specs, nil
}
