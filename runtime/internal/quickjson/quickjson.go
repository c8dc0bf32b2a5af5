// Package quickjson reads a JSON text into a struct for a program that reads one and ends.
// encoding/json studies a type as a whole before the first use, how it is written, too: for
// the OCI runtime specification's that takes longer than to start a container's process. This
// package looks at the fields that the text has.
//
// It does the ordinary only, and says so where that does not do: the caller then asks
// encoding/json, which also knows how to say what is wrong.
package quickjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Unmarshal reads the text into what into points to, a zero value, as json.Unmarshal would. false
// says that it did not: that the text is not well-formed, does not fit the type, names something in
// an object twice, or that this is beyond this package. into is then to be thrown away.
func Unmarshal(data []byte, into any) bool {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return false
	}
	d := decoder{data: data, structs: map[reflect.Type]*fields{}, selfish: map[reflect.Type]bool{}}
	d.space()
	if !d.value(v.Elem(), 0) {
		return false
	}
	d.space()
	return d.at == len(data)
}

// deepest is how deep values may be nested. encoding/json allows more.
const deepest = 100

type decoder struct {
	data    []byte
	at      int
	structs map[reflect.Type]*fields
	selfish map[reflect.Type]bool
}

// fields are those of a struct type by their names in JSON.
type fields struct {
	names   []string
	indices []int
}

