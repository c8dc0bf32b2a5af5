// Package forwarded records for which families Coracle has turned on forwarding in the kernel. It
// is then the one that keeps the host from routing between its own networks.
package forwarded

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/recordfile"
)

// The families, as they are recorded.
const (
	IPv4 = "4"
	IPv6 = "6"
)

const version = 1

// record is the content of the file.
type record struct {
	Version  int    `json:"version"`
	Families string `json:"families"` // "4", "6" or "46"
}

// Path is the file, in the network's state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, "forwarded.json") }

// Read returns the families in one string, such as "46".
func Read(stateDir string) (families string, err error) {
	var rec record
	data, err := recordfile.Read(Path(stateDir))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", Path(stateDir), err)
	}
	return rec.Families, nil
}

// Add records further families. A record that cannot be read is left alone, as it counts as all.
func Add(stateDir string, families ...string) error {
	have, err := Read(stateDir)
	if err != nil {
		return nil //nolint:nilerr // it says more than what would be written
	}
	all := ""
	for _, family := range []string{IPv4, IPv6} {
		if strings.Contains(have+strings.Join(families, ""), family) {
			all += family
		}
	}
	if all == have {
		return nil
	}
	data, err := json.Marshal(record{version, all})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(Path(stateDir), data, 0o600)
}
