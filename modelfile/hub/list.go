package hub

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
)

// List returns the models of all three stores, by name. What cannot be read is left out.
func (c Config) List() (all []Found) {
	repos, _ := filepath.Glob(filepath.Join(c.HubCache, "models--*--*")) // the pattern is right
	for _, repo := range repos {
		parts := strings.SplitN(filepath.Base(repo), "--", 3)
		if n := (Name{Source: Hugging, Org: parts[1], Repo: parts[2], Revision: mainRevision}); part(n.Org) && part(n.Repo) {
			all = append(all, c.listRepository(n)...)
		}
	}
	for i, store := range c.Stores {
		if !slices.Contains(c.Stores[:i], store) {
			all = append(all, c.listStore(store)...)
		}
	}
	for _, r := range receipts(c.Own) {
		if f, ok, err := c.findWeb(Name{Source: Web, URL: r.Name}); err == nil && ok {
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b Found) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// listRepository returns the models of a repository, each once.
func (c Config) listRepository(n Name) (all []Found) {
	seen := map[string]bool{}
	for _, dir := range c.snapshots(n) {
		entries, _ := below(dir) // as far as it can be read
		models, _ := group(entries)
		for _, m := range models {
			each := n
			if each.Quant = quantOf(m[0].Path); each.Quant == "" || len(ofQuant(models, each.Quant)) > 1 {
				each.Quant, each.Path = "", m[0].Path
			}
			f, ok, err := c.findHugging(each)
			if err == nil && ok && !seen[f.Name] {
				seen[f.Name] = true
				all = append(all, f)
			}
		}
	}
	return all
}

// listStore returns the models of one of Ollama's stores.
func (c Config) listStore(store string) (all []Found) {
	manifests, _ := filepath.Glob(filepath.Join(store, "manifests", "*", "*", "*", "*"))
	for _, path := range manifests {
		link, err := filepath.Rel(store, path)
		if err != nil {
			continue
		}
		parts := strings.Split(filepath.ToSlash(link), "/")
		n := Name{Source: Ollama, Host: parts[1], Namespace: parts[2], Model: parts[3], Tag: parts[4]}
		if own := n; part(n.Namespace) && part(n.Model) && part(n.Tag) && hostPart.MatchString(n.Host) {
			own.Host = ""
			if c.manifestPath(own) == link {
				n = own
			}
			if f, err := foundByManifest(store, link, n.String()); err == nil {
				all = append(all, f)
			}
		}
	}
	return all
}
