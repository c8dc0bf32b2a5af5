package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// readCNI looks at the configuration in force, the first by name, as coracled does. Whether it is
// right in every detail coracled itself says, when it runs; here are the faults that keep a node
// from its first pod.
func readCNI(dir string, binDirs []string) CNI {
	c := CNI{Dir: dir, BinDirs: binDirs}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Err = err.Error()
		return c
	}
	for _, e := range entries { // in order of their names
		if ext := filepath.Ext(e.Name()); ext == ".conflist" || ext == ".conf" || ext == ".json" {
			c.File = filepath.Join(dir, e.Name())
			break
		}
	}
	if c.File == "" {
		return c
	}
	plugins, err := pluginsOf(c.File)
	if err != nil {
		c.Err = fmt.Sprintf("%s: %v", c.File, err)
		return c
	}
	c.Plugins = plugins
	for _, name := range plugins {
		if !installed(name, binDirs) {
			c.Missing = append(c.Missing, name)
		}
	}
	return c
}

// pluginsOf returns the names of the programs that a configuration asks for.
func pluginsOf(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var conf struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		return nil, err
	}
	all := conf.Plugins
	if filepath.Ext(path) != ".conflist" {
		all = []plugin{conf.plugin}
	}
	if len(all) == 0 {
		return nil, errors.New(`it has no "plugins"`)
	}
	var names []string
	for i, p := range all {
		if p.Type == "" {
			return nil, fmt.Errorf(`plugin %d has no "type"`, i+1)
		}
		names = append(names, p.Type)
		if p.IPAM.Type != "" {
			names = append(names, p.IPAM.Type)
		}
	}
	return names, nil
}

func installed(name string, dirs []string) bool {
	for _, dir := range dirs {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}