func (d *decoder) space() {
	for d.at < len(d.data) {
		switch d.data[d.at] {
		case ' ', '\t', '\r', '\n':
			d.at++
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end.
func (d *decoder) peek() byte {
	if d.at < len(d.data) {
		return d.data[d.at]
	}
	return 0
}

// take takes a byte if it is the next.
func (d *decoder) take(c byte) bool {
	if d.peek() != c {
		return false
	}
	d.at++
	return true
}

// word takes a literal.
func (d *decoder) word(w string) bool {
	if !bytes.HasPrefix(d.data[d.at:], []byte(w)) {
		return false
	}
	d.at += len(w)
	return true
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value reads a value into v. No space is before it.
func (d *decoder) value(v reflect.Value, depth int) bool {
	if depth > deepest || d.readsItself(v.Type()) {
		return false
	}
	if d.peek() == 'n' {
		// It leaves what has no nil as it is.
		return d.word("null")
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem(), depth+1)
	case reflect.Struct:
		return d.object(v, depth)
	case reflect.Map:
		return d.entries(v, depth)
	case reflect.Slice:
		return d.elements(v, depth)
	case reflect.String:
		s, ok := d.text()
		v.SetString(s)
		return ok
	case reflect.Bool:
		v.SetBool(d.peek() == 't')
		return d.word("true") || d.word("false")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(d.integer(), 10, 64)
		if err != nil || v.OverflowInt(n) {
			return false
		}
		v.SetInt(n)
		return true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(d.integer(), 10, 64)
		if err != nil || v.OverflowUint(n) {
			return false
		}
		v.SetUint(n)
		return true
	}
	return false
}

// readsItself says whether a type has a method for that.
func (d *decoder) readsItself(t reflect.Type) bool {
	if t.PkgPath() == "" { // no name, or a name that is Go's
		return false
	}
	does, known := d.selfish[t]
	if !known {
		p := reflect.PointerTo(t)
		does = p.Implements(unmarshaler) || p.Implements(textUnmarshaler)
		d.selfish[t] = does
	}
	return does
}

// integer takes an integer, "" if there is another number or none.
func (d *decoder) integer() string {
	start := d.at
	d.take('-')
	first := d.at
	for d.at < len(d.data) && d.data[d.at] >= '0' && d.data[d.at] <= '9' {
		d.at++
	}
	n := d.at - first
	if n == 0 || n > 1 && d.data[first] == '0' {
		return ""
	}
	switch d.peek() {
	case '.', 'e', 'E':
		return ""
	}
	return string(d.data[start:d.at])
}

// text takes a string.
func (d *decoder) text() (string, bool) {
	if !d.take('"') {
		return "", false
	}
	start, plain := d.at, true
	for ; d.at < len(d.data); d.at++ {
		switch c := d.data[d.at]; {
		case c == '"':
			inner := d.data[start:d.at]
			d.at++
			if plain {
				return string(inner), utf8.Valid(inner)
			}
			var s string
			err := json.Unmarshal(d.data[start-1:d.at], &s)
			return s, err == nil
		case c == '\\':
			plain = false
			d.at++
		case c < ' ':
			return "", false
		}
	}
	return "", false
}

// list reads the items between open and end, separated by commas; item reads one.
func (d *decoder) list(open, end byte, item func() bool) bool {
	if !d.take(open) {
		return false
	}
	d.space()
	if d.take(end) {
		return true
	}
	for {
		d.space()
		if !item() {
			return false
		}
		d.space()
		if d.take(end) {
			return true
		}
		if !d.take(',') {
			return false
		}
	}
}

// members reads an object. A duplicate key is an error.
func (d *decoder) members(member func(key string) bool) bool {
	seen := make(map[string]struct{}, 8)
	return d.list('{', '}', func() bool {
		key, ok := d.text()
		if _, twice := seen[key]; !ok || twice {
			return false
		}
		seen[key] = struct{}{}
		d.space()
		if !d.take(':') {
			return false
		}
		d.space()
		return member(key)
	})
}

func (d *decoder) object(v reflect.Value, depth int) bool {
	f, ok := d.fieldsOf(v.Type())
	return ok && d.members(func(key string) bool {
		for i, name := range f.names {
			if name == key {
				return d.value(v.Field(f.indices[i]), depth+1)
			}
		}
		for _, name := range f.names {
			if strings.EqualFold(name, key) { // encoding/json takes it for the same
				return false
			}
		}
		return d.skip(depth + 1)
	})
}

// fieldsOf is false for a struct that is more than a list of fields.
func (d *decoder) fieldsOf(t reflect.Type) (*fields, bool) {
	if f, ok := d.structs[t]; ok {
		return f, true
	}
	f := &fields{}
	for i := range t.NumField() {
		field := t.Field(i)
		tag := field.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case field.Anonymous, strings.Contains(options, "string"):
			return nil, false
		case !field.IsExported(), tag == "-":
			continue
		case name == "":
			name = field.Name
		}
		f.names, f.indices = append(f.names, name), append(f.indices, i)
	}
	d.structs[t] = f
	return f, true
}

func (d *decoder) entries(v reflect.Value, depth int) bool {
	t := v.Type()
	if t.Key().Kind() != reflect.String || d.readsItself(t.Key()) {
		return false
	}
	v.Set(reflect.MakeMap(t))
	return d.members(func(key string) bool {
		entry := reflect.New(t.Elem()).Elem()
		if !d.value(entry, depth+1) {
			return false
		}
		v.SetMapIndex(reflect.ValueOf(key).Convert(t.Key()), entry)
		return true
	})
}

func (d *decoder) elements(v reflect.Value, depth int) bool {
	if v.Type().Elem().Kind() == reflect.Uint8 { // in base64
		return false
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 4))
	return d.list('[', ']', func() bool {
		n := v.Len()
		if n == v.Cap() {
			v.Grow(1)
		}
		v.SetLen(n + 1)
		return d.value(v.Index(n), depth+1)
	})
}

// skip passes over a value that has no field.
func (d *decoder) skip(depth int) bool {
	if depth > deepest {
		return false
	}
	switch d.peek() {
	case '{':
		return d.members(func(string) bool { return d.skip(depth + 1) })
	case '[':
		return d.list('[', ']', func() bool { return d.skip(depth + 1) })
	case '"':
		_, ok := d.text()
		return ok
	case 't', 'f', 'n':
		return d.word("true") || d.word("false") || d.word("null")
	}
	return d.integer() != ""
}
