package recordfile

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Kept are the fields of a record that this program does not know. A newer program wrote them, and
// needs them again. Nearly all records have none, which is nil.
//
// Kept includes fields of objects inside the record if the program's type there is a struct or a
// map of structs. It does not include fields of array elements: after a change, the elements cannot
// be matched.
type Kept struct {
	fields map[string]json.RawMessage
	below  map[string]*Kept // by the name of the field that the object is in
}

// Keep returns the fields of data that v, a struct or a pointer to one, does not have.
func Keep(data []byte, v any) *Kept { return unknown(data, reflect.TypeOf(v)) }

// Marshal encodes v with the kept fields. A field of v overrides a kept field of the same name.
func (k *Kept) Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if k == nil || err != nil {
		return data, err
	}
	return k.merge(data), nil
}

func (k *Kept) merge(data []byte) []byte {
	var known map[string]json.RawMessage
	if json.Unmarshal(data, &known) != nil || known == nil {
		return data // null, or no longer an object
	}
	for name, below := range k.below {
		if value, has := known[name]; has && !bytes.Equal(value, []byte("null")) {
			known[name] = below.merge(value)
		}
	}
	for name, value := range k.fields {
		if !hasFold(known, name) {
			known[name] = value
		}
	}
	// The program's own order, followed by the unknown fields: people read records too.
	var out bytes.Buffer
	out.WriteByte('{')
	put := func(name string) {
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		quoted, _ := json.Marshal(name) // a string can always be encoded
		out.Write(quoted)
		out.WriteByte(':')
		out.Write(known[name])
		delete(known, name)
	}
	for _, name := range names(data) {
		if _, has := known[name]; has {
			put(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		put(name)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// names returns the names of an object's fields, in order.
func names(data []byte) []string {
	var out []string
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for dec.More() {
		t, err := dec.Token()
		name, is := t.(string)
		var skip json.RawMessage
		if err != nil || !is || dec.Decode(&skip) != nil {
			return out
		}
		out = append(out, name)
	}
	return out
}

// unknown returns the fields of an object that a type does not have.
func unknown(data []byte, t reflect.Type) *Kept {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct && t.Kind() != reflect.Map || encodesItself(t) {
		return nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil || object == nil {
		return nil
	}
	k := &Kept{fields: map[string]json.RawMessage{}, below: map[string]*Kept{}}
	var fields map[string]reflect.Type
	if t.Kind() == reflect.Struct {
		fields = fieldsOf(t)
	}
	for name, value := range object {
		if t.Kind() == reflect.Map {
			if below := unknown(value, t.Elem()); below != nil {
				k.below[name] = below
			}
			continue
		}
		known := fieldNamed(fields, name)
		if known == "" {
			k.fields[name] = value
		} else if below := unknown(value, fields[known]); below != nil {
			k.below[known] = below
		}
	}
	if len(k.fields) == 0 && len(k.below) == 0 {
		return nil
	}
	return k
}

// fieldNamed returns the field that a name is decoded into, "" if there is none. Package json
// ignores the case of names.
func fieldNamed(fields map[string]reflect.Type, name string) (known string) {
	for field := range fields {
		if field == name || known == "" && strings.EqualFold(field, name) {
			known = field
		}
	}
	return known
}

func hasFold(object map[string]json.RawMessage, name string) bool {
	for known := range object {
		if strings.EqualFold(known, name) {
			return true
		}
	}
	return false
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// encodesItself reports whether a type is not encoded field by field, such as time.Time.
func encodesItself(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}

// fieldsOf returns the fields of a struct by their names in package json.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" && options == "" && !strings.Contains(f.Tag.Get("json"), ",") {
			continue
		}
		if f.Anonymous && tag == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				maps.Copy(out, fieldsOf(inner))
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		out[tag] = f.Type
	}
	return out
}
