package campaign

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/lab/campaign/history"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

const (
	patience = 2 * time.Minute // for which a client asks again, behind errors that say that this may help
	pause    = 200 * time.Millisecond
)

// errEnough is the end that a client chose itself.
var errEnough = errors.New("the client has enough")

// gate is one gateway, as its clients see it.
type gate struct {
	name string
	http string
	grpc *client.Client
}

// streamsKey is the key of a context's count of streams.
type streamsKey struct{}

// dial connects with the gateways. Close them by their Close.
func (h *hub) dial() (gates []*gate, err error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(h.folder(0), "cert.pem"), filepath.Join(h.folder(0), "key.pem"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(h.folder(0), "ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	count := func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, s grpc.Streamer, o ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if n, ok := ctx.Value(streamsKey{}).(*int); ok {
			*n++
		}
		return s(ctx, d, c, method, o...)
	}
	for _, m := range h.layout.of(Gateway, 0) {
		c, err := client.Dial(m.listen(), client.WithToken(apiKey), client.WithDialOptions(grpc.WithStreamInterceptor(count)),
			client.WithTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}))
		if err != nil {
			return nil, err
		}
		gates = append(gates, &gate{name: m.Name, http: "http://" + m.http(), grpc: c})
	}
	return gates, nil
}

// progress is what a client has of an answer.
type progress struct {
	text           strings.Builder
	prompt, output int
	streams        int    // that have begun
	id             string // of the last event over HTTP
	most           int    // events after which the client has enough; 0 = never
	events         int
}

// came takes a piece of text. Errors: errEnough.
func (p *progress) came(text string) error {
	p.text.WriteString(text)
	p.events++
	if p.most > 0 && p.events >= p.most {
		return errEnough
	}
	return nil
}

// generate runs an ask by the Go client, which takes streams up again by itself.
func (a ask) generate(ctx context.Context, g *gate, p *progress) error {
	for e, err := range g.grpc.Generate(context.WithValue(ctx, streamsKey{}, &p.streams), a.request()) {
		switch {
		case err != nil:
			return err
		case e.Delta != nil:
			if err := p.came(e.Delta.Text); err != nil {
				return err
			}
		case e.Finished != nil:
			p.prompt, p.output = e.Finished.PromptTokens, e.Finished.OutputTokens
			return nil
		}
	}
	return &client.Error{Kind: client.Internal, Message: "the sequence of events ended before Finished"}
}

// talk runs an ask with chat by the Go client.
func (a ask) talk(ctx context.Context, g *gate, p *progress) error {
	for m, err := range g.grpc.Chat(context.WithValue(ctx, streamsKey{}, &p.streams), a.conversation()) {
		if err != nil {
			return err
		}
		switch e := m.Event.(type) {
		case *tandemv1.ChatResponse_Text:
			if err := p.came(e.Text); err != nil {
				return err
			}
		case *tandemv1.ChatResponse_Finished:
			p.prompt, p.output = int(e.Finished.GetUsage().GetPromptTokens()), int(e.Finished.GetUsage().GetOutputTokens())
			return nil
		}
	}
	return &client.Error{Kind: client.Internal, Message: "the sequence of events ended before finished"}
}

// post runs an ask over HTTP, or goes on with it behind the last event.
func (a ask) post(ctx context.Context, g *gate, p *progress) error {
	path, content := a.body()
	body, err := json.Marshal(content)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.http+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+apiKey)
	if p.id != "" {
		r.Header.Set("Last-Event-ID", p.id)
	}
	answer, err := httpClient.Do(r)
	if err != nil {
		return unreachable(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
		return &client.Error{Kind: kindOf(answer.StatusCode), Message: fmt.Sprintf("%s: %s", answer.Status, text)}
	}
	p.streams++
	return p.read(ctx, answer.Body)
}

// httpClient notices a gateway that says nothing, as the clients of gRPC do by their keepalive.
var httpClient = &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: 30 * time.Second, MaxIdleConnsPerHost: 16,
	IdleConnTimeout: 20 * time.Second}}

func unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &client.Error{Kind: client.Unavailable, Message: err.Error()}
}

