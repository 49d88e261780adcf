package editor

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Bounds of a history file.
const (
	maxEntries = 1000
	maxEntry   = 64 << 10 // bytes; longer messages are not kept
)

// Load reads the history in the file at path, one JSON string a line, oldest first. A file of more than twice as many entries as are
// kept is shortened. Errors: Invalid if it is no regular file, and those of the system; none if there is no file.
func Load(path string) ([]string, error) {
	st, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err == nil && !st.Mode().IsRegular() {
		err = tandem.Errorf("", tandem.Invalid, "%s is no regular file", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 8*maxEntry)
	n := 0
	for ; lines.Scan(); n++ {
		var entry string
		if json.Unmarshal(lines.Bytes(), &entry) == nil { // a line that was cut by a full disk is left out
			all = append(all, entry)
		}
		if len(all) > maxEntries {
			all = all[1:]
		}
	}
	if n <= 2*maxEntries {
		return all, nil
	}
	if err := os.Remove(path); err != nil {
		return all, err
	}
	return all, keep(path, all)
}

// Keep adds an entry to the history, and to the file at path ("": to none), which only its owner can read.
func (e *Editor) Keep(path, entry string) error {
	if len(entry) > maxEntry || len(e.History) > 0 && e.History[len(e.History)-1] == entry {
		return nil
	}
	e.History = append(slices.Clip(e.History), entry)
	if path == "" {
		return nil
	}
	return keep(path, []string{entry})
}

func keep(path string, entries []string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := json.NewEncoder(f)
	for _, entry := range entries {
		if err = w.Encode(entry); err != nil {
			break
		}
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
