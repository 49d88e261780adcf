package talk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// TestSaveAndLoad: a conversation comes back as it was, in a file of its owner's; a hostile file changes nothing.
func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talk.json")
	c := &Conversation{Chat: true, messages: []client.Message{{Role: "user", Content: "hé\x1b"},
		{Role: "assistant", Content: "a", Thought: "b"}}}
	if err := c.System("be brief"); err != nil {
		t.Fatal(err)
	}
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", st, err)
	}
	d := &Conversation{Chat: true}
	if err := d.Load(path); err != nil || d.SystemText() != "be brief" || len(d.messages) != 3 || d.messages[1].Content != "hé\x1b" ||
		d.messages[2].Thought != "b" {
		t.Errorf("%v: %+v", err, d.messages)
	}
	d.Clear()
	if d.SystemText() != "be brief" || len(d.messages) != 1 {
		t.Errorf("cleared: %+v", d.messages)
	}
	for in, want := range map[string]string{"{": "no conversation", `{"messages":[{"role":"tool","content":""}]}`: "role",
		`{"messages":[{"role":"user"},{"role":"system"}]}`: "role", `{"text":"x"}`: "does the other", `{"more":1}`: "no conversation",
		strings.Repeat(" ", maxFile+1): "larger"} {
		if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Load(path); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) || len(d.messages) != 1 {
			t.Errorf("%.60q: %v: want Invalid with %q", in, err, want)
		}
	}
	if err := d.Load(os.DevNull); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("of a device: %v", err)
	}
	if err := (&Conversation{}).System("x"); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("system message of a base model: %v", err)
	}
}
