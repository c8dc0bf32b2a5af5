package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe writes the whole plan, one line for each descriptor, namespace and operation, with
// every field that is not zero: two plans that differ have different descriptions. For people
// who look at one container, an operation's String is enough.
func (p *Plan) Describe() string {
	var b strings.Builder
	d := describer(p.Opens)
	for _, o := range p.Opens {
		fmt.Fprintf(&b, "open: %s\n", d.fields(reflect.ValueOf(o)))
	}
	if p.Namespaces != 0 {
		fmt.Fprintf(&b, "new namespaces: %s\n", strings.Join(p.Namespaces.Names(), ", "))
	}
	if p.Mappings != nil {
		fmt.Fprintf(&b, "mappings: %s\n", d.fields(reflect.ValueOf(*p.Mappings)))
	}
	for _, op := range p.Ops {
		fmt.Fprintf(&b, "%s\n", strings.TrimSpace(reflect.TypeOf(op).Name()+" "+d.fields(reflect.ValueOf(op))))
	}
	return b.String()
}

// describer has what descriptors are called.
type describer []Open

// fields writes a struct's fields, NAME=VALUE, but those that are zero.
func (d describer) fields(v reflect.Value) string {
	var out []string
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() && f.Type() != reflect.TypeFor[Fd]() {
			continue
		}
		name := v.Type().Field(i).Name
		out = append(out, name+"="+d.value(name, f))
	}
	return strings.Join(out, " ")
}

// value writes one field. It reads unexported ones, too, so it may not turn them into values.
func (d describer) value(name string, v reflect.Value) string {
	switch v.Kind() {
	case reflect.Int:
		if i := int(v.Int()); v.Type() == reflect.TypeFor[Fd]() && i >= 0 && i < len(d) {
			return quoted(d[i].Name)
		}
	case reflect.Pointer:
		return d.value(name, v.Elem())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem() == reflect.TypeFor[unix.SockFilter]() {
			return fmt.Sprintf("(%d instructions)", v.Len())
		}
		list := make([]string, v.Len())
		for i := range list {
			list[i] = d.value("", v.Index(i))
		}
		return "[" + strings.Join(list, " ") + "]"
	case reflect.Struct:
		return "{" + d.fields(v) + "}"
	case reflect.String:
		return quoted(v.String())
	case reflect.Uint64:
		return flags(v)
	case reflect.Uintptr:
		return MountFlags(uintptr(v.Uint()))
	case reflect.Uint32:
		if name == "Mode" || name == "Mask" || name == "Type" { // of files
			return fmt.Sprintf("%#o", v.Uint())
		}
	}
	return fmt.Sprint(v)
}

// flags names the bits of a field.
func flags(v reflect.Value) string {
	switch v.Type() {
	case reflect.TypeFor[CapSet]():
		return strings.Join(CapSet(v.Uint()).Names(), ",")
	case reflect.TypeFor[Attrs]():
		if v.Uint()&unix.MOUNT_ATTR__ATIME == unix.MOUNT_ATTR__ATIME {
			return join("atime-mode", Attrs(v.Uint()&^unix.MOUNT_ATTR__ATIME).String())
		}
		return Attrs(v.Uint()).String()
	case reflect.TypeFor[Namespaces]():
		return strings.Join(Namespaces(v.Uint()).Names(), ",")
	}
	return fmt.Sprint(v)
}

// quoted quotes what would be read as several words.
func quoted(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '"' || r == 0x7f }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// MountFlags writes flags of mount(2) as options, propagation among them.
func MountFlags(flags uintptr) string {
	const propagation = unix.MS_PRIVATE | unix.MS_SLAVE | unix.MS_SHARED | unix.MS_UNBINDABLE
	var out []string
	if plain := flagNames(flags &^ (propagation | unix.MS_REC)); plain != "" {
		out = strings.Split(plain, ",")
	}
	recursive := ""
	if flags&unix.MS_REC != 0 {
		recursive = "r"
	}
	kinds := []struct {
		flag uintptr
		name string
	}{{unix.MS_PRIVATE, "private"}, {unix.MS_SLAVE, "slave"}, {unix.MS_SHARED, "shared"}, {unix.MS_UNBINDABLE, "unbindable"}}
	for _, k := range kinds {
		if flags&k.flag != 0 {
			out = append(out, recursive+k.name)
		}
	}
	if i := slices.Index(out, "bind"); i >= 0 && recursive != "" {
		out[i] = "rbind"
	}
	return strings.Join(out, ",")
}
