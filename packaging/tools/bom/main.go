// Command bom says what is linked into programs. It writes the licences of it all as a text, and a
// bill of materials in CycloneDX's JSON.
//
//	bom -version v0.1.0 -time 1700000000 -sources .:cluster -libraries FILE \
//	  -notices NOTICES.txt -sbom coracle.cdx.json PROGRAM...
//
// What a program links is read from the build information in it. The licences of a module are in
// the directories of its linked packages and above them, in the copy that `go list` shows. The two
// have to agree: a program that was built from other modules is an error, and so is a module
// without a licence that we may distribute.
//
// C libraries leave no build information: FILE describes those that programs with cgo link, one a
// line: name, version, SPDX expression, and the files with its licence, separated by commas,
// between tabs.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// part is a module or library that is linked into at least one program.
type part struct {
	name, version string
	purl          string
	licence       string // SPDX expression
	texts         []text
}

// text is a file with a licence or a notice.
type text struct {
	name string // relative to the part
	body string
}

// program is a binary with the parts that it links, sorted.
type program struct {
	name  string
	parts []string // keys of the bill's parts
}

// bill is what all programs link.
type bill struct {
	version  string
	time     time.Time
	parts    map[string]part // by name@version
	programs []program
}

func main() {
	version := flag.String("version", "", "version of the programs")
	seconds := flag.Int64("time", 0, "time of the bill in seconds since 1970: that of the sources")
	sources := flag.String("sources", ".", "directories of the programs' modules, separated by colons")
	libraries := flag.String("libraries", "", "list of the C libraries in programs with cgo")
	notices := flag.String("notices", "", "file to write the licences to")
	sbom := flag.String("sbom", "", "file to write the bill of materials to")
	flag.Parse()
	if err := run(*version, *seconds, filepath.SplitList(*sources), *libraries, *notices, *sbom, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func run(version string, seconds int64, sources []string, libraries, notices, sbom string, programs []string) error {
	if len(programs) == 0 || notices == "" || sbom == "" {
		return errors.New("name -notices, -sbom and programs")
	}
	static, err := readLibraries(libraries)
	if err != nil {
		return err
	}
	b := bill{version: version, time: time.Unix(seconds, 0).UTC(), parts: map[string]part{}}
	for _, path := range programs {
		if err := b.add(path, sources, static); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := os.WriteFile(notices, []byte(b.notices()), 0o644); err != nil {
		return err
	}
	return b.writeCycloneDX(sbom)
}

// add reads one program. static are the libraries that it links if it was built with cgo.
func (b *bill) add(path string, sources []string, static []part) error {
	linked, err := readProgram(path)
	if err != nil {
		return err
	}
	parts, err := linked.modules(sources)
	if err != nil {
		return err
	}
	if linked.cgo {
		parts = append(parts, static...)
	}
	p := program{name: filepath.Base(path)}
	for _, part := range parts {
		key := part.name + "@" + part.version
		p.parts = append(p.parts, key)
		// Programs may link different packages of one module, with licences of their own.
		if have, ok := b.parts[key]; ok {
			part.texts = union(have.texts, part.texts)
			part.licence = both(have.licence, part.licence)
		}
		b.parts[key] = part
	}
	slices.Sort(p.parts)
	b.programs = append(b.programs, p)
	return nil
}

// sorted are all parts by name and version.
func (b *bill) sorted() []part {
	return slices.SortedFunc(maps.Values(b.parts), func(x, y part) int {
		return cmp.Or(strings.Compare(x.name, y.name), strings.Compare(x.version, y.version))
	})
}

// users are the programs that link a part.
func (b *bill) users(p part) (names []string) {
	for _, program := range b.programs {
		if slices.Contains(program.parts, p.name+"@"+p.version) {
			names = append(names, program.name)
		}
	}
	return names
}

func union(a, b []text) []text {
	for _, t := range b {
		if !slices.Contains(a, t) {
			a = append(a, t)
		}
	}
	slices.SortFunc(a, func(x, y text) int { return strings.Compare(x.name, y.name) })
	return a
}

// both joins two expressions of licences that all apply.
func both(a, b string) string {
	terms := append(strings.Split(a, " AND "), strings.Split(b, " AND ")...)
	slices.Sort(terms)
	return strings.Join(slices.Compact(terms), " AND ")
}
