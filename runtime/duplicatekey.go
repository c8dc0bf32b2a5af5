package runtime

import "encoding/json"

// duplicateKey finds a key that an object of well-formed JSON text has twice. It returns the offset
// of the second one, or -1. JSON does not define which of the two counts: a program that checked
// one of them could pass the text on to a program that reads the other.
func duplicateKey(data []byte) (offset int, key string) {
	var open []map[string]struct{} // keys of the objects that are open; nil for arrays
	wantKey := false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			open, wantKey = append(open, map[string]struct{}{}), true
		case '[':
			open, wantKey = append(open, nil), false
		case '}', ']':
			open, wantKey = open[:len(open)-1], false
		case ',':
			wantKey = len(open) > 0 && open[len(open)-1] != nil
		case '"':
			end, plain := stringEnd(data, i)
			if wantKey {
				key := unquoted(data[i:end], plain)
				keys := open[len(open)-1]
				if _, twice := keys[key]; twice {
					return i, key
				}
				keys[key] = struct{}{}
				wantKey = false
			}
			i = end - 1
		}
	}
	return -1, ""
}

// stringEnd returns the offset after the string at start, and whether the string has no escapes.
func stringEnd(data []byte, start int) (end int, plain bool) {
	plain = true
	for i := start + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			plain = false
			i++
		case '"':
			return i + 1, plain
		}
	}
	return len(data), plain
}

func unquoted(quoted []byte, plain bool) string {
	if plain {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	_ = json.Unmarshal(quoted, &s) // it is well-formed
	return s
}
