package states

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/cache"
)

const (
	aboutName = "states.json" // of the file that says with which arguments a folder was begun
	spare     = 64 << 20      // bytes that a run leaves free on the disk
)

// about is the content of states.json.
type about struct {
	Version   int               `json:"version"`
	Arguments map[string]string `json:"arguments"` // by their names on the command line
	Shape     Shape             `json:"shape"`
}

// folder is a folder of shards that this process alone writes to.
type folder struct {
	dir   string
	lock  *os.File
	shape Shape

	shards, texts, held, answers, tokens, heldTokens, tooLong int

	size int64 // of the shards: bytes
	used int64 // of --max-size, which counts headers at their largest
	next place // behind the last shard
}

// openFolder makes dir or opens it to go on. Errors: Invalid for a folder of other arguments, Corrupt for damaged shards, Unavailable while
// another process writes there.
func openFolder(dir string, arguments map[string]string, shape Shape) (*folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "--out: %w", err)
	}
	f := &folder{dir: dir, shape: shape}
	var err error
	if f.lock, err = os.Open(dir); err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "--out: %w", err)
	}
	if err = syscall.Flock(int(f.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = tandem.Errorf(op, tandem.Unavailable, "--out %s: another process writes there: %w", dir, err)
	} else {
		err = f.begin(about{version, arguments, shape})
	}
	if err == nil {
		err = f.resume()
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *folder) close() { _ = f.lock.Close() }

// begin compares the arguments with those that the folder was begun with, or writes them into an empty one.
func (f *folder) begin(now about) error {
	path := filepath.Join(f.dir, aboutName)
	b, err := files.ReadFile(path, 1<<20)
	if errors.Is(err, os.ErrNotExist) {
		return f.first(path, now)
	}
	var old about
	if err == nil {
		err = json.Unmarshal(b, &old)
	}
	if err != nil {
		return tandem.Errorf(op, tandem.Corrupt, "%s: %w: want what tandem model states has written; or another --out", path, err)
	}
	if old.Version != version {
		return tandem.Errorf(op, tandem.Unsupported, "%s: version %d of states: want %d", path, old.Version, version)
	}
	for _, name := range slices.Sorted(maps.Keys(now.Arguments)) {
		if was, is := old.Arguments[name], now.Arguments[name]; was != is {
			return tandem.Errorf(op, tandem.Invalid, "--out %s was begun with other arguments: %s was %q and is %q: want the same, or "+
				"another folder", f.dir, name, was, is)
		}
	}
	return nil
}

// first begins an empty folder.
func (f *folder) first(path string, now about) error {
	in, err := os.ReadDir(f.dir)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "--out: %w", err)
	}
	for _, e := range in {
		if !unfinished(e.Name()) {
			return tandem.Errorf(op, tandem.Invalid, "--out %s has the file %q and no %s: want an empty folder, or one that this command "+
				"has begun", f.dir, e.Name(), aboutName)
		}
	}
	b, err := json.MarshalIndent(now, "", " ")
	if err != nil {
		return err
	}
	return files.Replace(path, append(b, '\n'))
}

// unfinished reports whether a file is what a killed process has left of files.Replace.
func unfinished(name string) bool { return strings.HasPrefix(name, ".new-") }

// resume reads the shards that are there.
func (f *folder) resume() error {
	in, err := os.ReadDir(f.dir)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "--out: %w", err)
	}
	var names []string
	for _, e := range in {
		switch {
		case unfinished(e.Name()):
			err = errors.Join(err, os.Remove(filepath.Join(f.dir, e.Name())))
		case strings.HasSuffix(e.Name(), extension):
			names = append(names, e.Name())
		}
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		path := f.path(f.shards)
		if name != filepath.Base(path) {
			return tandem.Errorf(op, tandem.Invalid, "%s is there and %s, the shard before it, is not: want all shards, or another --out",
				filepath.Join(f.dir, name), filepath.Base(path))
		}
		s, err := Read(path)
		if err != nil {
			return fmt.Errorf("%w: remove it and the shards behind it to have them made again", err)
		}
		if err := s.fits(path, &f.shape); err != nil {
			return err
		}
		if s.From != f.next {
			return tandem.Errorf(op, tandem.Invalid,
				"%s begins with text %d, piece %d: want text %d, piece %d, where the shard before it ends", path, s.From.Text,
				s.From.Piece, f.next.Text, f.next.Piece)
		}
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		f.count(s, st.Size())
	}
	return nil
}

const extension = ".states"

// path returns where a shard lies.
func (f *folder) path(n int) string { return filepath.Join(f.dir, fmt.Sprintf("%06d%s", n, extension)) }

// count adds a shard of so many bytes to what is there.
func (f *folder) count(s *Shard, size int64) {
	f.shards, f.size, f.next, f.tooLong = f.shards+1, f.size+size, s.Next, f.tooLong+s.TooLong
	f.tokens, f.texts = f.tokens+s.Tokens, f.texts+len(s.Texts)
	f.used += perShard + s.tokenSize()*int64(s.Tokens)
	for _, t := range s.Texts {
		f.used += textSize(t.Origin)
		if t.Held {
			f.held, f.heldTokens = f.held+1, f.heldTokens+t.Tokens
		}
		if t.Kind == KindAnswer {
			f.answers++
		}
	}
}

// add writes the next shard.
func (f *folder) add(s *Shard) error {
	n, err := s.write(f.path(f.shards))
	if err == nil {
		f.count(s, n)
	}
	return err
}

// room returns Exhausted if the disk of path has no room for so many bytes more.
func room(path string, bytes int64) error {
	free, _, err := cache.Space(path)
	if err == nil && free < bytes+spare {
		err = tandem.Errorf(op, tandem.Exhausted, "%s: %d MiB are to be written, and %d MiB are free: want %d MiB free besides; bound the "+
			"states by --max-tokens or --max-size, or name another --out", filepath.Dir(path), bytes>>20, free>>20, int64(spare)>>20)
	}
	return err
}

// result describes the folder after a run that began at a time, when it had so many tokens.
func (f *folder) result(begun time.Time, before int) *Result {
	r := &Result{Model: f.shape.Name, Identity: f.shape.Identity, Shards: f.shards, Bytes: f.size, Texts: f.texts, Held: f.held,
		Tokens: f.tokens, HeldTokens: f.heldTokens, Answers: f.answers, TooLong: f.tooLong, Before: before,
		Seconds: time.Since(begun).Seconds(), Shape: f.shape}
	if f.tokens > before {
		r.Rate = float64(f.tokens-before) / r.Seconds
	}
	return r
}
