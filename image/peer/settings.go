package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
)

// Settings say which nodes pass layers on to each other, and by which certificates they know each
// other. The cluster's agent writes them as JSON, and replaces the file when they change.
type Settings struct {
	Version int `json:"version"` // settingsVersion
	// Self is this node's name, Listen the address and port that other nodes reach it at.
	Self   string `json:"self"`
	Listen string `json:"listen"`
	// CA is the PEM file of the authority. Client and Serving each hold a certificate and its key;
	// their subject is system:node:NAME in the group system:nodes. They are read again when
	// they change.
	CA      string `json:"ca"`
	Client  string `json:"client"`
	Serving string `json:"serving"`
	Peers   []Node `json:"peers"`
}

// Node is another node, and the address and port that it listens at.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

const (
	settingsVersion = 1
	maxNodes        = 10_000
	maxSettings     = 4 << 20 // bytes
)

// Read reads Settings; the zero value, which has no peers, if there is none.
func Read(path string) (Settings, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Settings{}, nil
	}
	if err != nil {
		return Settings{}, err
	}
	f, err := parseSettings(data)
	if err != nil {
		return Settings{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parseSettings(data []byte) (f Settings, err error) {
	if len(data) > maxSettings {
		return Settings{}, fmt.Errorf("has %d bytes, more than %d", len(data), maxSettings)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Settings{}, err
	}
	if d.More() {
		return Settings{}, errors.New("text after the end")
	}
	return f, f.check()
}

func (f *Settings) check() error {
	if f.Version != settingsVersion {
		return fmt.Errorf("version %d is not %d", f.Version, settingsVersion)
	}
	if len(f.Peers) > maxNodes {
		return fmt.Errorf("%d peers are more than %d", len(f.Peers), maxNodes)
	}
	for what, file := range map[string]string{"ca": f.CA, "client": f.Client, "serving": f.Serving} {
		if !filepath.IsAbs(file) {
			return fmt.Errorf("%s: %q is no absolute path", what, file)
		}
	}
	names := map[string]bool{}
	for _, n := range append([]Node{{Name: f.Self, Address: f.Listen}}, f.Peers...) {
		if n.Name == "" || names[n.Name] {
			return fmt.Errorf("name %q is empty or occurs twice", n.Name)
		}
		names[n.Name] = true
		if _, err := netip.ParseAddrPort(n.Address); err != nil {
			return fmt.Errorf("address of %s: %w", n.Name, err)
		}
	}
	return nil
}

func (f *Settings) equal(o *Settings) bool {
	return f.Self == o.Self && f.Listen == o.Listen && f.CA == o.CA && f.Client == o.Client && f.Serving == o.Serving &&
		slices.Equal(f.Peers, o.Peers)
}
