package hub

import (
	"context"
	"encoding/json"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tandem-llm/tandem"
)

// listed is a file in the hub's listing of a repository: GET /api/models/ORG/REPO/tree/COMMIT.
type listed struct {
	Type string `json:"type"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"` // of git
	LFS  *struct {
		OID  string `json:"oid"` // SHA-256
		Size int64  `json:"size"`
	} `json:"lfs"`
}

const maxPages = 100 // of a listing

var (
	sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)
	nextPage   = regexp.MustCompile(`<([^>]+)>; *rel="next"`)
)

// planHugging plans a model of the hub.
func (c Config) planHugging(ctx context.Context, n Name) (*Plan, error) {
	s, err := c.newSession(c.Endpoint, c.Token, n.String())
	if err != nil {
		return nil, err
	}
	api := c.Endpoint + "/api/models/" + n.Org + "/" + n.Repo
	commit, err := s.commit(ctx, api+"/revision/"+url.PathEscape(n.Revision))
	if err != nil {
		return nil, err
	}
	entries, err := s.tree(ctx, api+"/tree/"+commit+"?recursive=true")
	if err != nil {
		return nil, err
	}
	choice, err := Choose(entries, n.Quant+n.Path)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.KindOf(err), "%s: %w", n, err)
	}
	repo := n.repoFolder()
	p := &Plan{Name: n, Quant: choice.Quant, Left: choice.Left, Store: c.HubCache, root: repo, s: s}
	for _, f := range choice.Files {
		link := filepath.Join("snapshots", commit, filepath.FromSlash(f.Path))
		p.receipt.Links = append(p.receipt.Links, link)
		b := &blob{url: c.Endpoint + "/" + n.Org + "/" + n.Repo + "/resolve/" + commit + "/" + escaped(f.Path), size: f.Size,
			digest: f.Digest}
		p.wants = append(p.wants, want{shown: filepath.Base(link), blob: b, at: filepath.Join(repo, "blobs", hexOf(f.Digest)),
			lock: filepath.Join(".locks", repo, hexOf(f.Digest)+".lock"), link: filepath.Join(repo, link)})
	}
	p.receipt.Name, p.receipt.Link = n.String(), p.receipt.Links[0]
	p.receipt.Drafts = draftsBeside(choice)
	if n.Revision != commit {
		p.last = []file{{filepath.Join(repo, "refs", n.Revision), []byte(commit)}}
	}
	return p, nil
}

// escaped escapes the parts of a path for an address.
func escaped(p string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// commit returns the commit that a revision is now.
func (s *session) commit(ctx context.Context, u string) (string, error) {
	b, _, err := s.read(ctx, u, nil, maxAnswer)
	if err != nil {
		return "", err
	}
	var of struct {
		SHA string `json:"sha"`
	}
	if err := json.Unmarshal(b, &of); err != nil || !commitPart.MatchString(of.SHA) {
		return "", lie("%s: %s names no commit: is it a hub? (HF_ENDPOINT)", s.what, s.origin.Host)
	}
	return of.SHA, nil
}

// tree returns the files of a repository that can be fetched, page by page. The others, such as those with strange names, do not count.
func (s *session) tree(ctx context.Context, u string) (all []Entry, err error) {
	for range maxPages {
		b, first, err := s.read(ctx, u, nil, maxAnswer)
		if err != nil {
			return nil, err
		}
		var page []listed
		if err := json.Unmarshal(b, &page); err != nil {
			return nil, lie("%s: %s answers with no listing: %w", s.what, s.origin.Host, err)
		}
		for _, f := range page {
			e := Entry{Path: f.Path, Size: f.Size, Digest: "git:" + f.OID}
			ok := commitPart.MatchString(f.OID)
			if f.LFS != nil {
				e.Size, e.Digest, ok = f.LFS.Size, "sha256:"+f.LFS.OID, sha256Form.MatchString(f.LFS.OID)
			}
			if f.Type == "file" && ok && e.Size > 0 && inside(e.Path) {
				all = append(all, e)
			}
		}
		m := nextPage.FindStringSubmatch(first.Get("Link"))
		if m == nil {
			return all, nil
		}
		to, err := s.origin.Parse(m[1])
		if err != nil || hostPort(to) != hostPort(s.origin) || to.Scheme != s.origin.Scheme {
			return nil, lie("%s: the listing goes on at another address than %s", s.what, s.origin.Host)
		}
		u = to.String()
	}
	return nil, lie("%s: the listing has more than %d pages", s.what, maxPages)
}
