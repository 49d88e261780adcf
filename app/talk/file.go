package talk

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// maxFile bounds a file of a conversation, in bytes.
const maxFile = 16 << 20

// saved is a conversation in a file.
type saved struct {
	Messages []savedMessage `json:"messages,omitempty"`
	Text     string         `json:"text,omitempty"` // of a model that does not chat
}

type savedMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	Thought string `json:"reasoning_content,omitempty"`
}

// Save writes the conversation to the file at path as JSON, for its owner alone. It replaces a file. Errors: the system's.
func (t *Conversation) Save(path string) error {
	s := saved{Text: t.text}
	for _, m := range t.messages {
		s.Messages = append(s.Messages, savedMessage{m.Role, m.Content, m.Thought})
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tandem-*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
	}
	return err
}

// Load puts the conversation in the file at path in place of this one. Errors: the system's; Invalid for a file that Save cannot have
// written or that is for a model of the other kind. The conversation stays as it is then.
func (t *Conversation) Load(path string) error {
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = tandem.Errorf("", tandem.Invalid, "%s is no regular file", path)
	}
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return tandem.Errorf("", tandem.Invalid, "%s is larger than %d bytes", path, maxFile)
	}
	var s saved
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s holds no conversation: %w", path, err)
	}
	if t.Chat && s.Text != "" || !t.Chat && len(s.Messages) > 0 {
		return tandem.Errorf("", tandem.Invalid, "%s: one of a chat and of a text that is continued, and this model does the other", path)
	}
	var messages []client.Message
	for i, m := range s.Messages {
		if want := []string{"system", "user", "assistant"}; !slices.Contains(want, m.Role) || m.Role == "system" && i > 0 {
			return tandem.Errorf("", tandem.Invalid, "%s: message %d has the role %.50q: want user or assistant, or system as the first",
				path, i+1, m.Role)
		}
		messages = append(messages, client.Message{Role: m.Role, Content: m.Content, Thought: m.Thought})
	}
	t.messages, t.text = messages, s.Text
	return nil
}

// SystemText returns the system message, "" for none.
func (t *Conversation) SystemText() string {
	if len(t.messages) > 0 && t.messages[0].Role == "system" {
		return t.messages[0].Content
	}
	return ""
}

// System sets the system message, "" for none. Error: Invalid if the model does not chat.
func (t *Conversation) System(text string) error {
	if !t.Chat {
		return tandem.Errorf("", tandem.Invalid, "the model does not chat, so it has no system message")
	}
	rest := t.messages
	if t.SystemText() != "" {
		rest = rest[1:]
	}
	if t.messages = slices.Clone(rest); text != "" {
		t.messages = append([]client.Message{{Role: "system", Content: text}}, rest...)
	}
	return nil
}
