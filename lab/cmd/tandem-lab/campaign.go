package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/lab/campaign"
	"github.com/tandem-llm/tandem/lab/campaign/history"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// campaignCmd is all of campaigns.
type campaignCmd struct {
	Run   campaignRunCmd   `cmd:"" default:"withargs" help:"Disturb tandems on several boxes and check every answer."`
	Sum   campaignSumCmd   `cmd:"" help:"Add up the reports of several campaigns."`
	Check campaignCheckCmd `cmd:"" help:"Judge a history again."`
}

// campaignRunCmd runs a campaign.
type campaignRunCmd struct {
	Boxes   int           `help:"Boxes, each with its own network, files, processes and memory." default:"3"`
	Minutes float64       `help:"How long faults and load last." default:"3"`
	Layout  string        `help:"groups: each gateway has a verifier of its own. fleet: all work with all." enum:"groups,fleet" default:"groups"`
	Seed    uint64        `help:"Seed of the faults and of the load." default:"1"`
	Faults  string        `help:"all, none (a soak), or some of ${faults}." default:"all" placeholder:"LIST"`
	Beat    time.Duration `help:"Mean time between two kills." default:"2s"`
	Clients int           `help:"Clients that ask at the same time." default:"6"`
	Report  string        `help:"Write the report to this file, as JSON." placeholder:"FILE"`
	Keep    string        `help:"Keep the history and the logs of the boxes in this new folder." placeholder:"DIR"`
	Tandem  string        `help:"The program tandem (default: one beside this program, else one that is built from the checkout)." placeholder:"FILE"`
	Other   string        `help:"The program tandem of another release, for the fault 'mixed'." placeholder:"FILE"`
	Models  string        `help:"Folder of the shipped models (default: that of the checkout)." placeholder:"DIR"`
	Inside  string        `hidden:"" help:"The campaign's folder: this process is in namespaces of its own."`
}

// exitSkipped is the exit code where a campaign cannot be had, as of test/scripts/cuda.
const exitSkipped = 3

// skipped is the error of a campaign that cannot be had.
type skipped struct{ error }

// Run runs the campaign, by another process in namespaces of its own.
func (c *campaignRunCmd) Run(a *app) error {
	if c.Inside != "" {
		return c.inside(a)
	}
	if _, err := campaign.ParseKinds(c.Faults); err != nil {
		return tandem.Errorf("", tandem.Invalid, "%w", err)
	}
	dir := c.Keep
	var err error
	if dir == "" {
		if dir, err = os.MkdirTemp("", "tandem-campaign-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	} else if err := os.Mkdir(dir, 0o700); err != nil {
		return tandem.Errorf("", tandem.Invalid, "--keep: %w: want a folder that does not exist yet", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if c.Tandem, err = (tandemFlags{Tandem: c.Tandem}).program(a.ctx, dir); err != nil {
		return err
	}
	if c.Models == "" {
		checkout, ok := find.Checkout()
		if !ok {
			return tandem.Errorf("", tandem.Invalid, "no shipped models: give --models DIR, or run inside a checkout")
		}
		c.Models = filepath.Join(checkout, "models")
	}
	code, err := campaign.Enter(a.ctx, c.args(dir), a.stdout, a.stderr)
	if errors.Is(err, campaign.ErrNamespaces) {
		return skipped{err}
	}
	if report, failed := os.ReadFile(filepath.Join(dir, "report.json")); failed == nil && c.Report != "" {
		err = errors.Join(err, os.WriteFile(c.Report, report, 0o644))
	}
	if code == 1 {
		return errors.New("the campaign has failed")
	}
	return err
}

// args are the arguments of the process inside.
func (c *campaignRunCmd) args(dir string) []string {
	return []string{"campaign", "run", "--inside", dir,
		"--boxes", fmt.Sprint(c.Boxes), "--layout", c.Layout, "--minutes", fmt.Sprint(c.Minutes),
		"--seed", fmt.Sprint(c.Seed), "--faults", c.Faults, "--beat", fmt.Sprint(c.Beat), "--clients", fmt.Sprint(c.Clients),
		"--tandem", c.Tandem, "--other", c.Other, "--models", c.Models}
}

// inside is the campaign, in namespaces of its own.
func (c *campaignRunCmd) inside(a *app) error {
	if err := campaign.Private(); err != nil {
		return err
	}
	kinds, err := campaign.ParseKinds(c.Faults)
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%w", err)
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	layout := campaign.Groups
	if c.Layout == "fleet" {
		layout = campaign.Fleet
	}
	var strategies []string
	for _, name := range strategy.Names() {
		strategies = append(strategies, string(name))
	}
	r, err := campaign.Run(a.ctx, campaign.Config{Layout: layout(c.Boxes),
		Length: time.Duration(c.Minutes * float64(time.Minute)), Seed: c.Seed, Kinds: kinds, Beat: c.Beat, Clients: c.Clients,
		Strategies: strategies, Tandem: c.Tandem, Other: c.Other, Lab: own, Models: c.Models, Dir: c.Inside, Say: a.stderr})
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Inside, "report.json"), append(text, '\n'), 0o644)
	}
	return errors.Join(err, judge(a, r))
}

