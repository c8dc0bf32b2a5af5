package boundedjson

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

func TestUnmarshal(t *testing.T) {
	many := func(value string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + "]"
	}
	for _, tc := range []struct {
		name, text, says string
	}{
		{"ordinary", `{"a":[1,2,{"b":"x"}],"c":null}`, ""},
		{"as many as may be", many("0", MaxValues-1), ""},
		{"one more", many("0", MaxValues+1), "values"},
		{"empty objects", many("{}", MaxValues), "values"},
		{"empty arrays within arrays", strings.Repeat("[", MaxValues+1), "values"},
		{"commas in a string", `"` + strings.Repeat(",{[", MaxValues) + `"`, ""},
		{"escapes in a string", `"\"` + strings.Repeat(`,\\`, MaxValues) + `\""`, ""},
		{"members", "{" + strings.TrimSuffix(strings.Repeat(`"a":1,`, MaxValues+1), ",") + "}", "values"},
		{"a string without an end", `"abc\"`, "unexpected end"},
		{"nothing", "", "unexpected end"},
	} {
		var v any
		err := Unmarshal([]byte(tc.text), &v)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// What decoding takes is bounded, whatever a few megabytes say.
func TestMemory(t *testing.T) {
	for _, text := range []string{"{}", `{"a":{}}`, `""`, `[]`} {
		data := []byte("[" + strings.TrimSuffix(strings.Repeat(text+",", (4<<20)/(len(text)+1)), ",") + "]")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var v []struct {
			A    *struct{}
			Rest [12]uint64
		}
		if err := Unmarshal(data, &v); err == nil {
			t.Errorf("%s: taken", text)
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
			t.Errorf("%s: %d bytes to refuse it", text, grown)
		}
	}
}

// The count is never below what a decoder makes, so that nothing passes for less than it is.
func FuzzValues(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\"",{}]}`, `"\\"`, `[[],[]]`, `{"\u007b":"}"}`, ` [ 1 , 2 ] `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		if json.Unmarshal(data, &v) != nil {
			return
		}
		if got, made := values(data), decoded(v); got+1 < made {
			t.Errorf("%d values counted, %d made of %q", got, made, data)
		}
	})
}

// decoded counts values.
func decoded(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += decoded(e)
		}
	case map[string]any:
		for _, e := range v {
			n += decoded(e)
		}
	}
	return n
}
