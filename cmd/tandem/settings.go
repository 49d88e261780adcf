package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/modelfile/hub"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/settings"
)

// groupFlags are the settings of the three processes run together.
type groupFlags struct{ settings.Group }

// sessionsOr returns the number of sessions, def if none is given.
func (g groupFlags) sessionsOr(def int) int { return cmp.Or(g.Sessions, def) }

// modelPaths returns the paths of the target and of its drafts for r and the like; no drafts with noDraft.
func modelPaths(m settings.Models, noDraft bool, r tandem.Request) (target string, drafts []string, err error) {
	if target, err = find.Target(m.Target); err != nil || noDraft {
		return target, nil, err
	}
	drafts, err = find.Drafts(m.Draft, m.Target, r)
	return target, drafts, err
}

// unnamed looks for drafts for the target of s, if one was named and no draft, and the target's own file holds none.
func (a *app) unnamed(s *start.Setup) {
	if s.Target == "" || slices.ContainsFunc(s.Draft, func(d string) bool { return d != "" }) ||
		!slices.Equal(s.DraftFiles, []string{drafter.Lookup}) || len(s.Heads) > 0 {
		return
	}
	p, err := a.puller(s.CacheDir)
	if err == nil {
		s.Candidates, s.Fetch, err = find.Beside(s.TargetFile, p.Hub)
	}
	if s.Unknown = err == nil; err != nil {
		a.say("tandem: no draft was looked for: %v", err)
	}
}

// fetchDraft fetches the first of the drafts that are not here whose header says that it fits and that it is expected to pay. What is wrong
// with others is told in a line.
func (a *app) fetchDraft(ctx context.Context, s start.Setup) {
	for _, name := range s.Fetch {
		p, err := a.puller(s.CacheDir)
		if err == nil {
			p.Sizes, p.KVType = settings.Sizes{Ctx: s.Ctx, Sessions: s.AtOnce}, s.KVType
			_, err = p.Draft(ctx, name, func(path string) error { return s.Pays(a.env(), path) })
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			a.say("tandem: the draft %s was fetched: the next start drafts with it", name)
			return
		}
		a.say("tandem: the draft %s is not fetched: %s", name, terminal.OneLine(err.Error()))
	}
}

// drafts puts the paths of drafts that are named like models in place of their names, and fetches those that are not here.
func (a *app) drafts(m *settings.Models, dir settings.CacheDir) error {
	for i, d := range m.Draft {
		if d == "" || d == drafter.Lookup || d == string(side.MTP) || d == string(side.Dovetail) || hub.IsPath(d) || side.IsMTPPath(d) {
			continue
		}
		p, err := a.puller(dir)
		if err != nil {
			return err
		}
		got, err := p.Get(a.ctx, d)
		if err != nil {
			return err
		}
		m.Draft[i] = got.File
	}
	return nil
}

// showConfigCmd has every setting of every command, so that all are shown and checked.
type showConfigCmd struct {
	Every bool `name:"all" help:"List every setting: its key, default and meaning." setting:"-"`
	settings.All
	output
}

// Run prints the effective settings.
func (c *showConfigCmd) Run(a *app) error {
	if c.Every {
		return c.list(a)
	}
	list := a.settings.Effective(a.kong)
	if c.JSON {
		return terminal.PrintJSON(a.stdout, map[string]any{"settings": list})
	}
	w := tabwriter.NewWriter(terminal.Printable{To: a.stdout}, 0, 0, 2, ' ', 0)
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%v\t%s\n", s.Name, s.Value, s.Origin)
	}
	return w.Flush()
}

// list prints what there is to set.
func (c *showConfigCmd) list(a *app) error {
	if c.JSON {
		return terminal.PrintJSON(a.stdout, map[string]any{"settings": settings.List()})
	}
	for _, group := range settings.Groups {
		fmt.Fprintf(a.stdout, "%s\n", group)
		for _, s := range settings.List() {
			if s.Group == group {
				fmt.Fprintf(a.stdout, "  %s (default: %s)\n      %s\n", s.Key, or(s.Default, "none"), s.Help)
			}
		}
	}
	return nil
}
