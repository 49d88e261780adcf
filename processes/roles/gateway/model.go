package gateway

import (
	"os"
	"path/filepath"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi"
	"github.com/tandem-llm/tandem/text/token"
)

// model is what a gateway knows of the target: its file without the weights, with what the settings say of it.
type model struct {
	path        string
	info        *engine.Info
	vocab       *token.Vocab
	fingerprint string            // vocab's
	chat        conversation.Chat // renders conversations; nil: the model has no chat template
	limits      tandem.Limits     // limits of requests
	embedding   gateway.Embedding // without its source
	sampling    tandem.Sampling   // over HTTP, for what a request leaves out
	digest      *fileDigest
}

// readTarget reads the target's file. Errors: Invalid, Corrupt, Unsupported; those of chats.Open.
func (c Setup) readTarget() (m model, err error) {
	m.path = c.Target
	if m.info, err = engine.Inspect(c.Target); err == nil {
		err = engine.CheckTarget(c.Target, m.info.Config)
	}
	if err != nil {
		return m, err
	}
	if m.chat, m.vocab, err = chats.Open(c.ChatTemplate, c.ChatTemplateKwargs, c.Target, m.info.Header.Vocab); err != nil {
		return m, err
	}
	m.fingerprint = roles.Fingerprint(m.vocab.Fingerprint())
	m.limits = tandem.Limits{Context: c.ContextOf(m.info.Config.Context), Vocab: m.vocab.Size(), Strategies: strategy.Names()}
	m.embedding = embedding(c.Pooling, m.file(), m.info)
	m.sampling = HTTPSampling(c.Preset(), m.info.Sampling)
	m.digest = newFileDigest(c.Cache, m.info.Paths...)
	return m, nil
}

// file returns the model's name for clients and traces, which is its file's.
func (m model) file() string { return roles.ModelName(m.path) }

// told returns the description of the model for HTTP's clients.
func (m model) told(aliases []string) httpapi.Model {
	out := httpapi.Model{Name: m.file(), Aliases: aliases, Architecture: m.info.Config.Arch, File: filepath.Base(m.path),
		Bytes: m.info.FileBytes, Parameters: m.info.Parameters, Stored: m.info.Stored, Trained: m.info.Config.Context, Digest: m.digest.Hex}
	if t, ok := m.chat.(interface{ Source() string }); ok {
		out.Template = t.Source()
	}
	if st, err := os.Stat(m.path); err == nil {
		out.Created = st.ModTime()
	}
	return out
}

// HTTPSampling returns the sampling options for what an HTTP request leaves out: those of the process's settings, else those of the model's
// file, else llama.cpp's.
func HTTPSampling(told, file tandem.Preset) tandem.Sampling {
	return told.Over(file.Over(tandem.ServerSampling))
}
