package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/tandem-llm/tandem/lab/arrows"
)

// arrowsCmd counts arrows between files.
type arrowsCmd struct {
	Rooms  []string `arg:"" optional:"" help:"Folders of packages, with all below them, from the root of the module; none: drafter, verifier, engine, gateway."`
	Root   string   `default:"." help:"Root of the module."`
	Listed bool     `short:"v" help:"Also the files in the order that was found, and the arrows that run back up, with the names that are used."`
}

// Run prints a line for each room: files, arrows, and those that run back up in the best order of the files that was found.
func (c *arrowsCmd) Run(a *app) error {
	if len(c.Rooms) == 0 {
		c.Rooms = []string{"drafter", "verifier", "engine", "gateway"}
	}
	rooms, err := arrows.Count(c.Root, c.Rooms)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "room\tfiles\tarrows\tback up")
	for _, r := range rooms {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", r.Name, len(r.Files), len(r.Down)+len(r.Up), len(r.Up))
	}
	if err := w.Flush(); err != nil || !c.Listed {
		return err
	}
	for _, r := range rooms {
		fmt.Fprintf(a.stdout, "\n%s: %s\n", r.Name, strings.Join(r.Files, " "))
		for _, x := range r.Up {
			fmt.Fprintf(a.stdout, "  %s ▲ %s: %s\n", x.From, x.To, strings.Join(x.Names, ", "))
		}
	}
	return nil
}
