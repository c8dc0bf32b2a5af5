package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

// Load reads the file at path over the defaults.
func Load(path string) (Config, error) {
	data, err := stricttoml.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("config: %w", err)
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
	if err := stricttoml.Decode(data, &c); err != nil {
		return Config{}, err
	}
	if err := errors.Join(c.takeOld(data), c.Check()); err != nil {
		return Config{}, onLines(data, err)
	}
	return c, nil
}

// takeOld applies settings that are given by their old names.
func (c *Config) takeOld(data []byte) error {
	n := &c.Network
	if n.Bridge == "" {
		return nil
	}
	if keyLines(data)["network.name"] > 0 {
		return wrong("network.bridge", "is the old name of network.name, which is given, too; remove it")
	}
	if err := checkInterface("network.bridge", n.Bridge); err != nil {
		return err
	}
	n.Name = n.Bridge
	return nil
}

// Warnings says which settings should be written in another way.
func (c Config) Warnings() []string {
	if c.Network.Bridge == "" {
		return nil
	}
	return []string{"network.bridge is now network.name: rename it"}
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

// keyLines says on which line each key and section of a valid file is.
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
		lines[stricttoml.KeyName(key)] = line
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
