package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// defaultClusterFile is read by up and join if --config never named another file. noClusterFile is
// remembered of a --config that names none.
const (
	defaultClusterFile = "/etc/coracle/cluster.yaml"
	noClusterFile      = "none"
)

// longestClusterFile is the largest file in bytes that is read as one.
const longestClusterFile = 1 << 20

// clusterFile has settings of up and join. Its keys are the names of their flags.
type clusterFile struct {
	path     string
	settings []setting
}

// setting is a key of a clusterFile, and the line where it is.
type setting struct {
	key    string
	line   int
	values []string
	list   bool
}

// joinKeys say which cluster a machine is to join. They are flags of join, and up follows them in a
// file.
var joinKeys = []string{"server", "token", "ca-hash"}

// onlyFlags are flags of up and join that a file does not have: they are for one time.
var onlyFlags = []string{"apply", "config"}

// clusterKeys are the keys of a file.
func clusterKeys() []string {
	keys := slices.Clone(joinKeys)
	var o upOptions
	upFlags(&o).VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(onlyFlags, f.Name) {
			keys = append(keys, f.Name)
		}
	})
	slices.Sort(keys)
	return keys
}

// clusterFile is the file with the settings of a cluster, "" for none.
func (o *upOptions) clusterFile(p place) string {
	switch {
	case o.ClusterFile == noClusterFile || o.ClusterFile == "" && p.root != defaultRoot:
		return ""
	case o.ClusterFile == "":
		return defaultClusterFile
	}
	return o.ClusterFile
}

