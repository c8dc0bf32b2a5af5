package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

const preface = `The programs of Coracle %s are licensed under the Apache License 2.0 (LICENSE).
They contain the following modules and libraries, under these licences. The source code of each Go
module is what "go mod download MODULE@VERSION" fetches.

`

// notices is the text with all licences. A text that several parts have is there once.
func (b *bill) notices() string {
	var s strings.Builder
	fmt.Fprintf(&s, preface, b.version)
	for _, p := range b.sorted() {
		fmt.Fprintf(&s, "%s %s\n  licence: %s\n  in: %s\n", p.name, p.version, p.licence, strings.Join(b.users(p), ", "))
	}
	var bodies []string
	owners := map[string][]string{}
	for _, p := range b.sorted() {
		for _, t := range p.texts {
			body := strings.TrimSpace(strings.ReplaceAll(t.body, "\r\n", "\n"))
			if owners[body] == nil {
				bodies = append(bodies, body)
			}
			owners[body] = append(owners[body], fmt.Sprintf("%s %s, %s", p.name, p.version, t.name))
		}
	}
	for _, body := range bodies {
		fmt.Fprintf(&s, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(owners[body], "\n"), body)
	}
	return s.String()
}

// writeCycloneDX writes the bill: a component for each program and part, and which program has
// which part.
func (b *bill) writeCycloneDX(path string) (err error) {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: b.time.Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: "coracle", Type: cdx.ComponentTypeApplication, Name: "coracle", Version: b.version,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	components := []cdx.Component{}
	dependencies := []cdx.Dependency{}
	all := []string{}
	var identity strings.Builder // of this bill: the same parts give the same serial number
	for _, p := range b.programs {
		ref := "program:" + p.name
		all = append(all, ref)
		components = append(components, cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p.name, Version: b.version})
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &p.parts})
		fmt.Fprintln(&identity, ref, b.version, p.parts)
	}
	for _, p := range b.sorted() {
		components = append(components, cdx.Component{
			BOMRef: p.name + "@" + p.version, Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version, PackageURL: p.purl,
			Licenses: &cdx.Licenses{{Expression: p.licence}},
		})
	}
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceOID, []byte(identity.String())).URN()
	dependencies = append(dependencies, cdx.Dependency{Ref: "coracle", Dependencies: &all})
	bom.Components, bom.Dependencies = &components, &dependencies
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	return cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}
