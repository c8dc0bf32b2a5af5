// Package spoil spoils protobuf messages, one field at a time: names that are too long,
// control characters, paths that lead out, numbers that are too small or too large, maps that
// are too big.
package spoil

import (
	"fmt"
	"iter"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// strings that something may not be prepared for. %s is a directory of the test's.
var texts = []string{
	"", "..", "../../..", ".", "/", "//", "%s/../escape", "%s/a\nb", "a\x00b", "\x1b[31m", "a b", "-rf", "--", "$(reboot)", "*", "\u202e", "ÿ",
	"\xff\xfe",
	strings.Repeat("a", 300), strings.Repeat("a", 70_000), strings.Repeat("../", 2000), "a/b", "localhost/", "0", "-1", "2147483648",
}

var numbers = []int64{0, -1, math.MinInt64, math.MaxInt64, math.MinInt32, math.MaxInt32, math.MaxUint32, 1 << 40}

// Each yields copies of m with one field spoilt each, and says which, for every field that
// is set and every scalar of a message that is. Paths among the values lead to dir.
func Each(m proto.Message, dir string) iter.Seq2[string, proto.Message] {
	return func(yield func(string, proto.Message) bool) {
		v := visitor{dir: dir, root: m, yield: yield}
		v.message("", m.ProtoReflect(), func(m proto.Message) protoreflect.Message { return m.ProtoReflect() })
	}
}

// visitor walks the original, and makes each copy again: find leads to the same place in it.
type visitor struct {
	dir   string
	root  proto.Message
	yield func(string, proto.Message) bool
	done  bool
}

type find func(proto.Message) protoreflect.Message

func (v *visitor) message(at string, m protoreflect.Message, where find) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := at + "." + string(f.Name())
		switch {
		case v.done:
			return
		case f.IsMap():
			v.maps(name, f, where)
		case f.IsList():
			v.lists(name, m, f, where)
		case f.Kind() == protoreflect.MessageKind:
			v.one(name+" missing", where, func(m protoreflect.Message) { m.Clear(f) })
			if m.Has(f) {
				v.message(name, m.Get(f).Message(), func(p proto.Message) protoreflect.Message { return where(p).Mutable(f).Message() })
			} else {
				v.one(name+" empty", where, func(m protoreflect.Message) { m.Mutable(f) })
			}
		default:
			for what, value := range v.values(f) {
				v.one(name+"="+what, where, func(m protoreflect.Message) { m.Set(f, value) })
			}
		}
	}
}

// one yields a copy that change has been made to.
func (v *visitor) one(what string, where find, change func(protoreflect.Message)) {
	if v.done {
		return
	}
	m := proto.Clone(v.root)
	change(where(m))
	v.done = !v.yield(what, m)
}

// values are those that a scalar is set to.
func (v *visitor) values(f protoreflect.FieldDescriptor) iter.Seq2[string, protoreflect.Value] {
	return func(yield func(string, protoreflect.Value) bool) {
		switch f.Kind() {
		case protoreflect.StringKind:
			for _, s := range texts {
				if strings.Contains(s, "%s") {
					s = fmt.Sprintf(s, v.dir)
				}
				if !yield(short(s), protoreflect.ValueOfString(strings.ToValidUTF8(s, "\ufffd"))) {
					return
				}
			}
		case protoreflect.BytesKind:
			for _, s := range texts {
				if !yield(short(s), protoreflect.ValueOfBytes([]byte(s))) {
					return
				}
			}
		case protoreflect.BoolKind:
			_ = yield("true", protoreflect.ValueOfBool(true)) && yield("false", protoreflect.ValueOfBool(false))
		case protoreflect.EnumKind:
			for _, n := range []protoreflect.EnumNumber{0, 1, 2, 3, 4, -1, 99, math.MaxInt32} {
				if !yield(fmt.Sprint(n), protoreflect.ValueOfEnum(n)) {
					return
				}
			}
		default:
			for _, n := range numbers {
				if value, ok := number(f.Kind(), n); ok && !yield(fmt.Sprint(n), value) {
					return
				}
			}
		}
	}
}

func number(k protoreflect.Kind, n int64) (protoreflect.Value, bool) {
	switch k {
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n), true
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n)), true
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n)), true
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n)), true
	}
	return protoreflect.Value{}, false
}

func (v *visitor) maps(name string, f protoreflect.FieldDescriptor, where find) {
	if f.MapKey().Kind() != protoreflect.StringKind || f.MapValue().Kind() != protoreflect.StringKind {
		return
	}
	for what, text := range v.values(f.MapKey()) {
		v.one(name+"[key]="+what, where, func(m protoreflect.Message) {
			m.Mutable(f).Map().Set(text.MapKey(), protoreflect.ValueOfString("v"))
		})
		v.one(name+"[value]="+what, where, func(m protoreflect.Message) {
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), text)
		})
	}
	v.one(name+" with 20000 entries", where, func(m protoreflect.Message) {
		for i := range 20_000 {
			m.Mutable(f).Map().Set(protoreflect.ValueOfString(fmt.Sprintf("key-%d", i)).MapKey(), protoreflect.ValueOfString("value"))
		}
	})
}

func (v *visitor) lists(name string, m protoreflect.Message, f protoreflect.FieldDescriptor, where find) {
	if f.Kind() == protoreflect.MessageKind {
		v.one(name+" with an empty entry", where, func(m protoreflect.Message) { m.Mutable(f).List().AppendMutable() })
		for i := range m.Get(f).List().Len() {
			v.message(fmt.Sprintf("%s[%d]", name, i), m.Get(f).List().Get(i).Message(), func(p proto.Message) protoreflect.Message {
				return where(p).Mutable(f).List().Get(i).Message()
			})
			v.one(name+" twice", where, func(m protoreflect.Message) {
				l := m.Mutable(f).List()
				l.Append(protoreflect.ValueOfMessage(proto.Clone(l.Get(i).Message().Interface()).ProtoReflect()))
			})
		}
		return
	}
	for what, value := range v.values(f) {
		v.one(name+"[]="+what, where, func(m protoreflect.Message) { m.Mutable(f).List().Append(value) })
	}
	for what, value := range v.values(f) {
		v.one(name+" with 5000 of "+what, where, func(m protoreflect.Message) {
			for range 5000 {
				m.Mutable(f).List().Append(value)
			}
		})
		return // of one kind
	}
}

func short(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%.20q… (%d bytes)", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}
