package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// licenceFile matches the names of files with licences, notices and grants of patents.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|unlicense)([-._].*)?$`)

// notLicence matches program text with such a name, and licences of documents, which are not
// linked.
var notLicence = regexp.MustCompile(`(?i)\.(go|sh|py|tmpl|json|ya?ml|tpl|docs)$`)

// distributable are the licences of modules that may be linked. None asks for more than its text,
// and MPL-2.0 for where the source is: the notices say that.
var distributable = []string{
	"0BSD", "Apache-2.0", "BSD-1-Clause", "BSD-2-Clause", "BSD-2-Clause-Views", "BSD-3-Clause", "BlueOak-1.0.0", "CC0-1.0", "ISC",
	"MIT", "MIT-0", "MPL-2.0", "Unlicense", "Zlib",
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
		found, err := recognize(body)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(found) == 0 && regexp.MustCompile(`(?i)^(licen|copying|unlicense)`).MatchString(e.Name()) {
			return nil, nil, fmt.Errorf("%s: unknown licence", name)
		}
		kinds = append(kinds, found...)
	}
	return texts, kinds, nil
}

// recognize returns the licences whose whole text is in body. One that may not be linked is an
// error.
func recognize(body []byte) (kinds []string, err error) {
	for _, m := range licensecheck.Scan(body).Match {
		if m.IsURL || m.ID == "GooglePatentsFile" { // a grant next to the licence
			continue
		}
		if !slices.Contains(distributable, m.ID) {
			return nil, fmt.Errorf("licence %s may not be linked", m.ID)
		}
		kinds = append(kinds, m.ID)
	}
	return kinds, nil
}
