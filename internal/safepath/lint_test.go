package safepath

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// guarded are the folders whose code handles untrusted paths. In them
// no one may name a file to package os, or to the system calls beneath it, except
// in the files that allowed.txt lists with a reason. Which variable holds a
// an untrusted path cannot be told by looking at the code; which file calls such a
// function can.
var guarded = []string{"image", "pod", "snapshot"}

// sealed are the folders of guarded where no exception is possible.
var sealed = []string{"image/unpack/", "pod/userdb/"}

//go:embed allowed.txt
var allowedFile string

// takesPath lists, per package, the functions that take a path. "*" is all of them.
var takesPath = map[string]string{
	"os": `Open OpenFile OpenInRoot OpenRoot Create CreateTemp ReadFile WriteFile ReadDir Readlink
		Mkdir MkdirAll MkdirTemp Remove RemoveAll Rename Link Symlink Stat Lstat Chmod Chown Lchown
		Chtimes Chdir Truncate DirFS CopyFS StartProcess`,
	"io/ioutil":     "*",
	"path/filepath": "EvalSymlinks Glob Walk WalkDir",
	"golang.org/x/sys/unix": `Open Openat Openat2 OpenTree OpenByHandleAt NameToHandleAt Creat Mkdir Mkdirat Rmdir Unlink Unlinkat Rename
		Renameat Renameat2 Link Linkat Symlink Symlinkat Readlink Readlinkat Mknod Mknodat Mkfifo
		Mkfifoat Chmod Fchmodat Chown Lchown Fchownat Stat Lstat Fstatat Statx Access Faccessat
		Faccessat2 Truncate Utime Utimes UtimesNano UtimesNanoAt Lutimes Futimesat Setxattr
		Lsetxattr Getxattr Lgetxattr Listxattr Llistxattr Removexattr Lremovexattr Chdir Chroot
		Mount Unmount MountSetattr MoveMount PivotRoot`,
	"syscall": `Open Openat Creat Mkdir Mkdirat Rmdir Unlink Unlinkat Rename Renameat Link Symlink
		Readlink Mknod Mknodat Mkfifo Chmod Fchmodat Chown Lchown Fchownat Stat Lstat Access
		Faccessat Truncate Utime Utimes UtimesNano Futimesat Setxattr Getxattr Listxattr Removexattr
		Chdir Chroot Mount Unmount PivotRoot`,
}

func TestPathsGoThroughSafepath(t *testing.T) {
	allowed := parseAllowed(t)
	used := map[string]bool{}
	for _, folder := range guarded {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return nil
			}
			name := strings.TrimPrefix(filepath.ToSlash(file), "../../")
			entry := cover(allowed, name)
			src, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, call := range pathCalls(t, file, src) {
				used[entry] = true
				if entry == "" {
					t.Errorf("%s: use internal/safepath, or list the file in internal/safepath/allowed.txt with the reason why its paths are trusted",
						call)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for entry := range allowed {
		if !used[entry] {
			t.Errorf("allowed.txt lists %s, which takes no paths any more: remove the line", entry)
		}
	}
}

// parseAllowed reads lines of "file-or-folder/  reason".
func parseAllowed(t *testing.T) map[string]bool {
	allowed := map[string]bool{}
	for i, line := range strings.Split(allowedFile, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		if strings.TrimSpace(reason) == "" {
			t.Errorf("allowed.txt:%d: no reason given for %s", i+1, name)
		}
		for _, s := range sealed {
			if strings.HasPrefix(name, s) {
				t.Errorf("allowed.txt:%d: %s: no exceptions in %s", i+1, name, s)
			}
		}
		allowed[name] = true
	}
	return allowed
}

// cover finds the line that allows a file: its own, or that of its folder.
func cover(allowed map[string]bool, file string) string {
	for _, s := range sealed {
		if strings.HasPrefix(file, s) {
			return ""
		}
	}
	if allowed[file] {
		return file
	}
	if folder := path.Dir(file) + "/"; allowed[folder] {
		return folder
	}
	return ""
}

// pathCalls finds every mention, called or not, of a function that takes a path.
func pathCalls(t *testing.T, file string, src []byte) []string {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	names := map[string]string{} // local name of the package -> import path
	for _, i := range parsed.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if takesPath[imported] == "" {
			continue
		}
		local := path.Base(imported)
		if i.Name != nil {
			local = i.Name.Name
		}
		if local == "." {
			found = append(found, fmt.Sprintf("%s: dot import of %s", set.Position(i.Pos()), imported))
		}
		names[local] = imported
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		functions := takesPath[names[id.Name]]
		for _, f := range strings.Fields(functions) {
			if f == "*" || f == sel.Sel.Name {
				found = append(found, fmt.Sprintf("%s: %s.%s", set.Position(sel.Pos()), id.Name, sel.Sel.Name))
			}
		}
		return true
	})
	return found
}

func TestLintFindsPathCalls(t *testing.T) {
	src := []byte(`package x
import (
	host "os"
	"golang.org/x/sys/unix"
	"path/filepath"
)
var open = host.Open // a value counts as well
func f() { _ = unix.Lsetxattr("", "", nil, 0); _ = filepath.Join("a"); _ = host.Getpid() }
`)
	got := strings.Join(pathCalls(t, "x.go", src), "\n")
	if want := "x.go:7:12: host.Open\nx.go:8:16: unix.Lsetxattr"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if got := pathCalls(t, "y.go", []byte("package y\nimport . \"os\"\n")); len(got) != 1 {
		t.Errorf("dot import not found: %v", got)
	}
}
