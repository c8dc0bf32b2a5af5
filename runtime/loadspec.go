package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/quickjson"
)

// MaxSpecSize is the largest config.json that LoadSpec reads, in bytes. Real ones
// have some ten thousand bytes.
const MaxSpecSize = 4 << 20

var aLongTimeAgo = time.Unix(1, 0)

// LoadSpec reads the config.json of a bundle directory. A missing bundle or file
// is os.ErrNotExist; text that is no JSON object of the right types is
// ErrInvalidSpec and names file, line and column; so is a duplicate key. Unknown
// fields are ignored, as the runtime spec demands (config.md, "Extensibility").
// validate.Spec checks the content.
func LoadSpec(bundle string) (*specs.Spec, error) {
	if st, err := os.Stat(bundle); err != nil {
		return nil, fmt.Errorf("load bundle: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("load bundle %s: not a directory, give the directory that holds config.json", bundle)
	}
	path := filepath.Join(bundle, "config.json")
	// Non-blocking, so that a FIFO in the file's place cannot hold us up.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("load spec: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("load spec: %w", err)
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("load spec %s: not a regular file: %w", path, ErrInvalidSpec)
	}
	var spec specs.Spec
	if err := loadJSON(f, &spec); err != nil {
		return nil, err
	}
	return &spec, nil
}

// LoadProcess reads a JSON file that holds one OCI process object, as exec's
// --process takes it. The file may be a pipe, as the shell makes it for <(command). Errors
// are those of LoadSpec.
func LoadProcess(path string) (*specs.Process, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load spec: %w", err)
	}
	defer f.Close()
	var p specs.Process
	if err := loadJSON(f, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

func loadJSON(f *os.File, into any) error {
	var text bytes.Buffer
	if st, err := f.Stat(); err == nil {
		text.Grow(int(min(st.Size(), MaxSpecSize)) + bytes.MinRead)
	}
	if _, err := text.ReadFrom(io.LimitReader(f, MaxSpecSize+1)); err != nil {
		return fmt.Errorf("load spec: %w", err)
	}
	data := text.Bytes()
	if err := decodeSpec(data, into); err != nil {
		return fmt.Errorf("load spec %s%w", f.Name(), err)
	}
	return nil
}

// decodeSpec's errors begin with ":line:column: " or ": ", so that a caller can put the
// path in front.
func decodeSpec(data []byte, into any) error {
	if len(data) > MaxSpecSize {
		return fmt.Errorf(": larger than %d bytes: %w", MaxSpecSize, ErrInvalidSpec)
	}
	if quickjson.Unmarshal(data, into) {
		return nil
	}
	// Something is wrong with it, or unusual.
	reflect.ValueOf(into).Elem().SetZero()
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf(":%s: %w", at(data, decodeErrorOffset(err, data)), invalidJSON(err))
	}
	if rest := bytes.TrimLeft(data[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fmt.Errorf(":%s: text after the JSON object: %w", at(data, int64(len(data)-len(rest))), ErrInvalidSpec)
	}
	if offset, key := duplicateKey(data); offset >= 0 {
		return fmt.Errorf(":%s: duplicate key %q, remove one: %w", at(data, int64(offset)), key, ErrInvalidSpec)
	}
	return nil
}

func invalidJSON(err error) error {
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s must be %s, not %s: %w", typed.Field, typed.Type, typed.Value, ErrInvalidSpec)
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("empty file: %w", ErrInvalidSpec)
	}
	return fmt.Errorf("%w: %w", ErrInvalidSpec, err)
}

func decodeErrorOffset(err error, data []byte) int64 {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return syntax.Offset - 1
	}
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return typed.Offset - 1
	}
	return int64(len(data))
}

// at turns a byte offset into "line:column", both counted from 1.
func at(data []byte, offset int64) string {
	offset = max(0, min(offset, int64(len(data))))
	before := data[:offset]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return fmt.Sprintf("%d:%d", line, column)
}
