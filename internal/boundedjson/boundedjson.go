// Package boundedjson decodes untrusted JSON. A text of a few megabytes can hold a million empty
// objects, and each becomes a struct of a hundred bytes: the size of the text does not bound the
// memory.
package boundedjson

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// MaxValues is how many values a text may have: more than the manifest of an image with 500 layers
// or the index of an archive with 10 000 images, and too few to take more than some 30 MB.
const MaxValues = 1 << 17

// Unmarshal is json.Unmarshal for a text of at most MaxValues values.
func Unmarshal(data []byte, into any) error {
	if n := values(data); n > MaxValues {
		return fmt.Errorf("it has more than %d values", MaxValues)
	}
	return json.Unmarshal(data, into)
}

// values counts openings and commas: at least one for each value. It stops
// beyond MaxValues. What is no JSON has any count.
func values(data []byte) int {
	n := 0
	for i := 0; i < len(data) && n <= MaxValues; i++ {
		switch data[i] {
		case '{', '[', ',':
			n++
		case '"':
			i += inString(data[i+1:])
		}
	}
	return n
}

// inString is how long the rest of a string is, with its closing quotation mark.
func inString(data []byte) int {
	for i := 0; i < len(data); {
		at := bytes.IndexAny(data[i:], `"\`)
		if at < 0 {
			break
		}
		if i += at + 1; data[i-1] == '"' {
			return i
		}
		i++ // what is escaped
	}
	return len(data)
}
