package runtime

import "encoding/json"

// duplicateKey finds a key that stands twice in one object of JSON text, which has to be
// well-formed: the offset of the second one, or -1. Which of two counts is not defined, and
// readers differ, so that what one program has checked another would not do.
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

// stringEnd is where the string that starts at start has ended, and whether it has no escapes.
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
	_ = json.Unmarshal(quoted, &s) // it was well-formed
	return s
}
