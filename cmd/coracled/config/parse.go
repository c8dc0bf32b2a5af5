package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"
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
		return Config{}, fmt.Errorf("config %s: %w", path, err)
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
		return Config{}, err
	}
	return c, nil
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
		text := strings.TrimPrefix(bad.Error(), "toml: ")
		if key := bad.Key(); len(key) > 0 {
			return fmt.Errorf("line %d: %s: %s", line, keyName(key), text)
		}
		return fmt.Errorf("line %d: %s", line, text)
	}
	return err
}

func keyName(key toml.Key) string { return strings.Join(key, ".") }
