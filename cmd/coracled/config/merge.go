package config

import "reflect"

// Merge returns c with those settings of next that may change while the daemon runs. changed are
// their keys as far as they differ, later those of settings that differ and need a restart.
func (c Config) Merge(next Config) (merged Config, changed, later []string) {
	merged = c
	m := merging{changed: &changed, later: &later}
	m.section("", reflect.ValueOf(&merged).Elem(), reflect.ValueOf(next))
	return merged, changed, later
}

type merging struct{ changed, later *[]string }

func (m merging) section(prefix string, into, from reflect.Value) {
	for i := range into.NumField() {
		field := into.Type().Field(i)
		key := prefix + field.Tag.Get("toml")
		switch {
		case isOld(field): // its value is in the field of the new name
			into.Field(i).Set(from.Field(i))
		case reflect.DeepEqual(into.Field(i).Interface(), from.Field(i).Interface()):
		case isLive(field):
			into.Field(i).Set(from.Field(i))
			*m.changed = append(*m.changed, key)
		case field.Type.Kind() == reflect.Struct:
			m.section(key+".", into.Field(i), from.Field(i))
		default:
			*m.later = append(*m.later, key)
		}
	}
}

func isOld(field reflect.StructField) bool { return field.Tag.Get("old") == "true" }

func isLive(field reflect.StructField) bool { return field.Tag.Get("live") == "true" }
