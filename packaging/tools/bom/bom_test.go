package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// mit is a licence that may be linked.
const mit = `MIT License

Copyright (c) 2020 A. Author

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

// The bill of this very program names the modules that it links, with their licences, twice the
// same.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "bom")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	library := filepath.Join(dir, "COPYING")
	libraries := filepath.Join(dir, "libraries")
	for path, text := range map[string]string{
		library: "do as you like", libraries: "libexample\t1.0\tLGPL-2.1-only\t" + library + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written := func(name string) (notices, sbom string) {
		n, s := filepath.Join(dir, name+".txt"), filepath.Join(dir, name+".json")
		if err := run("v1", 1_700_000_000, []string{".."}, libraries, n, s, []string{program}); err != nil {
			t.Fatal(err)
		}
		a, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(a), string(b)
	}
	notices, sbom := written("first")
	for _, want := range []string{"github.com/CycloneDX/cyclonedx-go v0.", "Go standard library 1.", "  licence: BSD-3-Clause\n  in: bom\n"} {
		if !strings.Contains(notices, want) {
			t.Errorf("the notices have no %q", want)
		}
	}
	var decoded struct {
		Components   []struct{ Name, Purl string }
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal([]byte(sbom), &decoded); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(decoded.Components, func(c struct{ Name, Purl string }) bool {
		return strings.HasPrefix(c.Purl, "pkg:golang/github.com/google/licensecheck@v")
	}) {
		t.Errorf("components: %v", decoded.Components)
	}
	linksC := strings.Contains(notices, "libexample 1.0")
	if l, err := readProgram(program); err != nil || l.cgo != linksC {
		t.Errorf("with cgo: %t, the C library is in the notices: %t; %v", l.cgo, linksC, err)
	}
	if again, sbomAgain := written("second"); again != notices || sbomAgain != sbom {
		t.Error("the second time, the files are different")
	}
}

// A program that other sources were built into gets no bill.
func TestOtherModules(t *testing.T) {
	l := linked{deps: map[string]debug.Module{
		"example.org/a": {Path: "example.org/a", Version: "v1.0.0"},
		"example.org/b": {Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v2.0.0"}},
	}}
	listed := map[string]goModule{
		"example.org/a": {Path: "example.org/a", Version: "v1.0.0"},
		"example.org/b": {Path: "example.org/b", Version: "v1.0.0", Replace: &goModule{Path: "example.org/fork", Version: "v2.0.0"}},
	}
	if err := l.agrees(listed); err != nil {
		t.Error(err)
	}
	for name, m := range map[string]goModule{
		"another version":     {Path: "example.org/a", Version: "v1.1.0"},
		"another replacement": {Path: "example.org/a", Version: "v1.0.0", Replace: &goModule{Path: "example.org/c", Version: "v1.0.0"}},
	} {
		listed["example.org/a"] = m
		if err := l.agrees(listed); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	delete(listed, "example.org/a")
	if err := l.agrees(listed); err == nil {
		t.Error("a module is gone: no error")
	}
}

// What replaces a module from a directory of the repository is under the project's own licence.
func TestOwn(t *testing.T) {
	for _, c := range []struct {
		module, replacement string
		want                bool
	}{
		{ours, "", true},
		{ours + "/internal/programpages", "../internal/programpages", true},
		{ours + "x", "", false},
		{"example.org/a", "", false},
		{"example.org/a", "example.org/fork", false},
		{"example.org/a", "./replaced/a", true},
	} {
		if own(c.module, c.replacement) != c.want {
			t.Errorf("%s, replaced by %q: not %t", c.module, c.replacement, c.want)
		}
	}
}

func TestLicences(t *testing.T) {
	gpl, err := os.ReadFile("/usr/share/common-licenses/GPL-3")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name          string
		files         map[string]string
		licence, fail string
	}{
		{name: "at the top", files: map[string]string{"LICENSE": mit}, licence: "MIT"},
		{name: "next to the package", files: map[string]string{"a/b/LICENSE.txt": mit}, licence: "MIT"},
		{name: "British", files: map[string]string{"a/LICENCE": mit, "a/NOTICE": "By A. Author."}, licence: "MIT"},
		{name: "of another package", files: map[string]string{"c/LICENSE": mit}, fail: "no licence"},
		{name: "only a notice", files: map[string]string{"NOTICE": "By A. Author."}, fail: "no licence"},
		{name: "of their own", files: map[string]string{"LICENSE": "Ask me."}, fail: "LICENSE: unknown licence"},
		{name: "GPL", files: map[string]string{"LICENSE": mit, "a/COPYING": string(gpl)}, fail: "a/COPYING: licence GPL-3.0 may not be linked"},
		{name: "more terms", files: map[string]string{"LICENSE": mit + "\nThe Software shall be used for Good, not Evil.\n"}, fail: "no known licence"},
		{name: "headings", files: map[string]string{"LICENSE": "# MIT License (MIT)\n\n" + mit}, licence: "MIT"},
		{name: "program text", files: map[string]string{"LICENSE": mit, "a/license.go": "package b"}, licence: "MIT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range c.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			p, err := licensed("example.org/m", "v1.0.0", root, []string{filepath.Join(root, "a/b")})
			switch {
			case c.fail == "" && err != nil:
				t.Fatal(err)
			case c.fail != "" && (err == nil || !strings.Contains(err.Error(), c.fail)):
				t.Fatalf("error %v, want %q", err, c.fail)
			case p.licence != c.licence:
				t.Errorf("licence %q, want %q", p.licence, c.licence)
			case err == nil && len(p.texts) != len(c.files)-strings.Count(c.name, "program text"):
				t.Errorf("texts: %d", len(p.texts))
			}
		})
	}
}

// The module of a generated file has its licence in the notices, although no program links it.
func TestGeneratedFrom(t *testing.T) {
	for importPath, module := range generatedFrom {
		p, err := generated("../../.."+strings.TrimPrefix(importPath, ours), module)
		if err != nil {
			t.Fatal(err)
		}
		if p.name != module || p.licence != "Apache-2.0" || len(p.texts) == 0 || p.purl != "pkg:golang/"+module+"@"+p.version {
			t.Errorf("%s: %+v", importPath, p)
		}
	}
}
