package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/chat"
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/services/access"
	httpapi "github.com/tandem-llm/tandem/services/httpapi"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
)

// httpFlags say where and for whom a gateway serves HTTP.
type httpFlags struct {
	HTTP         string   `name:"http" help:"Address of the HTTP server, with OpenAI's API and the playground: host:port, unix:///path, or off." default:"127.0.0.1:8450" placeholder:"ADDR"`
	APIKey       []string `name:"api-key" help:"Key of a client, sent as \"Authorization: Bearer KEY\"; may be repeated. Clients with different keys share no memory. Without any, everybody who can connect is let in." placeholder:"KEY" sep:"none" secret:"x"`
	APIKeys      string   `name:"api-keys" help:"File with one key a line; empty lines and those that begin with # are left out." placeholder:"FILE"`
	ChatTemplate string   `help:"File with the Jinja template of chats, for a model that has none or a wrong one." placeholder:"FILE"`
}

// off is what --http says for no HTTP server.
const off = "off"

// maxKeyFile bounds a file of keys in bytes.
const maxKeyFile = 1 << 20

// tokens returns the keys of the clients.
func (f httpFlags) tokens() ([]string, error) {
	all := append([]string{}, f.APIKey...)
	if f.APIKeys == "" {
		return all, nil
	}
	file, err := os.Open(f.APIKeys)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--api-keys %s: %w", f.APIKeys, reason(err))
	}
	defer file.Close()
	before := len(all)
	lines := bufio.NewScanner(io.LimitReader(file, maxKeyFile))
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--api-keys %s: %w", f.APIKeys, reason(err))
	}
	if len(all) == before {
		return nil, tandem.Errorf("", tandem.Invalid, "--api-keys %s: holds no key", f.APIKeys)
	}
	return all, nil
}

// keys returns the same, ready to be compared; nil for none.
func (f httpFlags) keys() (*access.Keys, error) {
	tokens, err := f.tokens()
	if err != nil {
		return nil, err
	}
	return access.New(tokens)
}

// check refuses what a gateway would refuse later, as its child.
func (f httpFlags) check() error {
	if _, err := f.keys(); err != nil {
		return err
	}
	if f.ChatTemplate == "" {
		return nil
	}
	_, err := readTemplate(f.ChatTemplate, chat.Special{})
	return err
}

// args returns the flags that say the same to a child; its keys stand in a file, because anybody can read flags.
func (f httpFlags) args(keyFile string) []string {
	args := []string{"--http", or(f.HTTP, off)}
	if keyFile != "" {
		args = append(args, "--api-keys", keyFile)
	}
	if f.ChatTemplate != "" {
		args = append(args, "--chat-template", f.ChatTemplate)
	}
	return args
}

// writeKeys writes the keys to path for a child; "" if there are none.
func (f httpFlags) writeKeys(path string) (string, error) {
	tokens, err := f.tokens()
	if err != nil || len(tokens) == 0 {
		return "", err
	}
	return path, os.WriteFile(path, []byte(strings.Join(tokens, "\n")+"\n"), 0o600)
}

// url returns the HTTP server's address as browsers take it; the flag itself for a socket, "" for none.
func (f httpFlags) url() string {
	switch {
	case f.HTTP == "" || f.HTTP == off:
		return ""
	case strings.HasPrefix(f.HTTP, "unix://"):
		return f.HTTP
	case strings.HasPrefix(f.HTTP, ":"):
		return "http://127.0.0.1" + f.HTTP
	}
	return "http://" + f.HTTP
}

// chatRoom renders conversations for a model; it implements httpapi.Chat.
type chatRoom struct {
	template *chat.Template
	vocab    *token.Vocab
}

