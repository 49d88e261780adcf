package main

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// launch says which processes to start.
type launch struct {
	settings.Group
	settings.Speculation // the gateway's defaults for requests
	settings.Web         // zero: no HTTP
	settings.Drawing
	settings.Answers
	settings.Logging          // zero: warnings alone
	target           string   // path
	drafts           []string // paths; drafter.Lookup among them stands for none; empty = no drafter, lookup neither
	listen           string   // the gateway's address, "" = a socket in the run directory
	sessions         int
	streamed         bool              // the target's weights do not fit into its memory
	verifierBudget   int64             // bytes of memory for the verifier; 0: it may take what is free
	room             kvRoom            // for keys and values
	decision         *profile.Decision // of the plan, for --device auto; nil: none
	keepGateway      bool              // restart it when it dies; else all processes end with it, because its requests are lost
}

// startProcesses starts all processes at the same time and returns when all serve. The caller must Stop
// them; after an error none is left.
func (a *app) startProcesses(l launch) (*group.Processes, error) {
	notes := ""
	if kept, err := (cacheFlags{l.CacheFolder}).open(); err == nil {
		notes = filepath.Join(kept.Folder(), "runs")
	}
	said := terminal.NewLoading(a.stderr)
	defer terminal.Close(said)
	p, err := group.Start(a.ctx, group.Config{RunDir: l.RunDir, Notes: notes, Addr: l.listen, Grace: l.Grace, Stderr: said,
		Line: childLine(l.Logging), Specs: l.specs, Dial: l.dial,
		Drafts: len(l.files()) > 0, HTTPURL: httpFlags{l.Web}.url()})
	if err == nil {
		a.outdated(l.Logging)
	}
	return p, err
}

// files returns the files of the draft models.
func (l launch) files() []string {
	return slices.DeleteFunc(slices.Clone(l.drafts), func(d string) bool { return d == drafter.Lookup })
}

// largest returns the size of the largest draft's file in bytes, 0 without drafts.
func (l launch) largest() (bytes int64) {
	for _, f := range l.files() {
		bytes = max(bytes, 1) // a file that cannot be read is told of when it is opened
		if info, err := os.Stat(f); err == nil {
			bytes = max(bytes, info.Size())
		}
	}
	return bytes
}

// dial returns the options with which this process reaches the gateway at addr.
func (l launch) dial(addr string) ([]client.Option, error) {
	options, err := certificateFlags{l.Certificate}.dialing(addr)
	if tokens, wrong := (httpFlags{l.Web}).tokens(); wrong == nil && len(tokens) > 0 {
		options = append(options, client.WithToken(tokens[0]), client.WithCleartext())
	}
	return options, err
}

// places returns where the target and the drafts compute.
func (l launch) places() (target, drafts device.Spec, err error) {
	if target, err = device.Parse("device", l.Device); err == nil {
		drafts, err = device.Parse("draft-device", l.DraftDevice)
	}
	if target.Auto && l.decision != nil {
		p, wrong := placement.Target(l.decision)
		if cmp.Or(wrong, p.CheckThreads("device", "verifier-threads", l.VerifierThreads)) == nil {
			target = p // as the verifier will find
		}
	}
	return target, drafts, err
}

// gain returns the setting of a drafter, which cannot know that the verifier is on the same processor. A draft that takes all the cores of
// the verifier drafts in turn with it: what it drafted ahead would take as long from the pass as it saves at best.
func (l launch) gain(target, drafts device.Spec) float64 {
	switch {
	case l.AheadGain != drafter.Measured || target.Auto || drafts.Auto || !target.Overlaps(drafts):
		return l.AheadGain
	case l.DrafterThreads == 0 && drafts.Shared() && group.Large(l.largest()):
		return 1
	}
	return sharedGain
}

// apart reports whether the drafter has processors of its own, as far as that can be told before the processes choose: not if auto does.
func (l launch) apart() (bool, error) {
	target, drafts, err := l.places()
	if l.GPUMemory > 0 { // first layers of the target are on a GPU
		target.Layers = int64(l.GPUMemory)
	}
	return len(l.files()) > 0 && !target.Auto && !drafts.Auto && !target.Overlaps(drafts), err
}