// kindOf returns the kind of error that a status of HTTP stands for.
func kindOf(status int) client.Kind {
	switch status {
	case http.StatusTooManyRequests:
		return client.Exhausted
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		return client.Unavailable
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return client.Deadline
	case http.StatusInternalServerError:
		return client.Internal
	case http.StatusUnauthorized:
		return client.Unauthenticated
	case http.StatusConflict:
		return client.Stale
	}
	return client.Invalid
}

// chunk is the data of an event.
type chunk struct {
	Choices []struct {
		Text  string
		Delta struct{ Content string }
	}
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	}
	Error *struct {
		Type string
	}
}

// read reads events until the stream is complete or breaks off. An event counts when the empty line behind it is there.
func (p *progress) read(ctx context.Context, body io.Reader) error {
	in := bufio.NewScanner(body)
	in.Buffer(nil, 1<<20)
	var id, data string
	for in.Scan() {
		line := in.Text()
		switch {
		case strings.HasPrefix(line, "id: "):
			id = line[len("id: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		case line == "" && data == "[DONE]":
			return nil
		case line == "" && data != "":
			if err := p.event(id, data); err != nil {
				return err
			}
			id, data = "", ""
		}
	}
	err := in.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return unreachable(ctx, err)
}

func (p *progress) event(id, data string) error {
	var c chunk
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return &client.Error{Kind: client.Corrupt, Message: fmt.Sprintf("event %q: %v", data, err)}
	}
	if c.Error != nil {
		return &client.Error{Kind: c.kind(), Message: data}
	}
	if id != "" {
		p.id = id
	}
	if c.Usage != nil {
		p.prompt, p.output = c.Usage.Prompt, c.Usage.Output
	}
	if len(c.Choices) > 0 {
		return p.came(c.Choices[0].Text + c.Choices[0].Delta.Content)
	}
	return nil
}

// kind returns what an error within a stream stands for.
func (c chunk) kind() client.Kind {
	switch c.Error.Type {
	case "unavailable_error":
		return client.Unavailable
	case "rate_limit_error":
		return client.Exhausted
	case "timeout_error":
		return client.Deadline
	}
	return client.Internal
}

// kindName is the kind of an error as histories hold it.
func kindName(err error) (kind, message string) {
	if e := (*client.Error)(nil); errors.As(err, &e) {
		return string(e.Kind), e.Message
	}
	return "UNKNOWN", err.Error()
}

// documented reports whether asking again may help.
func documented(err error) bool {
	return errors.Is(err, client.Unavailable) || errors.Is(err, client.Exhausted) || errors.Is(err, client.Deadline)
}

// run asks by one of the APIs until the answer is whole, an error remains, or ctx ends. The record lacks its ID.
func (a ask) run(ctx context.Context, via string, gates []*gate, first, enough int) history.Record {
	r := history.Record{Kind: history.Answer, Ask: a.name, Via: via}
	p := &progress{most: enough}
	for begun, i := time.Now(), first; ; i++ {
		g := gates[i%len(gates)]
		r.Gateways = append(r.Gateways, g.name)
		run := a.post
		if via == "grpc" { // the client has taken streams up where it could
			if p.text.Len() > 0 {
				r.Began = append(r.Began, p.text.String())
			}
			p = &progress{most: enough}
			if run = a.generate; a.chat {
				run = a.talk
			}
		}
		err := run(ctx, g, p)
		r.Text, r.Prompt, r.Output, r.Taken = p.text.String(), p.prompt, p.output, max(0, p.streams-1)
		switch {
		case err == nil:
			r.Outcome = history.Whole
			return r
		case errors.Is(err, errEnough):
			r.Outcome = history.Canceled
			return r
		case ctx.Err() != nil:
			r.Outcome = ""
			return r
		case !documented(err) || time.Since(begun) > patience:
			r.Outcome = history.Failed
			r.Code, r.Message = kindName(err)
			return r
		}
		kind, message := kindName(err)
		r.Errors, r.Message = append(r.Errors, kind), message
		time.Sleep(pause)
	}
}