// newChat returns how conversations with the model of a file are rendered: by the template of a flag, else the
// model's own, nil if there is neither. A template of the model that cannot be used leaves chats refused, with why.
func newChat(flag, model string, vocab *token.Vocab) (httpapi.Chat, error) {
	var special chat.Special
	if t, ok := vocab.BOS(); ok {
		special.BOS = vocab.Piece(t)
	}
	if t, ok := vocab.EOS(); ok {
		special.EOS = vocab.Piece(t)
	}
	if flag != "" {
		t, err := readTemplate(flag, special)
		return chatRoom{t, vocab}, err
	}
	f, err := gguf.Open(model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := chat.FromGGUF(f, vocab)
	switch {
	case err != nil:
		return noChat{tandem.Errorf("chat", tandem.Unsupported, "the chat template of model %s cannot be used: %w: give one with --chat-template", modelName(model), err)}, nil
	case t == nil:
		return nil, nil
	}
	return chatRoom{t, vocab}, nil
}

// noChat refuses every conversation.
type noChat struct{ err error }

// Prompt implements httpapi.Chat.
func (n noChat) Prompt(context.Context, []oai.Message) (httpapi.Prompt, error) {
	return httpapi.Prompt{}, n.err
}

// maxTemplate bounds a template file in bytes.
const maxTemplate = 256 << 10

// readTemplate reads the file of --chat-template.
func readTemplate(path string, special chat.Special) (*chat.Template, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template %s: %w", path, reason(err))
	}
	defer file.Close()
	source, err := io.ReadAll(io.LimitReader(file, maxTemplate+1))
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template %s: %w", path, reason(err))
	}
	t, err := chat.Parse(string(source), special)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template %s: %w", path, err)
	}
	return t, nil
}

// Prompt implements httpapi.Chat. Control tokens come from the template alone; the one that begins a text is added
// where the model wants it and the template has not written it.
func (c chatRoom) Prompt(ctx context.Context, messages []oai.Message) (httpapi.Prompt, error) {
	turns := make([]chat.Message, len(messages))
	for i, m := range messages {
		turns[i] = chat.Message{Role: m.Role, Content: m.Content, Name: m.Name, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, ToolCalls: m.ToolCalls}
	}
	r, err := c.template.Render(ctx, turns, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		return httpapi.Prompt{}, err
	}
	guarded := make([]token.Span, len(r.User))
	for i, s := range r.User {
		guarded[i] = token.Span(s)
	}
	tokens := c.vocab.EncodeGuarded(r.Text, guarded)
	bos, has := c.vocab.BOS()
	if around := c.vocab.Encode("", true); has && len(around) > 0 && around[0] == bos && (len(tokens) == 0 || tokens[0] != bos) {
		tokens = append([]tandem.Token{bos}, tokens...)
	}
	return httpapi.Prompt{Text: r.Text, Tokens: tokens}, nil
}

// model is a model file, as far as a gateway looks into it.
type model struct {
	path, architecture string
	vocab              *token.Vocab
}

// web opens the HTTP server of c with what only the model and the flags say.
func (f httpFlags) web(c httpapi.Config, m model) (*httpapi.Server, error) {
	var err error
	if c.Chat, err = newChat(f.ChatTemplate, m.path, m.vocab); err != nil {
		return nil, err
	}
	c.Listen, c.Model, c.Vocab = f.HTTP, m.told(), m.vocab
	s, err := httpapi.New(c)
	if err != nil {
		return nil, tandem.Errorf("", tandem.KindOf(err), "--http: %w", err)
	}
	return s, nil
}

// serveWith is serve with an HTTP server beside; nil for none. When one of them ends, so does the other.
func (r *role) serveWith(ctx context.Context, web *httpapi.Server) error {
	if web == nil {
		return r.serve(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := web.Run(ctx)
		cancel(err)
		done <- err
	}()
	err := r.serve(ctx)
	cancel(err)
	return errors.Join(err, <-done)
}

// told is what HTTP's clients are told of the model.
func (m model) told() httpapi.Model {
	path, vocab := m.path, m.vocab
	out := httpapi.Model{Name: modelName(path), Architecture: m.architecture}
	var size int64
	if st, err := os.Stat(path); err == nil {
		out.Created, size = st.ModTime(), st.Size()
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d %016x %s", out.Name, size, vocab.Fingerprint(), buildVersion().Version)
	out.Fingerprint = fmt.Sprintf("fp_%016x", h.Sum64())
	return out
}

// readyTime is how long up waits for the engine's first token, which takes milliseconds once the verifier serves.
const readyTime = 10 * time.Second

// awaitHTTP waits until a gateway says that it is ready, so that the first request need not wait. One that does not
// become so says why to those who ask.
func awaitHTTP(ctx context.Context, url string) {
	if !strings.HasPrefix(url, "http://") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return
		}
		answer, err := client.Do(r)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}
