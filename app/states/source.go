package states

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	mostText = 16 << 20 // bytes of a file of plain text
	mostLine = 16 << 20 // bytes of a line of a file of prompts
	heldOf   = 10       // one text of so many is held out
)

// Chat is a line of a file of prompts: a prompt, or a conversation. The target answers both, unless the last message is the assistant's.
type Chat struct {
	ID       string          `json:"id,omitempty"`
	Prompt   string          `json:"prompt,omitempty"` // the same as one message of the user
	Messages []Message       `json:"messages,omitempty"`
	Tools    json.RawMessage `json:"tools,omitempty"` // a JSON array of descriptions
}

// Message is a turn of a chat.
type Message struct {
	Role       string          `json:"role"`
	Content    string          `json:"content"`
	Name       string          `json:"name,omitempty"`
	Reasoning  string          `json:"reasoning_content,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"`
}

// Finished reports whether the chat has its answer: whether its last message is the assistant's.
func (c *Chat) Finished() bool {
	n := len(c.Messages)
	return n > 0 && c.Messages[n-1].Role == "assistant"
}

// source is a text before it has tokens.
type source struct {
	origin string
	hash   [sha256.Size]byte // of a file's name, or of a prompt: says whether it is held out
	order  [sha256.Size]byte // its place: hash, but for instructions of one file, which are apart
	sum    [sha256.Size]byte // of its content
	weight int64             // its share of the work: bytes
	path   string            // of a file of plain text; "" for a chat
	chat   Chat
}

// held reports whether the text is held out: all that a file holds, and all answers to a prompt, are on one side.
func (s *source) held() bool { return binary.BigEndian.Uint32(s.hash[:4])%heldOf == 0 }

// list is all texts of a run, in their order.
type list struct {
	texts   []source
	sum     string // of all names and contents
	leftOut int    // files in folders that are no text
	unused  int    // files of which no instruction could be made
}

// weight returns the work of all texts.
func (l *list) weight() (sum int64) {
	for i := range l.texts {
		sum += l.texts[i].weight
	}
	return sum
}

// list finds all texts and reads their sums. Errors: Invalid.
func (c *Config) list() (*list, error) {
	l := &list{}
	for _, root := range c.Texts {
		if err := l.walk(root, c.MakePrompts); err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--texts %s: %w", root, err)
		}
	}
	for _, path := range c.Prompts {
		if err := l.read(path, c.Raw); err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: %w", path, err)
		}
	}
	if len(l.texts) == 0 && c.MakePrompts && l.unused > 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--make-prompts: %d files in %s have nothing to ask about: want sources with "+
			"commented functions, Markdown with headings, or manual pages", l.unused, strings.Join(c.Texts, ", "))
	}
	if len(l.texts) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "no texts in %s (%d files are no text): want files of UTF-8 text",
			strings.Join(slices.Concat(c.Texts, c.Prompts), ", "), l.leftOut)
	}
	if chats := len(c.Prompts) > 0 && !c.Raw || c.MakePrompts; chats && c.Render == nil {
		return nil, tandem.Errorf("", tandem.Invalid, "the model's file has no chat template to ask it with: give one with "+
			"--chat-template, or --raw to have --prompts continued as they are")
	}
	slices.SortStableFunc(l.texts, func(a, b source) int {
		return cmp.Or(bytes.Compare(a.order[:], b.order[:]), bytes.Compare(a.sum[:], b.sum[:]), strings.Compare(a.origin, b.origin))
	})
	h := sha256.New()
	for _, s := range l.texts {
		fmt.Fprintf(h, "%q %x\n", s.origin, s.sum)
	}
	l.sum = fmt.Sprintf("%x", h.Sum(nil)[:8])
	return l, nil
}

// walk adds a file, or the files in a folder and the folders in it; or instructions made of them if asked. Hidden ones are left out.
func (l *list) walk(root string, asked bool) error {
	whole, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		hidden := path != root && strings.HasPrefix(d.Name(), ".")
		switch {
		case err != nil:
			return err
		case d.IsDir() && hidden:
			return filepath.SkipDir
		case d.IsDir() || hidden || path != root && !d.Type().IsRegular():
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		b, err := readText(path)
		if err == nil && (!utf8.Valid(b) || slices.Contains(b, 0)) {
			err = errors.New("it is not UTF-8 text")
		}
		if err != nil && path == root {
			return err
		}
		if err != nil || len(b) == 0 {
			l.leftOut++
			return nil
		}
		origin := filepath.ToSlash(filepath.Join(filepath.Base(whole), name))
		s := source{origin: origin, hash: sha256.Sum256([]byte(origin)), sum: sha256.Sum256(b), weight: int64(len(b)), path: path}
		if s.order = s.hash; !asked {
			l.texts = append(l.texts, s)
			return nil
		}
		return l.ask(s, string(b))
	})
}

// ask adds the instructions that are made of the text of a file.
func (l *list) ask(file source, text string) error {
	all := instructions(file.origin, text)
	if len(all) == 0 {
		l.unused++
	}
	for i, p := range all {
		s := source{origin: fmt.Sprintf("%s#%d", file.origin, i), hash: file.hash, sum: sha256.Sum256([]byte(p)), weight: int64(len(p)),
			chat: Chat{Messages: []Message{{Role: "user", Content: p}}}}
		s.order = sha256.Sum256([]byte(s.origin))
		l.texts = append(l.texts, s)
	}
	return nil
}

