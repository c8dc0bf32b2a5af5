package config

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

// Write prints c as TOML, each key under its explanation. Parse reads it back to
// the same value.
func Write(w io.Writer, c Config) error {
	b := bufio.NewWriter(w)
	writeKeys(b, reflect.ValueOf(c))
	writeSections(b, "", reflect.ValueOf(c))
	return b.Flush()
}

// writeKeys prints the plain keys of a section.
func writeKeys(b *bufio.Writer, section reflect.Value) {
	for i := range section.NumField() {
		field, value := section.Type().Field(i), section.Field(i)
		if isSection(value) || isOld(field) {
			continue
		}
		writeDoc(b, field)
		fmt.Fprintf(b, "%s = %s\n", field.Tag.Get("toml"), literal(value))
	}
}

// writeSections prints the sections inside a section, which must follow its keys.
func writeSections(b *bufio.Writer, prefix string, section reflect.Value) {
	for i := range section.NumField() {
		field, value := section.Type().Field(i), section.Field(i)
		if !isSection(value) {
			continue
		}
		name := prefix + field.Tag.Get("toml")
		b.WriteString("\n")
		writeDoc(b, field)
		if value.Kind() == reflect.Struct {
			fmt.Fprintf(b, "[%s]\n", name)
			writeKeys(b, value)
			writeSections(b, name+".", value)
			continue
		}
		inner := map[string]reflect.Value{}
		for key, v := range value.Seq2() {
			inner[key.String()] = v
		}
		for _, key := range slices.Sorted(maps.Keys(inner)) {
			fmt.Fprintf(b, "[%s.%s]\n", name, stricttoml.Quote(key))
			writeKeys(b, inner[key])
		}
	}
}

func isSection(v reflect.Value) bool {
	return v.Kind() == reflect.Struct || v.Kind() == reflect.Map
}

func writeDoc(b *bufio.Writer, field reflect.StructField) {
	for line := range strings.SplitSeq(field.Tag.Get("doc"), "\n") {
		fmt.Fprintf(b, "# %s\n", line)
	}
	if isLive(field) {
		b.WriteString("# A reload (SIGHUP) is enough.\n")
	}
}

// literal is a value in TOML.
func literal(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Interface:
		return literal(v.Elem())
	case reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = literal(v.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.String:
		return stricttoml.Quote(v.String())
	default:
		return fmt.Sprint(v.Interface())
	}
}

// Keys is c as nested maps with the names that the file has, for a verbose Status.
func Keys(c Config) map[string]any { return keys(reflect.ValueOf(c)) }

func keys(section reflect.Value) map[string]any {
	out := make(map[string]any, section.NumField())
	for i := range section.NumField() {
		name, value := section.Type().Field(i).Tag.Get("toml"), section.Field(i)
		if isOld(section.Type().Field(i)) {
			continue
		}
		switch value.Kind() {
		case reflect.Struct:
			out[name] = keys(value)
		case reflect.Map:
			inner := make(map[string]any, value.Len())
			for host, r := range value.Seq2() {
				inner[host.String()] = keys(r)
			}
			out[name] = inner
		default:
			out[name] = value.Interface()
		}
	}
	return out
}
