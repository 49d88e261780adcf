package gateway

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi"
	"github.com/tandem-llm/tandem/text/token"
)

// model is what a gateway reads from a model file.
type model struct {
	path               string
	name, architecture string // in the file
	vocab              *token.Vocab
	chat               conversation.Chat
	sampling           tandem.Preset // as its file says
	info               *engine.Info
	digest             *fileDigest
}

// web opens the HTTP server of h; it fills in what the model and the configuration decide.
func (c Config) web(h httpapi.Config, m model) (*httpapi.Server, error) {
	h.Build = c.Version
	h.Defaults.Sampling = HTTPSampling(c.Sampling, m.sampling)
	h.Listen, h.Hosts, h.MetricsKeys, h.Model, h.Vocab, h.Chat = c.HTTP, c.AllowHost, c.MetricsKeys, m.told(), m.vocab, m.chat
	h.Origins, h.Strict, h.KeepAttribution, h.Model.Aliases = c.Origins, c.Strict, c.KeepAttribution, c.Aliases
	h.Defaults.MaxTokens = ask.ToTheEnd // as OpenAI's and llama.cpp's; gRPC has a number
	s, err := httpapi.New(h)
	if err != nil {
		return nil, tandem.Errorf("", tandem.KindOf(err), "--http: %w", err)
	}
	return s, nil
}

// HTTPSampling returns the sampling options for what an HTTP request leaves out: those of the process's settings, else those of the model's
// file, else llama.cpp's.
func HTTPSampling(told, file tandem.Preset) tandem.Sampling {
	return told.Over(file.Over(tandem.ServerSampling))
}

// serveWith runs r.Serve and web, which may be nil. When one of them ends, so does the other.
func serveWith(ctx context.Context, r *roles.Process, web *httpapi.Server) error {
	if web == nil {
		return r.Serve(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := web.Run(ctx)
		cancel(err)
		done <- err
	}()
	err := r.Serve(ctx)
	cancel(err)
	return errors.Join(err, <-done)
}

// told returns the description of the model for HTTP's clients.
func (m model) told() httpapi.Model {
	out := httpapi.Model{Name: roles.ModelName(m.path), Architecture: m.architecture, File: filepath.Base(m.path),
		Bytes: m.info.FileBytes, Parameters: m.info.Parameters, Stored: m.info.Stored, Trained: m.info.Config.Context, Digest: m.digest.Hex}
	if t, ok := m.chat.(interface{ Source() string }); ok {
		out.Template = t.Source()
	}
	if st, err := os.Stat(m.path); err == nil {
		out.Created = st.ModTime()
	}
	return out
}
