// Package configline says on which line of a configuration file an error is.
//
// Errors of upstream's about a configuration file name the field at fault, such as
// resources[0].providers[1].aescbc. In a long file the line is easier to find.
package configline

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fieldPath finds what may be the name of a field.
var fieldPath = regexp.MustCompile(`[A-Za-z]\w*(?:\[\d+\])?(?:\.[A-Za-z]\w*(?:\[\d+\])?)*`)

// Error says which file given by flag err is about, and on which line, if that can be found out.
func Error(flag, path string, data []byte, err error) error {
	said := strings.ReplaceAll(err.Error(), "\n", " ")
	if line := lineOf(data, said); line > 0 && !strings.Contains(said, "line ") {
		return fmt.Errorf("%s %s, line %d: %s", flag, path, line, said)
	}
	return fmt.Errorf("%s %s: %s", flag, path, said)
}

// lineOf returns the line of the first field that a message names, 0 if there is none in data.
func lineOf(data []byte, message string) int {
	var document yaml.Node
	if yaml.Unmarshal(data, &document) != nil || len(document.Content) == 0 {
		return 0
	}
	for _, name := range fieldPath.FindAllString(message, -1) {
		if !strings.ContainsAny(name, "[") && !strings.Contains(message, `"`+name+`"`) && !strings.HasPrefix(message, name+":") {
			continue // a word
		}
		if line := find(document.Content[0], strings.Split(name, ".")); line > 0 {
			return line
		}
	}
	return 0
}

// find returns the line of the innermost node on a path that exists, 0 if not even its first part
// does.
func find(node *yaml.Node, path []string) (line int) {
	for _, part := range path {
		name, index, indexed := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		var next *yaml.Node
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				line, next = node.Content[i].Line, node.Content[i+1]
			}
		}
		if next == nil {
			return line
		}
		if node = next; !indexed {
			continue
		}
		i, err := strconv.Atoi(index)
		if err != nil || node.Kind != yaml.SequenceNode || i >= len(node.Content) {
			return line
		}
		node = node.Content[i]
		line = node.Line
	}
	return line
}
