// Package start decides with what settings gateway, drafter and verifier of one machine are started together, and starts them: what fits
// into memory, which processors each gets, and how far ahead the drafter drafts.
package start

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// Say prints a line of progress, formatted as by fmt.Printf and without a line break, on stderr.
type Say func(format string, args ...any)

// Env is what this package needs of the program. All fields must be set.
type Env struct {
	Stderr  io.Writer // shows how models load
	Say     Say
	Version string                      // of the program: plans of other versions do not count
	GPUs    func() ([]cuda.Chip, error) // that this program can use, as gpu.Chips
}

// Setup says which processes to start.
type Setup struct {
	settings.Group
	settings.Speculation // the gateway's defaults for requests
	settings.Web         // zero: no HTTP
	settings.Drawing
	settings.Answers
	settings.Logging                  // zero: warnings alone
	TargetFile       string           // path
	DraftFiles       []string         // paths; drafter.Lookup among them stands for none; empty = no drafter, lookup neither
	Candidates       []find.Candidate // of which one drafts if none of DraftFiles is a model
	Unknown          bool             // nobody named a draft for the target: it is told whether there is one
	Fetch            []string         // names of models that may draft and are not here, the likeliest first
	Answered         func()           // called after the first answer; nil: nobody is
	At               string           // the gateway's address, "" = a socket in the run directory
	AtOnce           int              // sessions
	KeepGateway      bool             // restart it when it dies; else all processes end with it, because its requests are lost

	// Found out by Checked.
	Streamed       bool              // the target's weights do not fit into its memory
	inside         bool              // the draft runs in the verifier's process
	Room           Room              // for keys and values
	late           bool              // the draft was found, not named: no answer waits for it
	verifierBudget int64             // bytes of memory for the verifier; 0: it may take what is free
	lends          bool              // a draft maps the target's output matrix
	rows           int               // of a tree that its passes verify; 0: of any
	decision       *profile.Decision // of the plan, for --device auto; nil: none
	orCPU          [2]bool           // verifier, drafter: on the cores if its device is not found, since auto has chosen it
	survey         *survey           // what finds out where target and drafts are fastest; nil: that is known, or was said

	weights *os.File // memory for the target's packed weights, or its output matrix, that processes share; nil: each has its own
}

// Start starts all processes of s, which comes from Checked, and waits until all serve. The caller Stops them. After an error none is left.
func (s Setup) Start(ctx context.Context, env Env) (*group.Processes, error) {
	notes := ""
	if kept, err := OpenCache(s.CacheFolder); err == nil {
		notes = filepath.Join(kept.Folder(), "runs")
	}
	said := terminal.NewLoading(env.Stderr)
	defer terminal.Close(said)
	if s.lends || s.shares() {
		var err error
		if s.weights, err = engine.NewShared(); err != nil {
			env.Say("tandem: target and draft do not share weights: %v", err)
		}
	}
	now := new(atomic.Pointer[Setup]) // drafts may move
	now.Store(&s)
	p, err := group.Start(ctx, group.Config{RunDir: s.RunDir, Notes: notes, Addr: s.At, Grace: s.Grace, Stderr: said,
		Line: s.Logging.ChildLine(), Dial: s.dial, Heard: s.heard(env), Weights: s.weights,
		Specs:  func(dir *supervise.RunDir, addr string) ([]supervise.Spec, error) { return now.Load().specs(dir, addr) },
		Drafts: len(s.files()) > 0 && !s.late, HTTPURL: s.Web.URL()})
	if err == nil && s.survey != nil {
		(&moving{env: env, group: p, dir: p.Dir, addr: p.Addr, now: now}).begin()
	}
	return p, err
}

// shares reports whether verifier and drafter want the same packed weights. Otherwise they share the output matrix alone: hardly a system
// gives shared memory huge pages, and without them passes take a tenth longer.
func (s Setup) shares() bool {
	_, drafts, err := s.places()
	return err == nil && drafts.Shared() && s.lender() && slices.Contains(s.files(), s.TargetFile)
}

// files returns the files of the draft models.
func (s Setup) files() []string {
	return slices.DeleteFunc(slices.Clone(s.DraftFiles), func(d string) bool { return d == drafter.Lookup })
}