// openClusterFile reads the file that --config names, or else the one that it named last, which is
// then remembered. The default one may be missing, and so may one that gave no settings; an empty
// name is for none.
func (o *upOptions) openClusterFile(p place, flags *pflag.FlagSet) (clusterFile, error) {
	last := remembered(p)
	given := flags.Lookup("config")
	switch o.ClusterFile = last.ClusterFile; {
	case given.Changed && given.Value.String() == "":
		o.ClusterFile = noClusterFile
	case given.Changed:
		var err error
		if o.ClusterFile, err = filepath.Abs(given.Value.String()); err != nil {
			return clusterFile{}, fmt.Errorf("--config: %w", err)
		}
	}
	path := o.clusterFile(p)
	if path == "" {
		return clusterFile{}, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !given.Changed {
		if o.ClusterFile == "" || len(last.FromFile) == 0 {
			return clusterFile{}, nil
		}
		return clusterFile{}, fmt.Errorf("the settings of the last --config are gone: %w; name the file that has them, or none with --config ''", err)
	}
	if err != nil {
		return clusterFile{}, fmt.Errorf("--config: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, longestClusterFile+1))
	if err != nil {
		return clusterFile{}, fmt.Errorf("--config: %w", err)
	}
	if len(data) > longestClusterFile {
		return clusterFile{}, fmt.Errorf("--config: %s is larger than %d bytes", path, longestClusterFile)
	}
	file, err := parseClusterFile(path, data)
	if err != nil {
		return file, err
	}
	return file, file.checkSecret(f)
}

func parseClusterFile(path string, data []byte) (clusterFile, error) {
	file := clusterFile{path: path}
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := documents.Decode(&document); errors.Is(err, io.EOF) {
		return file, nil // it has comments only
	} else if err != nil {
		return file, fmt.Errorf("%s: %w", path, err)
	}
	if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
		if err != nil {
			return file, fmt.Errorf("%s: %w", path, err)
		}
		return file, fmt.Errorf("%s: line %d: a second document: the file has one", path, second.Line)
	}
	top := document.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return file, nil
	}
	if top.Kind != yaml.MappingNode {
		return file, fmt.Errorf("%s: line %d: no 'key: value'", path, top.Line)
	}
	keys := clusterKeys()
	for pair := range slices.Chunk(top.Content, 2) {
		s, err := parseSetting(pair[0], pair[1], keys)
		if err != nil {
			return file, fmt.Errorf("%s: line %d: %w", path, pair[0].Line, err)
		}
		if slices.ContainsFunc(file.settings, func(other setting) bool { return other.key == s.key }) {
			return file, fmt.Errorf("%s: line %d: duplicate key %q", path, s.line, s.key)
		}
		file.settings = append(file.settings, s)
	}
	return file, nil
}

func parseSetting(key, value *yaml.Node, known []string) (setting, error) {
	s := setting{key: key.Value, line: key.Line}
	if !slices.Contains(known, s.key) {
		guess := ""
		if near := nearest(s.key, known); near != "" {
			guess = fmt.Sprintf(", did you mean %q?", near)
		}
		return s, fmt.Errorf("unknown key %q%s", s.key, guess)
	}
	values := []*yaml.Node{value}
	if s.list = value.Kind == yaml.SequenceNode; s.list {
		values = value.Content
	}
	for _, v := range values {
		if v.Kind != yaml.ScalarNode {
			return s, fmt.Errorf("%s: neither a value nor a list of values", s.key)
		}
		if v.Tag == "!!null" {
			return s, fmt.Errorf("%s: no value", s.key)
		}
		s.values = append(s.values, v.Value)
	}
	return s, nil
}

// nearest is the known key that a misspelt one most likely means, "" for none.
func nearest(key string, known []string) string {
	var all cobra.Command
	for _, name := range known {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	farthest := min(len(key)/2, 4)
	for all.SuggestionsMinimumDistance = 1; all.SuggestionsMinimumDistance <= farthest; all.SuggestionsMinimumDistance++ {
		if near := all.SuggestionsFor(key); len(near) > 0 {
			return near[0]
		}
	}
	return ""
}

// checkSecret refuses a file with a token that others may read.
func (c clusterFile) checkSecret(f *os.File) error {
	token, ok := c.find("token")
	if !ok {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: line %d: a token in a file that others may read: chmod 600 %[1]s", c.path, token.line)
	}
	return nil
}

func (c clusterFile) find(key string) (setting, bool) {
	k := slices.IndexFunc(c.settings, func(s setting) bool { return s.key == key })
	if k < 0 {
		return setting{}, false
	}
	return c.settings[k], true
}

// keys are those of the file that are flags of up.
func (c clusterFile) keys() []string {
	var keys []string
	for _, s := range c.settings {
		if !slices.Contains(joinKeys, s.key) {
			keys = append(keys, s.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// apply sets flags as the file says, but for those that the command line has set. The flags in
// except stay as they are.
func (c clusterFile) apply(flags *pflag.FlagSet, except ...string) error {
	for _, s := range c.settings {
		flag := flags.Lookup(s.key)
		if slices.Contains(except, s.key) || flag != nil && flag.Changed {
			continue
		}
		err := errors.New("it is for a cluster of this machine's own, not for a node of another one")
		if flag != nil {
			err = s.set(flags, flag)
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %s: %w", c.path, s.line, s.key, err)
		}
	}
	return nil
}

func (s setting) set(flags *pflag.FlagSet, flag *pflag.Flag) error {
	if all, ok := flag.Value.(pflag.SliceValue); ok && s.list {
		flag.Changed = true
		return all.Replace(s.values)
	}
	if s.list {
		return errors.New("a list, but it has one value")
	}
	value := s.values[0]
	if slices.Contains(pathFlags, s.key) && value != "" && value != standardOutput && !filepath.IsAbs(value) {
		return fmt.Errorf("%q is no absolute path", value)
	}
	err := flags.Set(s.key, value)
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		err = plainCause(invalid.Unwrap())
		if quoted := strconv.Quote(value); !strings.Contains(err.Error(), quoted) {
			err = fmt.Errorf("%s: %w", quoted, err)
		}
	}
	return err
}

// plainCause is an error of package strconv without the name of its function and the text that it
// was given.
func plainCause(err error) error {
	if number := (*strconv.NumError)(nil); errors.As(err, &number) {
		return number.Err
	}
	return err
}

// joins returns which cluster the file has this machine join, if any.
func (c clusterFile) joins() (j joining, err error) {
	server, ok := c.find("server")
	if !ok {
		return j, nil
	}
	flags := pflag.NewFlagSet("join", pflag.ContinueOnError)
	j.define(flags)
	only := clusterFile{path: c.path}
	for _, key := range joinKeys {
		s, ok := c.find(key)
		if !ok {
			return j, fmt.Errorf("%s: line %d: server without %s: 'coracle token create' on its machine prints both", c.path, server.line, key)
		}
		only.settings = append(only.settings, s)
	}
	err = only.apply(flags)
	j.server = strings.TrimSuffix(j.server, "/")
	return j, err
}