// specs writes the settings of the processes into files of dir and returns their command lines, the gateway's first: it is stopped first.
func (l launch) specs(dir *supervise.RunDir, addr string) ([]supervise.Spec, error) {
	c, err := l.children(dir, addr)
	if err != nil {
		return nil, err
	}
	specs := []supervise.Spec{{Name: "gateway", Restart: l.keepGateway}, {Name: "verifier", Restart: true}}
	files := [][]byte{settings.Marshal(&c.gateway), settings.Marshal(&c.verifier)}
	if len(c.drafter.Draft) > 0 {
		specs = append(specs, supervise.Spec{Name: "drafter", Restart: true, Spare: true})
		files = append(files, settings.Marshal(&c.drafter))
	}
	for i := range specs {
		if specs[i].Args, err = group.Configured(dir, specs[i].Name, files[i]); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// children are the settings of the processes of a group. A drafter without drafts is not started.
type children struct {
	gateway  settings.Gateway
	verifier settings.Verifier
	drafter  settings.Drafter
}

// children returns the settings of the processes: those of the group, with what it knows of all three.
func (l launch) children(dir *supervise.RunDir, addr string) (c children, err error) {
	files := l.files()
	taps, err := pair.Taps(files)
	if err != nil {
		return c, err
	}
	keys, err := httpFlags{l.Web}.tokens()
	if err != nil {
		return c, err
	}
	forDrafter, forVerifier, spare, gain, err := l.processors()
	if err != nil {
		return c, err
	}
	apart, err := l.apart()
	if err != nil {
		return c, err
	}
	drafterAddr, verifierAddr, pool := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock"), group.PoolFile(dir)
	logging := l.Logging
	if logging == (settings.Logging{}) {
		logging = quietly()
	}

	g := &c.gateway
	*g = settings.Gateway{Target: l.target, Process: l.Process, Logging: logging, GatewayOptions: l.GatewayOptions,
		Speculation: l.Speculation, Web: l.Web, Drawing: l.Drawing, Answers: l.Answers, CacheDir: l.CacheDir,
		Addresses: settings.Addresses{Listen: addr, Verifier: []string{verifierAddr}, PoolFile: pool}}
	g.Ctx, g.Sessions, g.HTTP = l.context(), l.sessions, or(l.HTTP, gateway.NoHTTP)
	g.APIKey, g.APIKeys = keys, ""
	if g.LookupDrafts, err = l.Beside(l.Prefixes, len(l.drafts) > 0); err != nil {
		return c, err
	}

	common := l.Process // of drafter and verifier, which listen on sockets alone
	common.Sessions, common.TLS, common.Grace = l.sessions, settings.TLS{}, settings.Default[settings.Process]().Grace
	v := &c.verifier
	*v = settings.Verifier{Target: l.target, Process: common, Logging: logging, Processor: forVerifier, ModelOptions: l.ModelOptions,
		VerifierOptions: l.VerifierOptions, Taps: settings.Taps{Taps: taps, SpareThreads: spare, DraftersApart: apart},
		Addresses: settings.Addresses{Listen: verifierAddr, Pool: "file:" + pool}}
	v.KVMemory, v.MemoryBudget = settings.SizeOf(l.room.target), settings.SizeOf(l.verifierBudget)
	if len(files) == 0 {
		return c, nil
	}

	g.Drafter, v.Drafter = []string{drafterAddr}, []string{drafterAddr}
	d := &c.drafter
	*d = settings.Drafter{Draft: files, Process: common, Logging: logging, Processor: forDrafter, ModelOptions: l.ModelOptions,
		DrafterOptions: l.DrafterOptions, Addresses: settings.Addresses{Listen: drafterAddr, Pool: "file:" + pool}}
	d.KVMemory, d.AheadGain = settings.SizeOf(l.room.drafts), gain
	if len(taps) > 0 {
		d.Target, d.Verifier = l.target, []string{verifierAddr}
	}
	return c, nil
}

// processors divides this machine between drafter and verifier: what each computes on, how many threads the verifier may leave to the
// drafter, and how far the drafter drafts ahead.
func (l launch) processors() (forDrafter, forVerifier settings.Processor, spare int, gain float64, err error) {
	at, draftsAt, err := l.places()
	if err != nil {
		return forDrafter, forVerifier, 0, 0, err
	}
	draft := int64(0) // 0: the drafter leaves the cores to the verifier
	if draftsAt.Shared() {
		draft = l.largest()
	}
	drafterThreads, verifierThreads := group.Split(runtime.NumCPU(), draft, l.DrafterThreads, l.VerifierThreads)
	if l.VerifierThreads == 0 && draft > 0 && at.Shared() && drafterThreads < verifierThreads {
		spare = drafterThreads
	}
	if at.Grouped() {
		verifierThreads = 0 // its cores say how many
	}
	if draftsAt.Grouped() {
		drafterThreads = 0
	}
	return settings.Processor{Threads: drafterThreads, ISA: l.ISA, Device: l.DraftDevice},
		settings.Processor{Threads: verifierThreads, ISA: l.ISA, Device: l.Device}, spare, l.gain(at, draftsAt), nil
}
