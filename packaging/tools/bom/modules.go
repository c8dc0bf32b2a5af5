package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// ours is the prefix of the modules that are this project's own.
const ours = "github.com/coracle-project/coracle"

// linked is what a program's build information says.
type linked struct {
	path, module string // of the main package
	toolchain    string
	tags, goarch string
	cgo          bool
	deps         map[string]debug.Module // without our own; by the path in import statements
}

func readProgram(path string) (linked, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return linked{}, err
	}
	l := linked{path: info.Path, module: info.Main.Path, toolchain: info.GoVersion, deps: map[string]debug.Module{}}
	for _, s := range info.Settings {
		switch s.Key {
		case "-tags":
			l.tags = s.Value
		case "GOARCH":
			l.goarch = s.Value
		case "CGO_ENABLED":
			l.cgo = s.Value == "1"
		}
	}
	for _, d := range info.Deps {
		replacement := ""
		if d.Replace != nil {
			replacement = d.Replace.Path
		}
		if !own(d.Path, replacement) {
			l.deps[d.Path] = *d
		}
	}
	return l, nil
}

// own says whether a module is ours, by its path or because a directory of this repository
// replaces it.
func own(module, replacement string) bool {
	return module == ours || strings.HasPrefix(module, ours+"/") || strings.HasPrefix(replacement, ".")
}

// goPackage is what we need of `go list -json`.
type goPackage struct {
	ImportPath, Dir string
	Standard        bool
	Module          *goModule
}

type goModule struct {
	Path, Version, Dir string
	Main               bool
	Replace            *goModule
}

// replacement is the path of the module or directory that replaces m, if there is one.
func (m *goModule) replacement() string {
	if m.Replace == nil {
		return ""
	}
	return m.Replace.Path
}

// modules are the parts that l links: the standard library, and modules by the code that is
// compiled, which is a replacement's if there is one.
func (l linked) modules(sources []string) ([]part, error) {
	packages, goroot, err := l.list(sources)
	if err != nil {
		return nil, err
	}
	seen := map[string]goModule{}
	dirs := map[string][]string{} // of a module's packages
	for _, p := range packages {
		if p.Standard || p.Module == nil || own(p.Module.Path, p.Module.replacement()) {
			continue
		}
		seen[p.Module.Path] = *p.Module
		dirs[p.Module.Path] = append(dirs[p.Module.Path], p.Dir)
	}
	if err := l.agrees(seen); err != nil {
		return nil, err
	}
	std, err := licensed("Go standard library", strings.TrimPrefix(l.toolchain, "go"), goroot, []string{goroot})
	if err != nil {
		return nil, err
	}
	std.purl = "pkg:golang/std@" + std.version
	parts := []part{std}
	for _, p := range packages {
		if module, ok := generatedFrom[p.ImportPath]; ok {
			p, err := generated(p.Dir, module)
			if err != nil {
				return nil, err
			}
			parts = append(parts, p)
		}
	}
	for path, m := range seen {
		if m.Replace != nil {
			m.Replace.Dir, m = m.Dir, *m.Replace
		}
		p, err := m.part(dirs[path])
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// part is the module with the licences of its packages in these directories.
func (m goModule) part(dirs []string) (part, error) {
	p, err := licensed(m.Path, m.Version, m.Dir, dirs)
	p.purl = "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	return p, err
}

// generatedFrom names, for packages of ours that contain text of a module which no program links,
// that module.
var generatedFrom = map[string]string{ours + "/internal/apparmor": "github.com/moby/profiles/apparmor"}

// generated is a module whose text is in a package in dir.
func generated(dir, module string) (part, error) {
	out, err := golang(dir, []string{"GOFLAGS="}, "mod", "download", "-json", module)
	if err != nil {
		return part{}, err
	}
	var m goModule
	if err := json.Unmarshal(out, &m); err != nil {
		return part{}, fmt.Errorf("go mod download: %w", err)
	}
	return m.part([]string{m.Dir})
}

// agrees fails if the program was built from other modules than those that `go list` shows now.
func (l linked) agrees(listed map[string]goModule) error {
	var different []string
	version := func(path, version string) string { return path + "@" + version }
	for path, dep := range l.deps {
		built, now := version(dep.Path, dep.Version), "none"
		if dep.Replace != nil {
			built = version(dep.Replace.Path, dep.Replace.Version)
		}
		if m, ok := listed[path]; ok {
			now = version(m.Path, m.Version)
			if m.Replace != nil {
				now = version(m.Replace.Path, m.Replace.Version)
			}
		}
		if built != now {
			different = append(different, built+" (now "+now+")")
		}
	}
	for path := range listed {
		if _, ok := l.deps[path]; !ok {
			different = append(different, "none (now "+path+")")
		}
	}
	if len(different) > 0 {
		slices.Sort(different)
		return fmt.Errorf("built from other modules: %s", strings.Join(different, ", "))
	}
	return nil
}

// list are the packages of the program, and the directory of the standard library's licence.
func (l linked) list(sources []string) (packages []goPackage, goroot string, err error) {
	dir := ""
	for _, source := range sources {
		out, err := golang(source, nil, "list", "-m")
		if err != nil {
			return nil, "", err
		}
		if strings.TrimSpace(string(out)) == l.module {
			dir = source
		}
	}
	if dir == "" {
		return nil, "", fmt.Errorf("no source directory has module %s", l.module)
	}
	cgo := "CGO_ENABLED=0"
	if l.cgo {
		cgo = "CGO_ENABLED=1"
	}
	out, err := golang(dir, []string{"GOFLAGS=", "GOARCH=" + l.goarch, cgo},
		"list", "-deps", "-tags="+l.tags, "-json=ImportPath,Dir,Standard,Module", l.path)
	if err != nil {
		return nil, "", err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, "", fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
	out, err = golang(dir, nil, "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, "", err
	}
	goroot, version, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if version != l.toolchain {
		return nil, "", fmt.Errorf("built with %s, not %s", l.toolchain, version)
	}
	return packages, goroot, nil
}

func golang(dir string, env []string, args ...string) ([]byte, error) {
	program := os.Getenv("GO")
	if program == "" {
		program = "go"
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// readLibraries reads the list of C libraries.
func readLibraries(path string) (parts []part, err error) {
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("%s: %q is not name, version, licence and files", path, line)
		}
		p := part{
			name: f[0], version: f[1], licence: f[2],
			purl: "pkg:deb/debian/" + f[0] + "@" + strings.ReplaceAll(f[1], "+", "%2B"),
		}
		for _, file := range strings.Split(f[3], ",") {
			body, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			p.texts = append(p.texts, text{name: filepath.Base(file), body: string(body)})
		}
		parts = append(parts, p)
	}
	return parts, nil
}
