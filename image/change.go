package image

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Change applies one instruction of a Dockerfile to an image's configuration: CMD,
// ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME or WORKDIR. Values are words, also
// in double quotes, or a JSON array where a Dockerfile allows one. Kind: ErrInvalidImage.
func Change(c *ocispec.ImageConfig, instruction string) error {
	name, rest, _ := strings.Cut(strings.TrimSpace(instruction), " ")
	change, ok := instructions[strings.ToUpper(name)]
	if !ok {
		return fmt.Errorf("%w: change %q: the instruction is none of %s", ErrInvalidImage, instruction,
			strings.Join(slices.Sorted(maps.Keys(instructions)), ", "))
	}
	if rest = strings.TrimSpace(rest); rest == "" {
		return fmt.Errorf("%w: change %q: a value is missing", ErrInvalidImage, instruction)
	}
	if err := change(c, rest); err != nil {
		return fmt.Errorf("%w: change %q: %w", ErrInvalidImage, instruction, err)
	}
	return nil
}

var instructions = map[string]func(c *ocispec.ImageConfig, value string) error{
	"CMD":        func(c *ocispec.ImageConfig, v string) (err error) { c.Cmd, err = command(v); return err },
	"ENTRYPOINT": func(c *ocispec.ImageConfig, v string) (err error) { c.Entrypoint, err = command(v); return err },
	"USER":       func(c *ocispec.ImageConfig, v string) error { c.User = v; return nil },
	"STOPSIGNAL": func(c *ocispec.ImageConfig, v string) error { c.StopSignal = v; return nil },
	"WORKDIR": func(c *ocispec.ImageConfig, v string) error {
		if !strings.HasPrefix(v, "/") {
			return fmt.Errorf("%q is not an absolute path", v)
		}
		c.WorkingDir = v
		return nil
	},
	"ENV": func(c *ocispec.ImageConfig, v string) error {
		pairs, err := assignments(v)
		for _, p := range pairs {
			c.Env = append(slices.DeleteFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, p[0]+"=") }), p[0]+"="+p[1])
		}
		return err
	},
	"LABEL": func(c *ocispec.ImageConfig, v string) error {
		pairs, err := assignments(v)
		for _, p := range pairs {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[p[0]] = p[1]
		}
		return err
	},
	"EXPOSE": func(c *ocispec.ImageConfig, v string) error {
		for _, port := range strings.Fields(v) {
			if !strings.Contains(port, "/") {
				port += "/tcp"
			}
			if c.ExposedPorts == nil {
				c.ExposedPorts = map[string]struct{}{}
			}
			c.ExposedPorts[port] = struct{}{}
		}
		return nil
	},
	"VOLUME": func(c *ocispec.ImageConfig, v string) error {
		paths, err := list(v)
		for _, p := range paths {
			if c.Volumes == nil {
				c.Volumes = map[string]struct{}{}
			}
			c.Volumes[p] = struct{}{}
		}
		return err
	},
}

// command is a JSON array, or words for a shell.
func command(v string) ([]string, error) {
	if strings.HasPrefix(v, "[") {
		return list(v)
	}
	return []string{"/bin/sh", "-c", v}, nil
}

// list is a JSON array, or words.
func list(v string) (words []string, err error) {
	if strings.HasPrefix(v, "[") {
		if err := json.Unmarshal([]byte(v), &words); err != nil {
			return nil, fmt.Errorf("it is no JSON array of strings: %w", err)
		}
		return words, nil
	}
	return split(v)
}

// assignments are KEY=VALUE words.
func assignments(v string) (pairs [][2]string, err error) {
	words, err := split(v)
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is not KEY=VALUE", w)
		}
		pairs = append(pairs, [2]string{key, value})
	}
	return pairs, err
}

// split makes words; in double quotes a space belongs to the word, and a backslash takes
// any meaning from what follows it.
func split(v string) (words []string, err error) {
	var word strings.Builder
	inWord, quoted, escaped := false, false, false
	for _, r := range v {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\':
			inWord, escaped = true, true
		case r == '"':
			inWord, quoted = true, !quoted
		case (r == ' ' || r == '\t') && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			inWord = true
			word.WriteRune(r)
		}
	}
	if quoted || escaped {
		return nil, fmt.Errorf("a quotation mark is not closed, or a backslash at the end")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
