package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

// fromCertsDirs are the hosts of a registry as the first of dirs has them that knows the
// registry. found is false if none does.
func fromCertsDirs(dirs []string, registry string) (hosts []Host, found bool, err error) {
	for _, root := range dirs {
		for _, name := range dirNames(registry) {
			dir := filepath.Join(root, name)
			if st, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return nil, false, err
			} else if !st.IsDir() {
				continue
			}
			hosts, err := fromDir(dir, registry)
			for i := range hosts {
				hosts[i].listed = name != defaultDir
			}
			return hosts, true, err
		}
	}
	return nil, false, nil
}

// defaultDir is for registries without a directory of their own.
const defaultDir = "_default"

// dirNames are the names that a registry's directory may have. A domain has neither
// slashes nor leading dots, so they stay below their root.
func dirNames(registry string) []string {
	names := []string{registry, defaultDir}
	if i := strings.LastIndexByte(registry, ':'); i > 0 {
		names = append([]string{registry[:i] + "_" + registry[i+1:] + "_"}, names...)
	}
	return names
}

func fromDir(dir, registry string) ([]Host, error) {
	file := filepath.Join(dir, "hosts.toml")
	data, err := stricttoml.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return dockerLayout(dir, registry)
	}
	if err != nil {
		return nil, err
	}
	hosts, err := parseHosts(data, dir, registry)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return hosts, nil
}

// dockerLayout reads a directory as Docker has it: *.crt are authorities, *.cert client
// certificates with *.key next to them.
func dockerLayout(dir, registry string) ([]Host, error) {
	h, err := hostTable{}.at(apiHost(registry), dir)
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		name := filepath.Join(dir, f.Name())
		switch stem, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name); ext {
		case ".crt":
			h.CAs = append(h.CAs, name)
		case ".cert":
			pair := KeyPair{Cert: name, Key: name}
			if _, err := os.Stat(stem + ".key"); err == nil {
				pair.Key = stem + ".key"
			}
			h.Pairs = append(h.Pairs, pair)
		}
	}
	if isLoopback(h.Host) && len(h.CAs)+len(h.Pairs) == 0 {
		h.Scheme, h.guess = "http", true
	}
	return []Host{h}, nil
}
