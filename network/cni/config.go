// Package cni reads and follows a node's CNI configuration, executes plugins and asks them for
// their status. Package network connects pods with it.
package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// ErrConfig is wrapped by every error of a broken configuration.
var ErrConfig = errors.New("invalid network configuration")

// maxConfig bounds a configuration file, which is a few hundred bytes.
const maxConfig = 1 << 20

// Find returns the network configuration in force: the first file by name with one of CNI's
// endings, as other runtimes choose. It returns nil if there is none. If that file is broken it
// returns ErrConfig with file and position: another network in its place would hide the fault from
// the operator.
func Find(dir string) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(dir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if len(files) == 0 {
		return nil, nil
	}
	slices.Sort(files)
	list, err := readConfig(files[0])
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // deleted just now
	}
	return list, err
}

func readConfig(path string) (*libcni.NetworkConfigList, error) {
	bad := func(at string, err error) error {
		return fmt.Errorf("%w: %s%s: %w", ErrConfig, path, at, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, bad("", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfig {
		return nil, bad("", fmt.Errorf("not a regular file of at most %d bytes", maxConfig))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, bad("", err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, bad("", errors.New("the file is empty"))
	}
	// libcni's errors have no position, so look for the common faults first.
	var shape struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Type       string            `json:"type"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &shape); err != nil {
		return nil, bad(position(data, err), err)
	}
	isList := filepath.Ext(path) == ".conflist"
	switch {
	case shape.Name == "":
		return nil, bad("", errors.New(`"name" is missing`))
	case !isList && shape.Plugins != nil:
		return nil, bad("", errors.New(`it has "plugins", so its name must end in .conflist`))
	case !isList && shape.Type == "":
		return nil, bad("", errors.New(`"type", the plugin's name, is missing`))
	}
	list, err := parse(path, data, isList)
	if err != nil {
		return nil, bad("", err)
	}
	if list.CNIVersion != "" && !slices.Contains(version.All.SupportedVersions(), list.CNIVersion) {
		return nil, bad("", fmt.Errorf(`"cniVersion" is %q, not one of %s`, list.CNIVersion, strings.Join(version.All.SupportedVersions(), ", ")))
	}
	for i, p := range list.Plugins {
		// A plugin's name is looked up in the plugin directories.
		if t := p.Network.Type; t == "" || strings.ContainsAny(t, "/\x00") {
			return nil, bad("", fmt.Errorf(`plugin %d: "type" is %q, not the name of a plugin`, i, t))
		}
	}
	return list, nil
}

func parse(path string, data []byte, isList bool) (*libcni.NetworkConfigList, error) {
	if isList {
		return libcni.NetworkConfFromFile(path) // may take plugins from a directory next to it
	}
	// One plugin alone is a list of one.
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return nil, err
	}
	list := map[string]any{"name": top["name"], "plugins": []json.RawMessage{data}, "loadOnlyInlinedPlugins": true}
	if v, ok := top["cniVersion"]; ok {
		list["cniVersion"] = v
	}
	whole, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(whole)
}

// position says where in data a JSON error is, as ":line:column".
func position(data []byte, err error) string {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	var offset int64
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset = typ.Offset
	default:
		return ""
	}
	before := data[:min(int(offset), len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Sprintf(":%d:%d", line, max(column, 1))
}

// Complete returns the list as one self-contained text for a pod's record, with the plugins from
// files next to it.
func Complete(list *libcni.NetworkConfigList) ([]byte, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(list.Bytes, &top); err != nil {
		return nil, err
	}
	plugins := make([]json.RawMessage, 0, len(list.Plugins))
	for _, p := range list.Plugins {
		plugins = append(plugins, p.Bytes)
	}
	var err error
	if top["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, err
	}
	delete(top, "loadOnlyInlinedPlugins")
	return json.Marshal(top)
}