// read adds the lines of a file of prompts.
func (l *list) read(path string, raw bool) error {
	f, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, mostLine)
	for n := 1; lines.Scan(); n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		s := source{origin: fmt.Sprintf("%s:%d", filepath.Base(path), n), sum: sha256.Sum256(lines.Bytes()),
			weight: int64(len(lines.Bytes()))}
		if err := json.Unmarshal(lines.Bytes(), &s.chat); err != nil {
			return fmt.Errorf("line %d: %w: want a JSON object with prompt or messages", n, err)
		}
		switch {
		case (s.chat.Prompt == "") == (len(s.chat.Messages) == 0):
			return fmt.Errorf("line %d: want prompt or messages, and not both", n)
		case raw && s.chat.Prompt == "":
			return fmt.Errorf("line %d has messages: want a prompt, since --raw uses no chat template", n)
		}
		if s.chat.ID != "" {
			s.origin = s.chat.ID
		}
		if s.hash, err = s.chat.hash(raw); err != nil {
			return err
		}
		s.order = s.hash
		l.texts = append(l.texts, s)
	}
	return lines.Err()
}

// hash returns the hash of what is asked, without the answer; it makes the prompt a message, unless it is raw.
func (c *Chat) hash(raw bool) (sum [sha256.Size]byte, err error) {
	if c.Prompt != "" && !raw {
		c.Messages, c.Prompt = []Message{{Role: "user", Content: c.Prompt}}, ""
	}
	asked := Chat{Prompt: c.Prompt, Messages: c.Messages, Tools: c.Tools}
	if c.Finished() {
		asked.Messages = asked.Messages[:len(asked.Messages)-1]
	}
	b, err := json.Marshal(asked)
	return sha256.Sum256(b), err
}

// feeder makes jobs of texts, one after the other.
type feeder struct {
	*Config
	texts []source
	at    place // of the next job

	cut []tandem.Token // of the text at, without the beginning
	of  int            // the text that cut is of, counted from 1
}

// next returns the next job, nil behind the last. A job without tokens is a chat that is too long.
func (f *feeder) next(ctx context.Context) (*job, error) {
	for f.at.Text < len(f.texts) {
		s := &f.texts[f.at.Text]
		var j *job
		var err error
		if s.path == "" {
			j, err = f.chat(ctx, s)
		} else {
			j, err = f.piece(s)
		}
		if err != nil {
			return nil, err
		}
		if j != nil {
			j.Held, j.after, j.seed = s.held(), f.at, f.Sampling.Seed^binary.BigEndian.Uint64(s.sum[:8])
			return j, nil
		}
	}
	return nil, nil
}

// piece returns the next piece of a file; nil if there is none, and then at is the next text.
func (f *feeder) piece(s *source) (*job, error) {
	if f.of != f.at.Text+1 {
		b, err := readText(s.path)
		if err != nil {
			return nil, tandem.Errorf(op, tandem.Invalid, "--texts: %w", err)
		}
		if sha256.Sum256(b) != s.sum {
			return nil, tandem.Errorf(op, tandem.Invalid, "--texts: %s has changed since the run began: want texts that stay", s.path)
		}
		f.cut, f.of = f.Vocab.Encode(string(b), false), f.at.Text+1
	}
	begin := f.Vocab.Begin()
	length := f.Context - len(begin)
	first := f.at.Piece * length
	if last := len(f.cut) - first; first > 0 && last < 2 || last < 1 { // a token alone has nothing that follows
		f.at = place{Text: f.at.Text + 1}
		return nil, nil
	}
	tokens := slices.Concat(begin, f.cut[first:min(len(f.cut), first+length)])
	j := &job{Text: Text{Origin: fmt.Sprintf("%s#%d", s.origin, f.at.Piece), Kind: KindText}, tokens: tokens, most: len(tokens)}
	j.weight = s.weight * int64(len(tokens)) / int64(len(f.cut)+len(begin))
	f.at.Piece++
	return j, nil
}

// chat returns the job of a prompt or chat.
func (f *feeder) chat(ctx context.Context, s *source) (*job, error) {
	j := &job{Text: Text{Origin: s.origin, Kind: KindAnswer}, weight: s.weight}
	var tokens []tandem.Token
	var err error
	if f.Raw {
		tokens = f.Vocab.Encode(s.chat.Prompt, true)
		j.Prompt = len(tokens)
	} else if tokens, j.Prompt, err = f.Render(ctx, s.chat); err != nil {
		return nil, fmt.Errorf("%s: %w", s.origin, err)
	}
	f.at = place{Text: f.at.Text + 1}
	answer := 1
	if s.chat.Finished() {
		j.Kind, answer = KindChat, 0
	}
	if len(tokens)+answer > f.Context || len(tokens) == 0 {
		return j, nil
	}
	j.tokens, j.most = tokens, len(tokens)
	if answer > 0 {
		j.most = min(f.Context, len(tokens)+f.AnswerTokens)
	}
	return j, nil
}