// largest returns the size of the largest draft's file in bytes, 0 without drafts.
func (s Setup) largest() (bytes int64) {
	for _, f := range s.files() {
		bytes = max(bytes, 1) // a file that cannot be read is told of when it is opened
		if info, err := os.Stat(f); err == nil {
			bytes = max(bytes, info.Size())
		}
	}
	return bytes
}

// dial returns the options with which this process reaches the gateway at addr.
func (s Setup) dial(addr string) ([]client.Option, error) {
	options, err := Dialing(s.Certificate, addr)
	if tokens, wrong := Tokens(s.Web); wrong == nil && len(tokens) > 0 {
		options = append(options, client.WithToken(tokens[0]), client.WithCleartext())
	}
	return options, err
}

// places returns where the target and the drafts compute.
func (s Setup) places() (target, drafts device.Spec, err error) {
	if target, err = device.Parse("device", s.Device); err == nil {
		drafts, err = device.Parse("draft-device", s.DraftDevice)
	}
	if target.Auto && s.decision != nil {
		p, wrong := placement.Target(s.decision)
		if cmp.Or(wrong, p.CheckThreads("device", "verifier-threads", s.VerifierThreads)) == nil {
			target = p // as the verifier will find
		}
	}
	return target, drafts, err
}

// gain returns the setting of a drafter, which cannot know that the verifier is on the same processor. A draft that takes all the cores of
// the verifier drafts in turn with it: what it drafted ahead would take as long from the pass as it saves at best.
func (s Setup) gain(target, drafts device.Spec) float64 {
	switch {
	case s.AheadGain != drafter.Measured || target.Auto || drafts.Auto || !target.Overlaps(drafts):
		return s.AheadGain
	case s.DrafterThreads == 0 && drafts.Shared() && group.Large(s.largest()):
		return 1
	}
	return SharedGain
}

// apart reports whether the drafter has processors of its own, as far as that can be told before the processes choose: not if auto does.
func (s Setup) apart() (bool, error) {
	target, drafts, err := s.places()
	if s.GPUMemory > 0 { // first layers of the target are on a GPU
		target.Layers = int64(s.GPUMemory)
	}
	return len(s.files()) > 0 && !target.Auto && !drafts.Auto && !target.Overlaps(drafts), err
}

