package fieldsets

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plan writes the keys of objects of one type. It may be used by several goroutines.
type plan struct {
	object reflect.Type
	write  writer
}

// writer appends what v adds to a key. With values, it adds v itself; otherwise only whether v is
// set. What it appends ends by itself: no two different sequences of values have the same bytes.
type writer func(key []byte, v reflect.Value, values bool) []byte

// planFor makes the plan for objects of the type of example, a pointer to a struct. It fails if a
// field has a type whose values it cannot tell apart.
func planFor(example any) (*plan, error) {
	t := reflect.TypeOf(example)
	if t.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("%s is no pointer", t)
	}
	write, err := compiler{}.writer(t.Elem())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Elem(), err)
	}
	return &plan{object: t, write: write}, nil
}

// append appends the key of object to key. Two objects with the same key have the same fields; two
// with the same fields may have different keys. It panics if object has another type than the
// example.
func (p *plan) append(key []byte, object any) []byte {
	v := reflect.ValueOf(object)
	if v.Type() != p.object {
		panic(fmt.Sprintf("fieldsets: %s instead of %s", v.Type(), p.object))
	}
	return p.write(key, v.Elem(), false)
}

// compiler has the writers of the types that were seen, since types may contain themselves.
type compiler map[reflect.Type]*writer

func (c compiler) writer(t reflect.Type) (writer, error) {
	if known, ok := c[t]; ok && *known != nil {
		return *known, nil
	} else if ok { // t contains itself
		return func(key []byte, v reflect.Value, values bool) []byte { return (*known)(key, v, values) }, nil
	}
	w := new(writer)
	c[t] = w
	var err error
	if *w, err = c.compile(t); err != nil {
		return nil, err
	}
	return *w, nil
}

func (c compiler) compile(t reflect.Type) (writer, error) {
	if w, ok := leaves[t]; ok {
		return w, nil
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return scalar, nil
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return c.nilable(t)
	case reflect.Struct:
		return c.structure(t)
	}
	return nil, fmt.Errorf("a %s is not supported", t)
}

// leaves are structs that are one value for the API.
var leaves = map[reflect.Type]writer{
	reflect.TypeFor[metav1.Time](): leaf((*metav1.Time).IsZero, func(key []byte, at *metav1.Time) []byte {
		return binary.AppendVarint(binary.AppendVarint(key, at.Unix()), int64(at.Nanosecond()))
	}),
	reflect.TypeFor[metav1.MicroTime](): leaf((*metav1.MicroTime).IsZero, func(key []byte, at *metav1.MicroTime) []byte {
		return binary.AppendVarint(binary.AppendVarint(key, at.Unix()), int64(at.Nanosecond()))
	}),
	reflect.TypeFor[resource.Quantity](): leaf((*resource.Quantity).IsZero, func(key []byte, q *resource.Quantity) []byte {
		number, suffix := q.CanonicalizeBytes(make([]byte, 0, 24))
		return appendBytes(appendBytes(key, number), suffix)
	}),
	reflect.TypeFor[metav1.FieldsV1](): leaf(func(f *metav1.FieldsV1) bool { return f.GetRawString() == "" },
		func(key []byte, f *metav1.FieldsV1) []byte { return appendBytes(key, f.GetRawString()) }),
}

// leaf writes a value of type T.
func leaf[T any](zero func(*T) bool, write func(key []byte, value *T) []byte) writer {
	return func(key []byte, v reflect.Value, values bool) []byte {
		var value *T
		if v.CanAddr() {
			value = v.Addr().Interface().(*T)
		} else { // of a map
			value = new(v.Interface().(T))
		}
		switch {
		case zero(value):
			return append(key, 0)
		case values:
			return write(append(key, 1), value)
		}
		return append(key, 1)
	}
}

func scalar(key []byte, v reflect.Value, values bool) []byte {
	if !values {
		if v.IsZero() {
			return append(key, 0)
		}
		return append(key, 1)
	}
	switch {
	case v.Kind() == reflect.Bool && v.Bool():
		return append(key, 1)
	case v.Kind() == reflect.Bool:
		return append(key, 0)
	case v.CanInt():
		return binary.AppendVarint(key, v.Int())
	case v.CanUint():
		return binary.AppendUvarint(key, v.Uint())
	case v.CanFloat():
		return binary.LittleEndian.AppendUint64(key, math.Float64bits(v.Float()))
	}
	return appendBytes(key, v.String())
}

func appendBytes[T ~string | ~[]byte](key []byte, s T) []byte {
	return append(binary.AppendUvarint(key, uint64(len(s))), s...)
}

// nilable writes a pointer, a list or a map: whether there is one, and what is in it.
func (c compiler) nilable(t reflect.Type) (writer, error) {
	element, err := c.writer(t.Elem())
	if err != nil {
		return nil, err
	}
	var content writer
	switch {
	case t.Kind() == reflect.Pointer:
		content = func(key []byte, v reflect.Value, values bool) []byte { return element(key, v.Elem(), values) }
	case t.Kind() == reflect.Map && t.Key().Kind() != reflect.String:
		return nil, fmt.Errorf("a %s is not supported", t)
	case t.Kind() == reflect.Map:
		content = mapping(element)
	case t.Elem().Kind() == reflect.Uint8:
		content = octets
	default:
		content = list(element)
	}
	return func(key []byte, v reflect.Value, values bool) []byte {
		if v.IsNil() {
			return append(key, 0)
		}
		return content(append(key, 1), v, values)
	}, nil
}

// octets writes a []byte, which is one value for the API.
func octets(key []byte, v reflect.Value, values bool) []byte {
	switch {
	case values:
		return appendBytes(key, v.Bytes())
	case v.Len() == 0:
		return append(key, 0)
	}
	return append(key, 1)
}

// list writes the values of all items: they may be members of a set, or have the keys of a map.
func list(item writer) writer {
	return func(key []byte, v reflect.Value, _ bool) []byte {
		key = binary.AppendUvarint(key, uint64(v.Len()))
		for i := range v.Len() {
			key = item(key, v.Index(i), true)
		}
		return key
	}
}

func mapping(value writer) writer {
	return func(key []byte, v reflect.Value, values bool) []byte {
		key = binary.AppendUvarint(key, uint64(v.Len()))
		if v.CanAddr() && !values {
			if labels, ok := v.Addr().Interface().(*map[string]string); ok {
				return appendLabels(key, *labels)
			}
		}
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, name := range names {
			key = value(appendBytes(key, name.String()), v.MapIndex(name), values)
		}
		return key
	}
}

// appendLabels does what mapping does for the most frequent kind of map, without allocations for
// each entry. An entry without a value is a field, too.
func appendLabels(key []byte, labels map[string]string) []byte {
	var some [16]string
	names := some[:0]
	for name := range labels {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		key = appendBytes(key, name)
	}
	return key
}

func (c compiler) structure(t reflect.Type) (writer, error) {
	writers := make([]writer, t.NumField())
	for i := range writers {
		field := t.Field(i)
		if !field.IsExported() {
			return nil, fmt.Errorf("field %s of %s is not exported", field.Name, t)
		}
		var err error
		if writers[i], err = c.writer(field.Type); err != nil {
			return nil, fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	return func(key []byte, v reflect.Value, values bool) []byte {
		for i, write := range writers {
			key = write(key, v.Field(i), values)
		}
		return key
	}, nil
}
