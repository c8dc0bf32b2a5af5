package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/google/licensecheck"
)

// licenceFile matches the names of files with licences, notices and grants of patents.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|unlicense)([-._].*)?$`)

// terms matches the names of those that have nothing but licences in them.
var terms = regexp.MustCompile(`(?i)^(licen|copying|unlicense)`)

// notLicence matches program text with such a name, and licences of documents, which are not
// linked.
var notLicence = regexp.MustCompile(`(?i)\.(go|sh|py|tmpl|json|ya?ml|tpl|docs)$`)

// distributable are the licences of modules that may be linked. None asks for more than its text,
// and MPL-2.0 for where the source is: the notices say that.
var distributable = []string{
	"0BSD", "Apache-2.0", "BSD-1-Clause", "BSD-2-Clause", "BSD-2-Clause-Views", "BSD-3-Clause", "BlueOak-1.0.0", "CC0-1.0", "ISC",
	"MIT", "MIT-0", "MPL-2.0", "Unlicense", "Zlib",
}

// maxHeading is how many words of a licence's file may be no part of a known licence. Headings have
// up to six; more can be a condition.
const maxHeading = 6

// accepted are longer texts next to known licences that add no condition, by their hash.
var accepted = map[string]string{
	"0371ae051451": "github.com/klauspost/compress: which licence is for which files",
	"215c8ff6f4ba": "go.yaml.in/yaml/v3: which licence is for which files",
	"3287c23e41b5": "sigs.k8s.io/json: which licence is for which files",
	"3558036b9cc9": "sigs.k8s.io/yaml: which licence is for which files",
	"710a6130ff09": "go.yaml.in/yaml/v2: which files have the licence of libyaml",
	"da41c66ab032": "github.com/cyphar/filepath-securejoin: which licence is for which files",
}

// licensed makes the part of a module: its licences lie in dirs and above, up to root.
func licensed(name, version, root string, dirs []string) (part, error) {
	p := part{name: name, version: version}
	looked := map[string]bool{}
	var kinds []string
	for _, dir := range dirs {
		for ; !looked[dir]; dir = filepath.Dir(dir) {
			looked[dir] = true
			texts, found, err := licencesIn(root, dir)
			if err != nil {
				return part{}, fmt.Errorf("%s@%s: %w", name, version, err)
			}
			p.texts, kinds = append(p.texts, texts...), append(kinds, found...)
			if dir == root {
				break
			}
			if !strings.HasPrefix(dir, root+"/") {
				return part{}, fmt.Errorf("%s@%s: %s is not in %s", name, version, dir, root)
			}
		}
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	if len(kinds) == 0 {
		return part{}, fmt.Errorf("%s@%s: no licence in %s", name, version, root)
	}
	p.licence = strings.Join(kinds, " AND ")
	p.texts = union(nil, p.texts)
	return p, nil
}

// licencesIn reads the files of one directory. kinds are the SPDX identifiers of licences among
// them.
func licencesIn(root, dir string) (texts []text, kinds []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) || notLicence.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		body, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, nil, err
		}
		texts = append(texts, text{name: name, body: string(body)})
		found, rest, err := recognize(body)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if terms.MatchString(e.Name()) {
			if len(found) == 0 {
				return nil, nil, fmt.Errorf("%s: unknown licence", name)
			}
			if err := harmless(rest); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		kinds = append(kinds, found...)
	}
	return texts, kinds, nil
}

// recognize returns the licences whose whole text is in body, and the words around them. A licence
// that may not be linked is an error.
func recognize(body []byte) (kinds, rest []string, err error) {
	end := 0
	for _, m := range licensecheck.Scan(body).Match {
		rest = append(rest, wordsOf(body[end:m.Start])...)
		end = m.End
		if m.IsURL || m.ID == "GooglePatentsFile" { // a grant next to the licence
			continue
		}
		if !slices.Contains(distributable, m.ID) {
			return nil, nil, fmt.Errorf("licence %s may not be linked", m.ID)
		}
		kinds = append(kinds, m.ID)
	}
	return kinds, append(rest, wordsOf(body[end:])...), nil
}

// wordsOf are the words of a text, without lines and other marks.
func wordsOf(text []byte) []string {
	return slices.DeleteFunc(strings.Fields(string(text)), func(s string) bool { return !strings.ContainsFunc(s, unicode.IsLetter) })
}

// harmless fails if words around licences may be conditions of their own.
func harmless(words []string) error {
	if len(words) <= maxHeading {
		return nil
	}
	text := strings.Join(words, " ")
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:6])
	if accepted[hash] == "" {
		return fmt.Errorf("text that is no known licence: read it, and if it adds no condition, accept %s in bom/licences.go: %s", hash, text)
	}
	return nil
}