// judge prints a report, and returns an error if it has problems.
func judge(a *app, r *history.Report) error {
	if err := r.Print(a.stdout); err != nil {
		return err
	}
	if n := len(r.Problems); n > 0 {
		return fmt.Errorf("%d problems: want none", n)
	}
	return nil
}

// campaignSumCmd adds reports up.
type campaignSumCmd struct {
	Files []string `arg:"" help:"Reports, as --report writes them."`
	JSON  bool     `name:"json" help:"Print the sum as JSON, which can be added up again."`
}

// Run prints the sum.
func (c *campaignSumCmd) Run(a *app) error {
	var all []*history.Report
	for _, path := range c.Files {
		r := new(history.Report)
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, r)
		}
		if err != nil {
			return tandem.Errorf("", tandem.Invalid, "report %s: %w", path, err)
		}
		all = append(all, r)
	}
	sum := history.Sum(all)
	if c.JSON {
		return json.NewEncoder(a.stdout).Encode(sum)
	}
	return judge(a, sum)
}

// campaignCheckCmd judges a history.
type campaignCheckCmd struct {
	File string `arg:"" help:"history.jsonl in the folder that --keep names."`
}

// Run prints the report.
func (c *campaignCheckCmd) Run(a *app) error {
	f, err := os.Open(c.File)
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%w", err)
	}
	defer f.Close()
	all, err := history.Read(f)
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s: %w", c.File, err)
	}
	return judge(a, history.Check(all))
}

// boxCmd is the first process of a box, which campaign starts.
type boxCmd struct{}

// Run runs the box until its stdin ends.
func (c *boxCmd) Run(a *app) error { return campaign.Inside(os.Stdin, a.stdout) }

// natsCmd is one server of a NATS cluster.
type natsCmd struct {
	Name    string   `required:"" help:"Its name, unique in the cluster."`
	Store   string   `required:"" help:"Folder for JetStream's files." placeholder:"DIR"`
	Listen  string   `required:"" help:"host:port for tandem's processes." placeholder:"ADDR"`
	Cluster string   `required:"" help:"host:port for the other servers." placeholder:"ADDR"`
	Routes  []string `help:"host:port of the servers of the cluster." placeholder:"ADDR,…"`
	Secrets []string `required:"" help:"Files with secrets. The processes of each have an account of their own." placeholder:"FILE,…"`
	TLSCert string   `name:"tls-cert" required:"" placeholder:"FILE" help:"PEM certificate."`
	TLSKey  string   `name:"tls-key" required:"" placeholder:"FILE" help:"PEM key."`
	TLSCA   string   `name:"tls-ca" required:"" placeholder:"FILE" help:"PEM certificate of the authority."`
}

// readyFD is the descriptor on which the first process of a box waits for a word.
const readyFD = 3

// Run serves until a signal comes.
func (c *natsCmd) Run(a *app) error {
	ctx, release := signal.NotifyContext(context.WithoutCancel(a.ctx), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	return campaign.Node{Name: c.Name, Store: c.Store, Listen: c.Listen, Cluster: c.Cluster, Routes: c.Routes, Secrets: c.Secrets,
		TLS: rpc.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA}, Ready: os.NewFile(readyFD, "ready")}.Run(ctx)
}

// faultKinds are all kinds of faults, for the help.
func faultKinds() string { return strings.Join(campaign.Kinds, ", ") }