// specs writes the settings of the processes into files of dir and returns their command lines, the gateway's first: it is stopped first.
func (s Setup) specs(dir *supervise.RunDir, addr string) ([]supervise.Spec, error) {
	c, err := s.children(dir, addr)
	if err != nil {
		return nil, err
	}
	specs := []supervise.Spec{{Name: "gateway", Restart: s.KeepGateway}, {Name: "verifier", Restart: true}}
	files := [][]byte{settings.Marshal(&c.gateway), settings.Marshal(&c.verifier)}
	if len(c.drafter.Draft) > 0 {
		specs = append(specs, supervise.Spec{Name: "drafter", Restart: true, Spare: true, Late: s.late})
		files = append(files, settings.Marshal(&c.drafter))
	}
	for i := range specs {
		if specs[i].Args, err = group.Configured(dir, specs[i].Name, files[i]); err != nil {
			return nil, err
		}
		if i > 0 && s.weights != nil {
			specs[i].Weights = s.weights
			specs[i].Args = append(specs[i].Args, "--shared-model="+s.TargetFile, fmt.Sprint("--shared-output=", !s.shares()))
		}
		if i > 0 && s.orCPU[i-1] {
			specs[i].Args = append(specs[i].Args, "--or-cpu")
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
func (s Setup) children(dir *supervise.RunDir, addr string) (c children, err error) {
	files := s.files()
	taps, err := pair.Taps(files)
	if err != nil {
		return c, err
	}
	keys, err := Tokens(s.Web)
	if err != nil {
		return c, err
	}
	forDrafter, forVerifier, spare, gain, err := s.processors()
	if err != nil {
		return c, err
	}
	apart, err := s.apart()
	if err != nil {
		return c, err
	}
	drafterAddr, verifierAddr, pool := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock"), group.PoolFile(dir)
	logging := s.Logging
	if logging == (settings.Logging{}) {
		logging = settings.Quiet
	}

	g := &c.gateway
	*g = settings.Gateway{Target: s.TargetFile, GatewayOptions: s.GatewayOptions,
		Speculation: s.Speculation, Web: s.Web, Drawing: s.Drawing, Answers: s.Answers, CacheDir: s.CacheDir,
		Peer: settings.Peer{Process: s.Process, Logging: logging,
			Addresses: settings.Addresses{Listen: addr, Verifier: []string{verifierAddr}, PoolFile: pool}}}
	g.Ctx, g.Sessions, g.HTTP = s.context(), s.AtOnce, cmp.Or(s.HTTP, settings.NoHTTP)
	g.APIKey, g.APIKeys = keys, ""
	if g.LookupDrafts, err = s.Beside(s.Prefixes, len(s.DraftFiles) > 0); err != nil {
		return c, err
	}

	common := s.Process // of drafter and verifier, which listen on sockets alone
	common.Sessions, common.TLS, common.Grace = s.AtOnce, settings.TLS{}, settings.Default[settings.Process]().Grace
	v := &c.verifier
	*v = settings.Verifier{Target: s.TargetFile, Processor: forVerifier, ModelOptions: s.ModelOptions,
		VerifierOptions: s.VerifierOptions, Taps: settings.Taps{Taps: taps, SpareThreads: spare, DraftersApart: apart},
		Peer: settings.Peer{Process: common, Logging: logging, Addresses: settings.Addresses{Listen: verifierAddr, Pool: "file:" + pool}}}
	v.KVMemory, v.MemoryBudget = settings.SizeOf(s.Room.target), settings.SizeOf(s.verifierBudget)
	if len(files) == 0 {
		return c, nil
	}
	if s.inside {
		return s.host(c, files[0], forDrafter.Threads, gain)
	}
	g.Drafter, v.Drafter = []string{drafterAddr}, []string{drafterAddr}
	d := &c.drafter
	*d = settings.Drafter{Draft: files, Processor: forDrafter, ModelOptions: s.ModelOptions, DrafterOptions: s.DrafterOptions,
		CacheFolder: s.CacheFolder, Peer: settings.Peer{Process: common, Logging: logging,
			Addresses: settings.Addresses{Listen: drafterAddr, Pool: "file:" + pool}}}
	d.KVMemory, d.AheadGain = settings.SizeOf(s.Room.drafts), gain
	if len(taps) > 0 {
		d.Target, d.Verifier = s.TargetFile, []string{verifierAddr}
	}
	return c, nil
}

// host returns c with the draft in the verifier's own process.
func (s Setup) host(c children, draft string, threads int, gain float64) (children, error) {
	spec, err := engine.SideOf(draft)
	v := &c.verifier
	v.BesideDraft, v.BesideThreads, v.Drafting = draft, threads, s.Drafting
	v.AheadGain, v.KVMemory = gain, settings.SizeOf(s.Room.target+s.Room.drafts)
	v.FeatureMemory = min(v.FeatureMemory, int(roles.GuestFeatures(spec)>>20))
	v.Drafter = []string{roles.DraftAddress(v.Listen)}
	c.gateway.Drafter = v.Drafter
	return c, err
}

// processors divides this machine between drafter and verifier: what each computes on, how many threads the verifier may leave to the
// drafter, and how far the drafter drafts ahead.
func (s Setup) processors() (forDrafter, forVerifier settings.Processor, spare int, gain float64, err error) {
	at, draftsAt, err := s.places()
	if err != nil {
		return forDrafter, forVerifier, 0, 0, err
	}
	draft := int64(0) // 0: the drafter leaves the cores to the verifier
	if draftsAt.Shared() {
		draft = s.largest()
	}
	drafterThreads, verifierThreads := group.Split(runtime.NumCPU(), draft, s.DrafterThreads, s.VerifierThreads)
	if s.VerifierThreads == 0 && draft > 0 && at.Shared() && drafterThreads < verifierThreads {
		spare = drafterThreads
	}
	if at.Grouped() {
		verifierThreads = 0 // its cores say how many
	}
	if draftsAt.Grouped() {
		drafterThreads = 0
	}
	return settings.Processor{Threads: drafterThreads, ISA: s.ISA, Device: s.DraftDevice},
		settings.Processor{Threads: verifierThreads, ISA: s.ISA, Device: s.Device}, spare, s.gain(at, draftsAt), nil
}
