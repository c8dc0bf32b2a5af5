package base

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// SystemdCgroupConfig is CgroupConfig for a cgroup that systemd makes: a scope, which
// linux.cgroupsPath names as SLICE:PREFIX:NAME, with the properties that annotations give it.
// ErrInvalidSpec if one of these is wrong.
func SystemdCgroupConfig(id string, spec *specs.Spec) (*cgroups.Cgroup, error) {
	linux := specs.Linux{}
	if spec.Linux != nil {
		linux = *spec.Linux
	}
	path := linux.CgroupsPath
	linux.CgroupsPath = ""
	c, err := CgroupConfig(id, &linux)
	if err != nil {
		return nil, err
	}
	c.Systemd, c.ScopePrefix = true, "coracle"
	if path != "" {
		parts := strings.Split(path, ":")
		if len(parts) != 3 || parts[2] == "" || strings.Contains(path, "/") {
			return nil,
				fmt.Errorf("%w: linux.cgroupsPath %q is not of the form SLICE:PREFIX:NAME, which --systemd-cgroup needs, such as "+
					"system.slice:coracle:%s",
					runtime.ErrInvalidSpec, path, id)
		}
		c.Parent, c.ScopePrefix, c.Name = parts[0], parts[1], parts[2]
	}
	if c.SystemdProps, err = systemdProperties(spec.Annotations); err != nil {
		return nil, fmt.Errorf("%w: %w", runtime.ErrInvalidSpec, err)
	}
	return c, nil
}

// systemdProperties are those that annotations set, as runc has them: org.systemd.property.NAME,
// with the value in GVariant's text format.
func systemdProperties(annotations map[string]string) ([]systemd.Property, error) {
	var out []systemd.Property
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, is := strings.CutPrefix(key, "org.systemd.property.")
		if !is {
			continue
		}
		if len(name) < 3 || strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }) {
			return nil, fmt.Errorf("annotations.%s is no property of systemd's, their names are made of letters", key)
		}
		value, err := parseVariant(annotations[key])
		if err != nil {
			return nil, fmt.Errorf("annotations.%s %q is not in GVariant's text format, such as 'text', true, uint64 5 or [1, 2]: %w", key,
				annotations[key], err)
		}
		// On the bus systemd counts microseconds where its files have seconds.
		if stem, is := strings.CutSuffix(name, "Sec"); is && stem != "" && stem[len(stem)-1] >= 'a' {
			if value, err = microseconds(value); err != nil {
				return nil, fmt.Errorf("annotations.%s %q: %w", key, annotations[key], err)
			}
			name = stem + "USec"
		}
		out = append(out, systemd.Property{Name: name, Value: value})
	}
	return out, nil
}

// parseVariant also answers what the library panics of, such as a boolean that is a list, and what
// it never comes to an end with: digits of other scripts.
func parseVariant(text string) (v dbus.Variant, err error) {
	if strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII && unicode.IsNumber(r) }) {
		return v, errors.New("it has digits other than 0 to 9")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return dbus.ParseVariant(text, dbus.Signature{})
}

func microseconds(seconds dbus.Variant) (dbus.Variant, error) {
	const second = 1_000_000
	var n uint64
	switch v := seconds.Value().(type) {
	case byte:
		n = uint64(v)
	case uint16:
		n = uint64(v)
	case uint32:
		n = uint64(v)
	case uint64:
		n = v
	case int16:
		return signed(int64(v))
	case int32:
		return signed(int64(v))
	case int64:
		return signed(v)
	case float64:
		if v < 0 || v > float64(1<<63)/second {
			return seconds, errSeconds
		}
		return dbus.MakeVariant(uint64(v * second)), nil
	default:
		return seconds, errSeconds
	}
	if n > (1<<63)/second {
		return seconds, errSeconds
	}
	return dbus.MakeVariant(n * second), nil
}

func signed(v int64) (dbus.Variant, error) {
	if v < 0 {
		return dbus.Variant{}, errSeconds
	}
	return microseconds(dbus.MakeVariant(uint64(v)))
}

var errSeconds = errors.New("it is no number of seconds")
