package pull

import (
	"errors"
	"os"
	"testing"

	"github.com/tandem-llm/tandem/engine"
)

// TestDraft: a draft is fetched if the check accepts what its header says; else no byte of its weights is.
func TestDraft(t *testing.T) {
	p, s, _ := begun(t)
	b := append(changed(t, ""), make([]byte, 4<<20)...)
	s.Add("org/repo", "m-Q8_0.gguf", b)
	no := errors.New("no")
	if _, err := p.Draft(t.Context(), "hf:org/repo", func(string) error { return no }); !errors.Is(err, no) || s.Sent() > 1<<20 {
		t.Errorf("%d bytes were sent, %v", s.Sent(), err)
	}
	path, err := p.Draft(t.Context(), "hf:org/repo", func(path string) error {
		_, err := engine.Inspect(path)
		return err
	})
	if st, wrong := os.Stat(path); err != nil || wrong != nil || st.Size() != int64(len(b)) {
		t.Errorf("%q: %v, %v", path, err, wrong)
	}
}
