// Package stricttoml reads TOML so that nothing in a file is silently without effect: keys
// that do not exist are errors, and every error says the line and the key.
package stricttoml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// MaxSize bounds a file, so that a wrong path (a device, a log) is told early.
const MaxSize = 1 << 20

// ReadFile reads a file of at most MaxSize bytes. Its errors name the path.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxSize {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, MaxSize)
	}
	return data, nil
}

// Decode reads data into v, which keeps what data does not set. Several unknown keys are
// joined errors.
func Decode(data []byte, v any) error {
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(v)
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var all []error
		for i := range unknown.Errors {
			line, _ := unknown.Errors[i].Position()
			all = append(all, fmt.Errorf("line %d: unknown key %s", line, KeyName(unknown.Errors[i].Key())))
		}
		return errors.Join(all...)
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, _ := bad.Position()
		text := wrongType(strings.TrimPrefix(bad.Error(), "toml: "))
		if key := bad.Key(); len(key) > 0 {
			return fmt.Errorf("line %d: %s: %s", line, KeyName(key), text)
		}
		return fmt.Errorf("line %d: %s", line, text)
	}
	if err != nil {
		return err
	}
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		return err
	}
	return twins(nil, all)
}

// twins refuses keys of one table that only differ in case: the decoder takes both for the same
// field, and the last one counts.
func twins(at []string, table map[string]any) error {
	seen := make(map[string]string, len(table))
	for _, key := range slices.Sorted(maps.Keys(table)) {
		here := append(slices.Clone(at), key)
		folded := strings.ToLower(key)
		if other, twice := seen[folded]; twice {
			return fmt.Errorf("key %s is set twice: as %s and as %s", KeyName(here), Quote(other), Quote(key))
		}
		seen[folded] = key
		if err := twinsIn(here, table[key]); err != nil {
			return err
		}
	}
	return nil
}

func twinsIn(at []string, value any) error {
	switch v := value.(type) {
	case map[string]any:
		return twins(at, v)
	case []any:
		for _, e := range v {
			if err := twinsIn(at, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// wrongType says in TOML's words what the decoder says in Go's, naming the caller's struct:
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

// KeyName is a key as it may be written in a file.
func KeyName(key []string) string {
	const bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	parts := make([]string, len(key))
	for i, part := range key {
		if part == "" || strings.Trim(part, bare) != "" {
			part = Quote(part)
		}
		parts[i] = part
	}
	return strings.Join(parts, ".")
}

// Quote makes a basic string. Go's own quoting has escapes that TOML has not.
func Quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
