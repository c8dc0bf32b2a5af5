package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxSize bounds the file, so that a wrong path (a device, a log) is told early.
const maxSize = 1 << 20

// Load reads the file at path over the defaults.
func Load(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("config: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return Config{}, fmt.Errorf("config %s: %w", path, err)
	}
	if len(data) > maxSize {
		return Config{}, fmt.Errorf("config %s: larger than %d bytes", path, maxSize)
	}
	c, err := Parse(data)
	if err != nil {
		var all []error
		for _, e := range single(err) {
			all = append(all, fmt.Errorf("config %s: %w", path, e))
		}
		return Config{}, errors.Join(all...)
	}
	return c, nil
}

// Parse reads TOML over the defaults and checks the result. Keys that do not exist
// are errors, as a misspelt setting would otherwise silently not apply.
func Parse(data []byte) (Config, error) {
	c := Default()
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, located(err)
	}
	if err := c.Check(); err != nil {
		return Config{}, onLines(data, err)
	}
	return c, nil
}

// single takes joined errors apart.
func single(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, single(e)...)
	}
	return all
}

// onLines puts before each bad value the line of its key. A key that is not in the
// file has none: root may be wrong because of a state that is.
func onLines(data []byte, err error) error {
	lines := keyLines(data)
	var all []error
	for _, e := range single(err) {
		var bad *badValue
		if errors.As(e, &bad) && lines[bad.key] > 0 {
			e = fmt.Errorf("line %d: %w", lines[bad.key], e)
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}

// keyLines says on which line each key and section of a valid file stands.
func keyLines(data []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(data)
	var note func(section toml.Key, n *unstable.Node) toml.Key
	note = func(section toml.Key, n *unstable.Node) toml.Key {
		key, line := slices.Clone(section), 0
		for parts := n.Key(); parts.Next(); {
			line = p.Shape(parts.Node().Raw).Start.Line
			key = append(key, string(parts.Node().Data))
		}
		lines[keyName(key)] = line
		if n.Kind == unstable.KeyValue && n.Value().Kind == unstable.InlineTable {
			for inner := n.Value().Children(); inner.Next(); {
				note(key, inner.Node())
			}
		}
		return key
	}
	var section toml.Key
	for p.NextExpression() {
		switch n := p.Expression(); n.Kind {
		case unstable.Table:
			section = note(nil, n)
		case unstable.KeyValue:
			note(section, n)
		}
	}
	return lines
}

// located says line and key of what the decoder did not like.
func located(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var all []error
		for i := range unknown.Errors {
			line, _ := unknown.Errors[i].Position()
			all = append(all, fmt.Errorf("line %d: unknown key %s", line, keyName(unknown.Errors[i].Key())))
		}
		return errors.Join(all...)
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, _ := bad.Position()
		text := wrongType(strings.TrimPrefix(bad.Error(), "toml: "))
		if key := bad.Key(); len(key) > 0 {
			return fmt.Errorf("line %d: %s: %s", line, keyName(key), text)
		}
		return fmt.Errorf("line %d: %s", line, text)
	}
	return err
}

// wrongType says in TOML's words what the decoder says in Go's, naming its own struct:
// "cannot decode TOML string into struct field config.Network.MTU of type int".
func wrongType(text string) string {
	rest, ok := strings.CutPrefix(text, "cannot decode TOML ")
	got, into, found := strings.Cut(rest, " into ")
	want := map[string]string{
		"int": "integer", "bool": "boolean", "string": "string", "[]string": "array of strings",
	}[into[strings.LastIndexByte(into, ' ')+1:]]
	if !ok || !found || want == "" {
		return text
	}
	return fmt.Sprintf("has type %s, not %s", got, want)
}

// keyName is the key as it may be written in the file.
func keyName(key toml.Key) string {
	const bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	parts := make([]string, len(key))
	for i, part := range key {
		if part == "" || strings.Trim(part, bare) != "" {
			part = quote(part)
		}
		parts[i] = part
	}
	return strings.Join(parts, ".")
}
