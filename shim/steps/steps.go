// Package steps is the file in which a shim leaves where the time of making a container went, and
// the daemon finds it: steps.json in the container's directory of the engine, which goes with the
// container.
package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Step is a part of making a container: what, when it began, how long it took.
type Step struct {
	What  string        `json:"what"`
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took"` // ns
}

// fileName is below DIR/ID. maxSize bounds what is read: a dozen steps have a kilobyte.
const (
	fileName = "steps.json"
	maxSize  = 64 << 10
)

// Write leaves the steps of container id, whose directory is in dir.
func Write(dir, id string, s []Step) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, id, fileName), data, 0o600)
}

// Read returns the steps of container id; none if there are none: another engine has made it, or an
// older shim.
func Read(dir, id string) ([]Step, error) {
	path := filepath.Join(dir, id, fileName)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && st.Size() > maxSize {
		err = fmt.Errorf("%s: %d bytes, more than %d", path, st.Size(), maxSize)
	}
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s []Step
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}
